"""Lowers a trainer's CPU priority so that the database and the controller are served first.

While a trainer prepares its job (reads, captures, measures), it has a higher priority than trainers that train for
long: a preparation takes seconds of processor time, a training minutes. With equal priorities, the preparation of the
sixth of six jobs on two cores took 16 s, because each training took as much processor time.

A training of a few seconds keeps a higher priority. Where preparations and trainings want more processors than there
are, it would otherwise take several times as long as alone, and a long training gains little from that. A trainer may
lower its priority and may not raise it again, so the priority is chosen once, when the training begins. The time that
is left is then known as a bound, because training may stop early.
"""

import math
import os
from pathlib import Path

from indb_tensile.scheduler.completion.processor_shares import PREPARING, training_niceness

_MAX_NICENESS = 19  # the lowest priority of Linux


def prepare() -> None:
    """Lower this thread's priority, and that of all threads it starts."""
    os.nice(PREPARING)


def train(left_s: float = math.inf) -> None:
    """Lower the priority of every thread of this process from that of a preparation to that of a training.

    `left_s` is the time that the training would take alone.
    """
    added = training_niceness(left_s) - PREPARING
    for task in Path("/proc/self/task").iterdir():
        try:
            priority = os.getpriority(os.PRIO_PROCESS, int(task.name))
            os.setpriority(os.PRIO_PROCESS, int(task.name), min(_MAX_NICENESS, priority + added))
        except ProcessLookupError:  # the thread has ended
            continue
