"""What Linux tells about processes and the machine: processor time, memory, bytes written, wake-ups."""
import os
import pathlib

TICKS = os.sysconf("SC_CLK_TCK")
CORES = os.cpu_count()
# A measurement during which other programs took more than this share of the machine is void.
OTHERS_MAX = 0.05


def _stat(pid):
    """Parent and processor seconds of a process; None when it has gone."""
    try:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return None
    return int(fields[1]), (int(fields[11]) + int(fields[12])) / TICKS


def family(pid):
    """A process and all that it started."""
    parents = {int(one): _stat(one) for one in os.listdir("/proc") if one.isdigit()}
    members, added = {pid}, True
    while added:
        more = {one for one, stat in parents.items() if stat and stat[0] in members} - members
        members, added = members | more, bool(more)
    return members


def cpu_s(pid):
    """Processor seconds of a process and all that it started."""
    return sum(stat[1] for stat in map(_stat, family(pid)) if stat)


def _status(pid, field):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1])
    return 0


def memory_mib(pid, field="VmRSS"):
    """Resident memory now, or at its highest with `VmHWM`, of a process and all that it started."""
    return sum(_status(one, field) for one in family(pid)) / 1024


def wake_ups(pid):
    """How often the tasks of a process have gone to sleep so far, which is how often they were woken."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        try:
            total += _status(f"{pid}/task/{task}", "voluntary_ctxt_switches")
        except OSError:
            pass
    return total


def written_bytes(pid):
    """Bytes that a process has caused to be written to a disk so far. A file system in memory does not count."""
    for line in pathlib.Path(f"/proc/{pid}/io").read_text().splitlines():
        if line.startswith("write_bytes:"):
            return int(line.split()[1])
    return 0


def writes_are_counted(folder):
    """Whether writes below `folder` show in `written_bytes`: they do not on tmpfs."""
    before = written_bytes(os.getpid())
    probe = pathlib.Path(folder, "probe")
    with open(probe, "wb") as file:
        file.write(b"x" * 65536)
        file.flush()
        os.fsync(file.fileno())
    probe.unlink()
    return written_bytes(os.getpid()) - before >= 65536


def _machine():
    """Processor seconds of the whole machine: busy, and stolen by the hypervisor."""
    user, nice, system, _, _, irq, softirq, steal = (int(one) / TICKS for one in
                                                     open("/proc/stat").readline().split()[1:9])
    return user + nice + system + irq + softirq, steal


class Gauge:
    """Tells how much of the machine others took while it was open.

    `programs` are the rig's own long-lived processes; what it starts and waits for is counted by itself.
    """

    def __init__(self, programs):
        self.programs = programs
        self.others = self.steal = 0.0

    def _ours(self):
        own = os.times()
        children = sum(cpu_s(one.pid) for one in self.programs)
        return own.user + own.system + own.children_user + own.children_system + children

    def __enter__(self):
        self._began = (*_machine(), self._ours(), os.times().elapsed)
        return self

    def __exit__(self, *_):
        busy, steal, ours, clock = self._began
        busy_now, steal_now = _machine()
        whole = max(os.times().elapsed - clock, 0.001) * CORES
        self.others = max(0.0, (busy_now - busy - (self._ours() - ours)) / whole)
        self.steal = max(0.0, (steal_now - steal) / whole)

    @property
    def void(self):
        return self.others > OTHERS_MAX or self.steal > OTHERS_MAX
