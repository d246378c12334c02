"""Lowers a trainer's CPU priority so that the database and the controller are served first.

While a trainer prepares its job (reads, captures, measures), it has a higher priority than trainers that train: a
preparation takes seconds of processor time, a training minutes. With equal priorities, the preparation of the sixth
of six jobs on two cores took 16 s, because each training took as much processor time.
"""

import os
from pathlib import Path

PREPARING = 1
TRAINING = 5  # a thread of niceness 1 gets about 2.4 times the processor time of one of niceness 5


def prepare() -> None:
    """Lower this thread's priority, and that of all threads it starts."""
    os.nice(PREPARING)


def train() -> None:
    """Lower the priority of every thread of this process from that of a preparation to that of a training."""
    for task in Path("/proc/self/task").iterdir():
        try:
            priority = os.getpriority(os.PRIO_PROCESS, int(task.name))
            os.setpriority(os.PRIO_PROCESS, int(task.name), min(_MAX_NICENESS, priority + TRAINING - PREPARING))
        except ProcessLookupError:  # the thread has ended
            continue


_MAX_NICENESS = 19  # the lowest priority of Linux
