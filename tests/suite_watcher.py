"""End what a killed run of the tests leaves behind: `python tests/suite_watcher.py RUN [SCRIPT]`.

Servers that tests start are in sessions of their own, so neither a signal to the test command nor the end of pytest
reaches them. Each process of a run therefore has the run's number in its environment. pytest starts this program and
holds the other end of its input, which ends with pytest, however pytest ends. Then the program ends every process of
the run that is left, and removes the run's directories. With the process id of tests/run.sh as SCRIPT, the end of
that script also ends pytest and the checks beside it.
"""

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RUN = "SUITE_RUN"  # a run of pytest, by its process id
SCRIPT = "SUITE_SCRIPT"  # a run of tests/run.sh, by its process id
_GRACE_S = 5.0  # for processes to end by themselves
_MEMORY = Path("/dev/shm")


def start_watcher() -> "subprocess.Popen[bytes]":
    """Start the program for this process, and mark the processes that this process starts from now on."""
    environment = {name: value for name, value in os.environ.items() if name not in (RUN, SCRIPT)}
    os.environ[RUN] = str(os.getpid())
    arguments = [os.environ[RUN], *filter(None, [os.environ.get(SCRIPT)])]
    return subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, *arguments],
        stdin=subprocess.PIPE,
        env=environment,
        start_new_session=True,
    )


def main(run: str, script: str | None = None) -> None:
    """Wait for the end of the run or of the script, and end what is left."""
    awaited: list[int] = [sys.stdin.fileno()]
    if script is not None:
        with contextlib.suppress(ProcessLookupError):
            awaited.append(os.pidfd_open(int(script)))
    ended, _, _ = select.select(awaited, [], [])
    marks = [f"{RUN}={run}"]
    if ended != awaited[:1] and script is not None:
        marks.append(f"{SCRIPT}={script}")
    end_processes(marks)
    for place in {_MEMORY, Path(tempfile.gettempdir())}:
        for directory in place.glob(f"suite-*{run}-*"):
            shutil.rmtree(directory, ignore_errors=True)


def end_processes(marks: list[str]) -> None:
    """End every process whose environment has one of these variables: by a signal first, and then by SIGKILL."""
    for pid in _marked(marks):
        is_server = _words(pid, "cmdline")[:1] and Path(_words(pid, "cmdline")[0]).name == "postgres"
        _send(pid, signal.SIGQUIT if is_server else signal.SIGTERM)  # PostgreSQL waits for its clients at SIGTERM
    end_s = time.monotonic() + _GRACE_S
    while (left := _marked(marks)) and time.monotonic() < end_s:
        time.sleep(0.05)
    for pid in left:
        _send(pid, signal.SIGKILL)


def _marked(marks: list[str]) -> list[int]:
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    return [pid for pid in pids if not set(marks).isdisjoint(_words(pid, "environ"))]


def _words(pid: int, name: str) -> list[str]:
    """Return the words of a file of /proc, or none for a process that has ended or belongs to another user."""
    try:
        return os.fsdecode(Path(f"/proc/{pid}/{name}").read_bytes()).split("\0")
    except OSError:
        return []


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


if __name__ == "__main__":
    main(*sys.argv[1:])
