"""A trainer that prepares its job has a higher priority than trainers that train, unless these soon end."""

import subprocess
import sys

import pytest

from indb_tensile.scheduler.completion.processor_shares import PREPARING, TRAINING, training_niceness

PROGRAM = """
import os, sys, threading
from indb_tensile.worker.training import niceness
began, go, differences = threading.Event(), threading.Event(), []
def current():
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
start = current()
niceness.prepare()
def measure():
    differences.append(current() - start)
    began.set()
    go.wait()
    differences.append(current() - start)
thread = threading.Thread(target=measure)
thread.start()
began.wait()
niceness.train(float(sys.argv[1]))
go.set()
thread.join()
print(differences, current() - start)
"""


@pytest.mark.parametrize(("left_s", "niceness"), [("inf", TRAINING), ("1.5", PREPARING), ("5", TRAINING - 2)])
def test_every_thread_of_a_trainer_changes_its_priority_when_training_begins(left_s: str, niceness: int) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, left_s], capture_output=True, text=True, check=True)
    assert done.stdout == f"[{PREPARING}, {niceness}] {niceness}\n"


def test_shorter_training_never_has_a_lower_priority_than_a_longer_one() -> None:
    of_times = [training_niceness(left_s / 10) for left_s in range(200)]
    assert of_times == sorted(of_times)
    assert {PREPARING, TRAINING} == {of_times[0], of_times[-1]}
    assert training_niceness(8.0) == TRAINING, "no long training has a lower priority than others"
