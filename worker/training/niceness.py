"""How much of the processor's time a trainer takes: the database and the controller come first.

While a trainer prepares its job (reads, captures, measures) it comes before those that train: a preparation takes
seconds of the processor's time, a training minutes. At one niceness for both, the sixth of six jobs on two cores was
prepared in 16 s, since each trainer that trained took as much as it did.
"""

import os
from pathlib import Path

PREPARING = 1
TRAINING = 5  # the kernel gives a thread of niceness 1 some 2.4 times the time of one of niceness 5


def prepare() -> None:
    """Lower this thread's priority, and that of all threads it starts."""
    os.nice(PREPARING)


def train() -> None:
    """Lower the priority of every thread of this process from that of a preparation to that of a training."""
    for task in Path("/proc/self/task").iterdir():
        try:
            before = os.getpriority(os.PRIO_PROCESS, int(task.name))
            os.setpriority(os.PRIO_PROCESS, int(task.name), min(_LEAST, before + TRAINING - PREPARING))
        except ProcessLookupError:  # it has ended meanwhile
            continue


_LEAST = 19  # of Linux
