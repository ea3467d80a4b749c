"""How much of the machine others used during a measurement: a busy machine favours engines that do not wait by spinning."""
import os
import resource
import time


class Others:
    """Counts from its creation on."""

    def __init__(self):
        self.start = counts()

    def share(self):
        """The share of all cores' time that went to other programs, time that a host took away included."""
        (wall, busy, own), (wall0, busy0, own0) = counts(), self.start
        return max(0.0, (busy - busy0) - (own - own0)) / ((wall - wall0) * (os.cpu_count() or 1))


def counts():
    """Seconds by the clock, busy seconds of all cores, and of these the ones of this program and those it ran."""
    with open("/proc/stat") as stat:
        user, nice, system, _idle, _waiting, interrupts, soft, steal = map(int, stat.readline().split()[1:9])
    busy = (user + nice + system + interrupts + soft + steal) / os.sysconf("SC_CLK_TCK")
    usage = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    return time.monotonic(), busy, sum(u.ru_utime + u.ru_stime for u in usage)
