/* Clocks that a test can set: the time of day and the monotonic clock are shifted by the two numbers of seconds that
 * stand in the file of FREEWAY_TEST_CLOCK, whatever asks for them. Preloaded into the program under test. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static long shift(clockid_t id)
{
    const char *path = getenv("FREEWAY_TEST_CLOCK");
    char text[64] = {0}, *rest = text;
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return 0;
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    long wall = length > 0 ? strtol(text, &rest, 10) : 0;
    return id == CLOCK_REALTIME ? wall : strtol(rest, NULL, 10);
}

int clock_gettime(clockid_t id, struct timespec *now)
{
    static int (*real)(clockid_t, struct timespec *);
    if (!real)
        real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(id, now);
    if (result == 0 && (id == CLOCK_REALTIME || id == CLOCK_MONOTONIC))
        now->tv_sec += shift(id);
    return result;
}
