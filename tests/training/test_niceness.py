"""A trainer that prepares its job has a higher priority than trainers that train."""

import subprocess
import sys

from worker.training.niceness import PREPARING, TRAINING

PROGRAM = """
import os, threading
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
niceness.train()
go.set()
thread.join()
print(differences, current() - start)
"""


def test_every_thread_of_a_trainer_lowers_its_priority_when_training_begins() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout == f"[{PREPARING}, {TRAINING}] {TRAINING}\n"
