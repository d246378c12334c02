"""Reads the processor time that programs have used on this machine, from the files of Linux."""

import os
from collections.abc import Collection
from pathlib import Path

from indb_tensile.device.hardware import cores

_PROC = Path("/proc")


def busy_s(proc: Path = _PROC, *, allowed: Collection[int] | None = None, usable: int | None = None) -> float | None:
    """Return the processor time of all programs on the cores that this process may use, since the machine started.

    By default `allowed` are the numbers of the cores on which this process may run, and `usable` is how many of them
    its control group's quota leaves. Returns None if these are fewer: which of the others' time is at the cost of
    jobs is not known then.
    """
    allowed = os.sched_getaffinity(0) if allowed is None else allowed
    if (cores() if usable is None else usable) < len(allowed):
        return None
    names, used = {f"cpu{number}" for number in allowed}, 0
    for line in (proc / "stat").read_text(encoding="ascii").splitlines():
        name, *ticks = line.split()
        if name in names:
            user, nice, system, _, _, irq, softirq = map(int, ticks[:7])  # without the idle time, and that of guests
            used += user + nice + system + irq + softirq
    return used / os.sysconf("SC_CLK_TCK")


def process_s(pid: int, proc: Path = _PROC) -> float | None:
    """Return the processor time of a process with all its threads, or None if it is gone."""
    try:
        fields = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
