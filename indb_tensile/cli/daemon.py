"""Starts, finds and stops an embedded controller, a background process whose id is stored in a file."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from indb_tensile.controller.logrotation import numbered
from indb_tensile.errors import UnavailableError
from indb_tensile.state_directory import ControllerFiles

_STOP_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Daemon:
    """A controller process. `made_from` is the digest of the settings and version with which it was started."""

    pid: int
    made_from: str


def running(files: ControllerFiles) -> Daemon | None:
    """Return the running controller of these files, or None.

    The start time of the process is compared, because another process may have the recorded id.
    """
    daemon, started = _recorded(files) or (None, None)
    return daemon if daemon is not None and _started(daemon.pid) == started else None


def crashed(files: ControllerFiles) -> Daemon | None:
    """Return the controller that ended without `stop`, because it was killed or failed; None if there is none."""
    daemon, started = _recorded(files) or (None, None)
    return daemon if daemon is not None and _started(daemon.pid) != started else None


def start(files: ControllerFiles, environment: Mapping[str, str], made_from: str) -> Daemon:
    """Start a controller in a session of its own. It appends to its log file and rotates it.

    `environment` is the complete environment of the process.
    """
    with files.log.open("a") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "indb_tensile.worker.controller"],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd="/",
        )
    files.pid.write_text(f"{process.pid} {_started(process.pid)} {made_from}\n")
    return Daemon(pid=process.pid, made_from=made_from)


def stop(*controllers: ControllerFiles) -> bool:
    """Ask the controllers to end, and wait until all have ended. Returns False if none was running.

    All are asked before the first one is awaited, so that none claims the jobs that another one returns to the queue.
    A controller is never killed, so that it can hand its jobs back. Raises UnavailableError if one does not end.
    """
    running_ones = [(files, daemon.pid) for files in controllers if (daemon := running(files)) is not None]
    with ExitStack() as stack:
        asked = [(files, pid, _ask_to_end(pid, stack)) for files, pid in running_ones]
        for files, pid, descriptor in asked:
            if descriptor is not None and not select.select([descriptor], [], [], _STOP_S)[0]:
                raise UnavailableError(
                    f"the controller (process {pid}) did not end within {_STOP_S:.0f} s",
                    hint=f"read {files.log}, then end it with: kill -9 {pid}",
                )
    for files in controllers:
        files.pid.unlink(missing_ok=True)
    return bool(running_ones)


def size(log: Path) -> int:
    """Return the current size of a log in bytes, for use as `since` of `tail`."""
    return log.stat().st_size if log.exists() else 0


def tail(log: Path, *, since: int = 0, lines: int = 15) -> str:
    """Return the last lines written to a log after its first `since` bytes, even if the log was rotated since."""
    if not log.exists():
        return ""
    data, older = log.read_bytes(), numbered(log, 1)
    if len(data) >= since:
        data = data[since:]
    elif older.exists():
        data = older.read_bytes()[since:] + data
    return "\n".join(data.decode(errors="replace").splitlines()[-lines:])


def _recorded(files: ControllerFiles) -> tuple[Daemon, str] | None:
    """Read the recorded controller and its start time from the file. Returns None for no or another file."""
    try:
        pid, started, made_from = files.pid.read_text().split()
        return Daemon(pid=int(pid), made_from=made_from), started
    except (FileNotFoundError, ValueError):
        return None


def _ask_to_end(pid: int, stack: ExitStack) -> int | None:
    """Send SIGTERM, and return a descriptor that is readable when the process has ended; None if it has ended.

    The descriptor is closed with the stack.
    """
    try:
        descriptor = os.pidfd_open(pid)  # works for processes that are not children of this one
        stack.callback(os.close, descriptor)
        signal.pidfd_send_signal(descriptor, signal.SIGTERM)
    except ProcessLookupError:
        return None
    return descriptor


def _started(pid: int) -> str | None:
    """Return the start time of a process in clock ticks after boot, or None if it has ended.

    Id and start time together identify a process.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text[text.rindex(")") + 2 :].split()
    return None if fields[0] == "Z" else fields[19]
