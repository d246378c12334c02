"""The processor time of a command counts what its orphans have used, and its exit code stays."""

import subprocess
import sys
from pathlib import Path

import pytest

_PROGRAM = Path(__file__).with_name("processor_time.py")
# The orphan works for a second of a processor. The command ends when nobody has to wait for the orphan any more.
_ORPHAN = """
import os, time
numbers, number = os.pipe()
if os.fork() == 0:
    if os.fork() == 0:
        os.write(number, str(os.getpid()).encode())
        while time.process_time() < 1: pass
    os._exit(0)
os.wait()
orphan = os.read(numbers, 9).decode()
while os.path.exists(f"/proc/{orphan}"): time.sleep(0.01)
"""


@pytest.mark.parametrize(
    ("program", "code"), [("import sys; sys.exit(3)", 3), ("import os; os.kill(os.getpid(), 9)", 137)]
)
def test_the_exit_code_is_that_of_the_command(program: str, code: int, tmp_path: Path) -> None:
    assert _run(program, tmp_path / "seconds") == code


@pytest.mark.nightly
def test_a_process_that_has_left_its_parent_counts(tmp_path: Path) -> None:
    assert _run(_ORPHAN, tmp_path / "seconds") == 0
    assert int((tmp_path / "seconds").read_text()) >= 1


def _run(program: str, seconds: Path) -> int:
    command = [sys.executable, str(_PROGRAM), str(seconds), sys.executable, "-c", program]
    return subprocess.run(command, check=False).returncode
