"""A trainer that prepares its job comes before those that train."""

import subprocess
import sys

from worker.training.niceness import PREPARING, TRAINING

ASK = """
import os, threading
from indb_tensile.worker.training import niceness
began, go, told = threading.Event(), threading.Event(), []
def here():
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
own = here()
niceness.prepare()
def beside():
    told.append(here() - own)
    began.set()
    go.wait()
    told.append(here() - own)
thread = threading.Thread(target=beside)
thread.start()
began.wait()
niceness.train()
go.set()
thread.join()
print(told, here() - own)
"""


def test_every_thread_of_a_trainer_steps_back_when_training_begins() -> None:
    done = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, check=True)
    assert done.stdout == f"[{PREPARING}, {TRAINING}] {TRAINING}\n"
