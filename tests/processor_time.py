"""Run a command, and write how many processor seconds it and everything it started have used.

`python tests/processor_time.py FILE COMMAND…` ends with the exit code of the command. Servers that tests start leave
their parent, and nobody's `time` counts them. So this process adopts every orphan below it (PR_SET_CHILD_SUBREAPER),
and waits for each, because the kernel adds the time of a process to its parent's when the parent waits for it.
A process that outlives the command is not counted.
"""

import ctypes
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


def run(command: list[str]) -> tuple[int, float]:
    """Run the command. Returns its exit code, and the processor seconds of all its processes that have ended."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "this process cannot adopt orphans")
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command is interrupted too, and ends in its own way
    first = subprocess.Popen(command, preexec_fn=lambda: signal.signal(signal.SIGINT, before))
    pid, status = os.wait()
    while pid != first.pid:
        pid, status = os.wait()
    code = first.returncode = os.waitstatus_to_exitcode(status)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return code if code >= 0 else 128 - code, used.ru_utime + used.ru_stime


def main() -> None:
    """Run the command of the arguments."""
    file, *command = sys.argv[1:]
    code, seconds = run(command)
    Path(file).write_text(f"{seconds:.0f}\n")
    sys.exit(code)


if __name__ == "__main__":
    main()
