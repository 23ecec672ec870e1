//! The operating system's calls that the standard library does not offer, on sockets, descriptors, memory, disks, locks,
//! names and the clock.
//! The one file of this program with `unsafe`, so nothing here decides anything.
#![allow(unsafe_code)]
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use socket2::SockAddr;

use crate::base::clock;

/// Both ends of a connection, which together tell it from every other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ends {
    pub local: SocketAddr,
    pub peer: SocketAddr,
}

/// Raises the soft limit of open descriptors towards `wanted` as far as the hard limit lets it, and returns what
/// now holds.
pub fn raise_descriptor_limit(wanted: u64) -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a live, writable rlimit, which is all that the call touches.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } != 0 {
        return POSIX_DESCRIPTORS_MIN;
    }
    let now = limit.rlim_cur;
    limit.rlim_cur = wanted.min(limit.rlim_max).max(now);
    // SAFETY: `limit` is a live rlimit that the call only reads.
    if limit.rlim_cur > now && unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) } == 0 {
        return limit.rlim_cur;
    }
    now
}

/// What every POSIX system grants at least; counted with where the limit cannot be read.
const POSIX_DESCRIPTORS_MIN: u64 = 20;

/// Keeps glibc's allocator small: a few arenas, of which by default it makes one for each of many threads, and
/// none gives its free pages to another; and large blocks in mappings of their own, which go back to the system when
/// freed. By default the first large block that is freed raises the limit of "large", up to 32 MiB, so that from then on
/// request bodies would tear holes into the arenas. Small blocks are merged with their neighbours when they are freed, as
/// far as their thread does not keep them: put aside one by one, as by default, they cost a busy gateway 1.6 MiB.
pub fn limit_memory() {
    // SAFETY: the calls take two integers and change parameters of the allocator under the allocator's own lock.
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, ARENAS_MAX);
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES);
        libc::mallopt(libc::M_MXFAST, 0);
    }
}

/// With two, the threads of connections wait for each other's allocations often enough to cost a tenth of the processor time of
/// a busy gateway; four take next to no memory beside them.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const ARENAS_MAX: libc::c_int = 4;

/// Above all that an ordinary request needs, so that only large bodies and answers pay for fresh pages.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const LARGE_BLOCK_BYTES: libc::c_int = 256 * 1024;

/// Gives back the memory that the calling thread's stack still holds from deeper calls which have returned. Worth it before
/// a long sleep only: it takes system calls, and each page that is used again comes anew.
// With a frame of its own, which is small and the last in use: inlined, its mark could lie anywhere in a large one.
#[inline(never)]
pub fn release_idle_stack() {
    // More than the compiler and the kernel may keep below the last frame.
    const MARGIN_BYTES: usize = 4 * 1024;
    let mark = 0_u8;
    let here = std::ptr::addr_of!(mark).addr();
    let (mut lowest, mut bytes) = (std::ptr::null_mut(), 0);
    // SAFETY: `attributes` is plain data, filled by the first call, only read by the second and given up by the third.
    let (known, page) = unsafe {
        let mut attributes: libc::pthread_attr_t = std::mem::zeroed();
        if libc::pthread_getattr_np(libc::pthread_self(), &mut attributes) != 0 {
            return;
        }
        let known = libc::pthread_attr_getstack(&attributes, &mut lowest, &mut bytes) == 0;
        libc::pthread_attr_destroy(&mut attributes);
        (known, libc::sysconf(libc::_SC_PAGESIZE))
    };
    let Some(page) = usize::try_from(page).ok().filter(|page| known && page.is_power_of_two()) else {
        return;
    };
    let idle_bytes =
        (here & !(page - 1)).saturating_sub(MARGIN_BYTES.max(page)).saturating_sub(lowest.addr());
    if lowest.addr() % page == 0 && idle_bytes < bytes {
        // SAFETY: the pages lie between the lowest of this thread's own stack and one well below its last frame, so
        // nothing is stored in them.
        unsafe { libc::madvise(lowest, idle_bytes & !(page - 1), libc::MADV_DONTNEED) };
    }
}

/// Bytes that this user may still write to the file system of `path`; `None` when that cannot be found out.
pub fn free_bytes(path: &Path) -> Option<u64> {
    let path = CString::new(path.as_os_str().as_bytes()).ok()?;
    // SAFETY: the structure is plain numbers, for which zeros are a valid value.
    let mut found: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: `path` ends in a zero byte, and `found` is a live, writable statvfs.
    if unsafe { libc::statvfs(path.as_ptr(), &mut found) } != 0 {
        return None;
    }
    // The width of these numbers differs between machines.
    #[allow(clippy::useless_conversion, clippy::unnecessary_cast)]
    Some((found.f_bavail as u64).saturating_mul(found.f_frsize as u64))
}

/// Held while files of a folder are read and written again, so that the gateway and the commands of a terminal lose no
/// change of each other. It ends with the process that holds it.
pub struct FolderLock(#[expect(dead_code, reason = "the lock goes when the file is closed")] Option<File>);

/// Longest wait for others, who need milliseconds; then the change is made all the same.
const FOLDER_LOCK_MAX: Duration = Duration::from_secs(5);
/// Time between two looks whether it is our turn.
const FOLDER_LOCK_STEP_MS: libc::c_int = 2;

/// Waits for the turn to change files of `folder`. A folder that is not there, or a file system without locks, has no
/// turns.
pub fn lock_folder(folder: &Path) -> FolderLock {
    let Ok(file) = File::open(folder) else { return FolderLock(None) };
    let ends = clock::instant() + FOLDER_LOCK_MAX;
    // SAFETY: the descriptor is that of a live file, and the call touches nothing else.
    while unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
        if io::Error::last_os_error().kind() != io::ErrorKind::WouldBlock || clock::instant() >= ends {
            break;
        }
        // SAFETY: a wait for none of no descriptors touches no memory.
        unsafe { libc::poll(std::ptr::null_mut(), 0, FOLDER_LOCK_STEP_MS) };
    }
    FolderLock(Some(file))
}

/// Whether the kernel's clock follows a better one; `None` where the kernel may not be asked.
pub fn clock_follows() -> Option<bool> {
    // SAFETY: the structure is plain numbers, for which zeros are a valid value. With no mode set the call changes
    // nothing and only fills it.
    let state = unsafe {
        let mut clock: libc::timex = std::mem::zeroed();
        libc::adjtimex(&mut clock)
    };
    (state >= 0).then_some(state != libc::TIME_ERROR)
}

/// What this machine calls itself; `None` where the system does not say, or not in UTF-8.
pub fn machine_name() -> Option<String> {
    let mut name = [0_u8; NAME_BYTES_MAX + 1];
    // SAFETY: the pointer and the length are those of one live, writable array, which is all that the call touches.
    if unsafe { libc::gethostname(name.as_mut_ptr().cast(), name.len()) } != 0 {
        return None;
    }
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    std::str::from_utf8(name).ok().filter(|name| !name.is_empty()).map(str::to_owned)
}

/// The longest name of a host in the DNS; Linux allows 64.
const NAME_BYTES_MAX: usize = 255;

/// Waits until `listener` has a connection to accept, or was shut down.
pub fn wait_for_client(listener: &TcpListener) -> io::Result<()> {
    loop {
        match poll(listener.as_raw_fd(), libc::POLLIN, -1) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result.map(|_| ()),
        }
    }
}

/// Whether something is there to be read: bytes, or the end of the stream.
pub fn has_input(socket: &TcpStream) -> bool {
    poll(socket.as_raw_fd(), libc::POLLIN, 0).unwrap_or(0) != 0
}

/// Whether the peer has closed its sending side, or the connection is gone, whatever data may still be unread.
pub fn has_hung_up(socket: &TcpStream) -> bool {
    // An error of the call itself is no news of the peer.
    poll(socket.as_raw_fd(), libc::POLLRDHUP, 0).unwrap_or(0) != 0
}

/// Tells what sockets are ready for, by their descriptors. A socket that is closed is forgotten.
#[derive(Debug)]
pub struct ReadyQueue(OwnedFd);

/// What a socket is waited for.
#[derive(Clone, Copy, Debug)]
pub enum Interest {
    /// The peer has closed its sending side, or the connection is gone: told once, whatever data may be unread.
    Hangup,
    /// There is something to read, be it the end: told until it has been read.
    Input,
}

impl ReadyQueue {
    pub fn new() -> io::Result<ReadyQueue> {
        // SAFETY: the call takes a flag and touches no memory of ours.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just given us this descriptor, and nobody else knows of it.
        Ok(ReadyQueue(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Watches `socket`.
    pub fn add(&self, socket: &impl AsRawFd, interest: Interest) -> io::Result<()> {
        self.control(
            libc::EPOLL_CTL_ADD,
            socket,
            match interest {
                // Arriving data wakes nobody: of all that can happen to a socket only its end is waited for.
                Interest::Hangup => libc::EPOLLRDHUP | libc::EPOLLET,
                Interest::Input => libc::EPOLLIN | libc::EPOLLRDHUP,
            },
        )
    }

    /// Watches `socket` no longer.
    pub fn remove(&self, socket: &impl AsRawFd) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_DEL, socket, 0)
    }

    fn control(&self, change: libc::c_int, socket: &impl AsRawFd, events: libc::c_int) -> io::Result<()> {
        let fd = socket.as_raw_fd();
        let mut event = libc::epoll_event { events: events as u32, u64: fd as u64 };
        // SAFETY: `event` is a live epoll_event that the call only reads; the caller's borrow keeps `fd` open.
        match unsafe { libc::epoll_ctl(self.0.as_raw_fd(), change, fd, &mut event) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Waits; gives the descriptors of those that are ready, none when `timeout_ms` passed (-1: there is no limit).
    pub fn wait<'d, const N: usize>(&self, descriptors: &'d mut [RawFd; N], timeout_ms: i32) -> &'d [RawFd] {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; N];
        let room = libc::c_int::try_from(N).unwrap_or(libc::c_int::MAX);
        // SAFETY: `events` is a live array of at least `room` entries, beyond which the kernel never writes.
        let count = unsafe { libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), room, timeout_ms) };
        // The one error that can come is the interruption by a signal, which says nothing.
        let count = usize::try_from(count).unwrap_or(0);
        for (descriptor, event) in descriptors.iter_mut().zip(&events[..count]) {
            *descriptor = event.u64 as RawFd;
        }
        &descriptors[..count]
    }
}

fn poll(fd: RawFd, events: libc::c_short, timeout_ms: libc::c_int) -> io::Result<libc::c_short> {
    let mut entry = libc::pollfd { fd, events, revents: 0 };
    // SAFETY: `entry` is one live pollfd, as the count of 1 says; the caller's borrow keeps `fd` open.
    match unsafe { libc::poll(&mut entry, 1, timeout_ms) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(entry.revents),
    }
}

/// Waits until `count` bytes can be read, `timeout_ms` passes, or the peer stops sending; false for the timeout.
///
/// A receiving call could wait for them too (`MSG_PEEK` with `MSG_WAITALL`), but Linux does not wake it when new bytes
/// are merged into a packet that it has looked at.
pub fn wait_for_bytes(socket: &TcpStream, count: usize, timeout_ms: u64) -> io::Result<bool> {
    let timeout_ms = libc::c_int::try_from(timeout_ms).unwrap_or(libc::c_int::MAX);
    set_low_mark(socket, count)?;
    let result = poll(socket.as_raw_fd(), libc::POLLIN | libc::POLLRDHUP, timeout_ms);
    // The mark holds for every later read as well.
    set_low_mark(socket, 1)?;
    result.map(|events| events != 0)
}

/// Sets how many unread bytes make a socket readable.
fn set_low_mark(socket: &TcpStream, count: usize) -> io::Result<()> {
    let mark = libc::c_int::try_from(count).unwrap_or(libc::c_int::MAX);
    let place: *const libc::c_int = &mark;
    let length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: `place` points to a live integer and `length` says its size; the kernel only reads it.
    let result = unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVLOWAT, place.cast(), length)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// How many bytes of payload the kernel has ever received on this connection; an end of stream counts as one.
/// `None` where the kernel does not say (before Linux 4.1).
pub fn received_bytes(socket: &TcpStream) -> Option<u64> {
    // SAFETY: tcp_info holds integers only, for which all bits zero are a value.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
    let place: *mut libc::tcp_info = &mut info;
    // SAFETY: `place` points to a live tcp_info and `length` says its size, beyond which the kernel never writes.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, place.cast(), &mut length)
    };
    let known = std::mem::offset_of!(libc::tcp_info, tcpi_bytes_received) + size_of::<u64>();
    (result == 0 && length as usize >= known).then_some(info.tcpi_bytes_received)
}

/// The descriptor numbers that the next opened files will probably get: the lowest free ones, in order.
///
/// # Errors
/// When fewer than `N` are free.
pub fn next_descriptors<const N: usize>(listener: &TcpListener) -> io::Result<[RawFd; N]> {
    let mut numbers = [0; N];
    // All are open at once, then closed together.
    let mut opened = Vec::with_capacity(N);
    for number in &mut numbers {
        let descriptor = listener.try_clone()?;
        *number = descriptor.as_raw_fd();
        opened.push(descriptor);
    }
    Ok(numbers)
}

/// Finds the socket that was just accepted on `port` and duplicates it.
///
/// tiny_http keeps its sockets to itself, so we look for one of our port whose ends `is_new` does not know yet:
/// first at the `likely` numbers, then at all of the process. The caller holds the accepted connection, so that its
/// descriptors stay open meanwhile.
pub fn duplicate_accepted(
    port: u16,
    likely: &[RawFd],
    is_new: impl Fn(&Ends) -> bool,
) -> Option<(TcpStream, Ends)> {
    let look = |fd: RawFd| {
        let ends = ends_of(fd).filter(|ends| ends.local.port() == port && is_new(ends))?;
        // SAFETY: duplicating an open descriptor makes a new one and touches no memory. Only the sought socket gets
        // here: to duplicate and close just any descriptor would be harmful, since closing one of SQLite's files
        // drops the locks that this process holds on it.
        let duplicate = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) };
        if duplicate < 0 {
            return None;
        }
        // SAFETY: the call above made this descriptor, and nobody else knows its number.
        let owned = unsafe { OwnedFd::from_raw_fd(duplicate) };
        Some((TcpStream::from(owned), ends))
    };
    likely.iter().copied().find_map(look).or_else(|| open_descriptors().into_iter().find_map(look))
}

/// The numbers of all descriptors of this process.
fn open_descriptors() -> Vec<RawFd> {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else {
        return Vec::new();
    };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// The ends of the connected IP socket behind a descriptor number; `None` for every other kind of descriptor.
fn ends_of(fd: RawFd) -> Option<Ends> {
    Some(Ends { local: address(fd, libc::getsockname)?, peer: address(fd, libc::getpeername)? })
}

/// How many descriptors of this process belong to connections that were accepted on `port`.
#[cfg(test)]
pub fn count_connections(port: u16) -> usize {
    open_descriptors().into_iter().filter_map(ends_of).filter(|ends| ends.local.port() == port).count()
}

type AddressCall =
    unsafe extern "C" fn(libc::c_int, *mut libc::sockaddr, *mut libc::socklen_t) -> libc::c_int;

fn address(fd: RawFd, call: AddressCall) -> Option<SocketAddr> {
    // SAFETY: the calls take any number as a descriptor and fail on one that is no socket; `storage` and `length` come
    // from socket2, which gives a zeroed address of the size that `length` says.
    let ((), address) = unsafe {
        SockAddr::try_init(|storage, length| match call(fd, storage.cast(), length) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        })
    }
    .ok()?;
    address.as_socket()
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::time::Duration;

    use super::*;

    fn pair() -> (TcpStream, TcpStream, u16) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        (client, listener.accept().unwrap().0, port)
    }

    #[test]
    fn an_accepted_socket_is_found_with_and_without_a_good_guess() {
        let (client, server, port) = pair();
        for likely in [vec![server.as_raw_fd()], vec![], vec![0, 1, -1, 9999]] {
            let (mut found, ends) = duplicate_accepted(port, &likely, |_| true).unwrap();
            assert_eq!(ends.peer, client.local_addr().unwrap());
            found.write_all(b"x").unwrap();
            (&client).read_exact(&mut [0]).unwrap();
        }
        assert!(duplicate_accepted(port, &[], |_| false).is_none());
        assert!(duplicate_accepted(port.wrapping_add(1), &[], |_| true).is_none());
    }

    #[test]
    fn received_bytes_count_what_came_whether_read_or_not() {
        let (mut client, mut server, _) = pair();
        assert_eq!(received_bytes(&server), Some(0));
        client.write_all(b"hello").unwrap();
        server.read_exact(&mut [0; 3]).unwrap();
        assert_eq!(received_bytes(&server), Some(5));
        server.read_exact(&mut [0; 2]).unwrap();
        assert_eq!(received_bytes(&server), Some(5));
    }

    #[test]
    fn a_wait_for_bytes_ends_with_them_and_takes_none() {
        let (mut client, mut server, _) = pair();
        client.write_all(b"ab").unwrap();
        assert!(!wait_for_bytes(&server, 3, 20).unwrap());
        let sender = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            client.write_all(b"cd").unwrap();
            client
        });
        assert!(wait_for_bytes(&server, 4, 10_000).unwrap());
        assert_eq!(server.peek(&mut [0; 9]).unwrap(), 4);
        let mut seen = [0; 4];
        server.read_exact(&mut seen).unwrap();
        assert_eq!(&seen, b"abcd");
        drop(sender.join().unwrap());
        assert!(wait_for_bytes(&server, 1, 10_000).unwrap());
    }

    #[test]
    fn a_peer_that_stops_sending_has_hung_up_though_data_is_unread() {
        let (mut client, server, _) = pair();
        client.write_all(b"ab").unwrap();
        assert!(!has_hung_up(&server));
        client.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(wait_for_bytes(&server, 3, 10_000).unwrap());
        assert!(has_hung_up(&server));
    }

    #[test]
    fn a_disk_tells_its_space_and_a_missing_one_does_not() {
        assert!(free_bytes(Path::new("/")).is_some_and(|bytes| bytes > 0));
        assert_eq!(free_bytes(Path::new("/no such folder")), None);
        assert_eq!(free_bytes(Path::new("a\0b")), None);
    }

    #[test]
    fn a_released_stack_serves_on() {
        /// Uses so many KiB of the stack, and tells what it read there.
        fn deep(kib: usize) -> usize {
            let room = [1_u8; 1024];
            let below = if kib > 1 { deep(kib - 1) } else { 0 };
            below + std::hint::black_box(&room).iter().map(|byte| usize::from(*byte)).sum::<usize>()
        }
        let thread = std::thread::Builder::new().stack_size(512 * 1024);
        let ran = thread.spawn(|| {
            let held = std::hint::black_box([7_u8; 8 * 1024]);
            for kib in [100, 1, 200, 150] {
                assert_eq!(deep(kib), kib * 1024);
                release_idle_stack();
                assert!(std::hint::black_box(&held).iter().all(|byte| *byte == 7), "{kib}");
            }
        });
        ran.unwrap().join().unwrap();
    }

    #[test]
    fn the_machine_has_the_name_that_the_kernel_knows() {
        let known = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        assert_eq!(machine_name().as_deref(), Some(known.trim()).filter(|name| !name.is_empty()));
    }

    #[test]
    fn the_descriptor_limit_is_raised_and_never_lowered() {
        let now = raise_descriptor_limit(0);
        assert!(now >= POSIX_DESCRIPTORS_MIN);
        assert!(raise_descriptor_limit(now) >= now);
        assert_eq!(raise_descriptor_limit(1), raise_descriptor_limit(0));
    }
}
