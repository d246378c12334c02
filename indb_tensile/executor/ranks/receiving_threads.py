"""Keeps Gloo's receiving thread from interrupting the threads that send.

Gloo has one thread for each device that waits for sockets with data. If another thread holds the lock of a connection
then, because it sends on it, the receiving thread asks again and again (gloo/transport/tcp/pair.cc tries the lock).
Where both share a processor, the sender cannot go on meanwhile, until the next tick of the clock takes the processor
from the receiver. On two idle processors with ticks of 4 ms, 8 in 100 messages of 2 KB between two ranks took 2 to
5 ms, and the others 0.14 ms. That happens because the receiver wakes up while the sender is about to end.

A thread of the policy SCHED_BATCH does not interrupt others when it wakes up (sched(7)), so the sender ends first. Of
1,000 such messages none took more than 0.5 ms, and the mean fell from 0.46 to 0.12 ms. Any user may do that.

Where other programs keep all processors busy, such a thread waits for its turn. Beside two of them on two processors
messages of 2 KB took 3 ms in the mean instead of 0.4, and those of 1 MB a sixth longer (docs/results/ranks.md).
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

NAME = "gloo_tcp_loop"  # which Gloo gives to its receiving threads
_THREADS = Path("/proc/self/task")


@contextmanager
def patient_receivers() -> Iterator[None]:
    """Let receiving threads that Gloo starts in this context wait until the processor is free.

    They have to have received something when the context ends: a new thread does not have its name yet.
    """
    before = receivers()
    yield
    for thread in receivers() - before:
        with suppress(OSError):  # the thread has ended, or a filter of system calls refuses this one
            if os.sched_getscheduler(thread) == os.SCHED_OTHER:
                os.sched_setscheduler(thread, os.SCHED_BATCH, os.sched_param(0))


def receivers() -> frozenset[int]:
    """Return the ids of this process's receiving threads."""
    return frozenset(int(thread.name) for thread in _THREADS.iterdir() if _name(thread) == NAME)


def _name(thread: Path) -> str:
    try:
        return (thread / "comm").read_text(encoding="utf-8").strip()
    except OSError:  # it has ended
        return ""
