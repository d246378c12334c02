"""Strict mode: plans are followed as ever, and who reads what a plan has released dies by it and says what it was."""

import os
import re
import signal
import subprocess
import sys

from indb_tensile.device.allocator_shim import preload_environment


def test_whoever_touches_what_is_away_dies_by_the_fault_and_says_what_lay_there() -> None:
    environment = preload_environment(os.environ) | {"OMP_NUM_THREADS": "1"}
    command = (sys.executable, "-W", "error", "-m", "tests.executor.run.strict_process")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    told = done.stdout.splitlines()
    assert told[:2] == ["as in eager: True True"] * 2, done.stderr
    assert (told[2].split()[0], len(told)) == ("reads", 3)
    assert done.returncode == -signal.SIGSEGV
    said = r"job 7: memory that is away was touched: byte \d+ of the planned block, where \S.* of "
    assert re.search(said + r"\d+ bytes lay until position \d+ of the program, at its byte \d+", done.stderr)
