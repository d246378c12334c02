"""The controller as a background process of the embedded service: started once, found again by its process id."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

from indb_tensile.cli.place import Place
from indb_tensile.errors import UnavailableError

_STOP_S = 30.0


def running_pid(place: Place) -> int | None:
    """The running controller's process id; None where none runs (a recycled id is not mistaken for it)."""
    try:
        pid, started = place.controller_pid.read_text().split()
    except (FileNotFoundError, ValueError):
        return None
    return int(pid) if _started(int(pid)) == started else None


def start(place: Place, environment: dict[str, str]) -> int:
    """Start a controller in a session of its own, its records appended to the log; return its process id."""
    with place.controller_log.open("a") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "indb_tensile.worker.controller"],
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd="/",
        )
    place.controller_pid.write_text(f"{process.pid} {_started(process.pid)}\n")
    return process.pid


def stop(place: Place) -> bool:
    """Ask the controller to end and wait until it has; False where none ran.

    Raises UnavailableError where it does not end; it is never killed, so that its jobs are handed back.
    """
    pid = running_pid(place)
    if pid is None:
        place.controller_pid.unlink(missing_ok=True)
        return False
    os.kill(pid, signal.SIGTERM)
    if not _wait_for_end(pid, _STOP_S):
        raise UnavailableError(
            f"the controller (process {pid}) did not end within {_STOP_S:.0f} s",
            hint=f"read {place.controller_log}, then end it with: kill -9 {pid}",
        )
    place.controller_pid.unlink(missing_ok=True)
    return True


def log_tail(path: Path, lines: int = 15) -> str:
    """The last lines of a log, or nothing where there is none."""
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:]) if path.exists() else ""


def _wait_for_end(pid: int, timeout_s: float) -> bool:
    """Whether the process, which need not be a child, ended in time."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], timeout_s)[0])
    finally:
        os.close(descriptor)


def _started(pid: int) -> str | None:
    """When the process started (clock ticks after boot): with its id, its identity. None for a dead one."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text[text.rindex(")") + 2 :].split()
    return None if fields[0] == "Z" else fields[19]
