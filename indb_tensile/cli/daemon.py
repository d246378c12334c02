"""Starts, finds and stops the embedded controller, a background process whose id is stored in a file."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from indb_tensile.controller.logrotation import numbered
from indb_tensile.errors import UnavailableError
from indb_tensile.state_directory import StateDirectory

_STOP_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Daemon:
    """A controller process. `made_from` is the digest of the settings and version with which it was started."""

    pid: int
    made_from: str


def running(place: StateDirectory) -> Daemon | None:
    """Return the running controller of this state directory, or None.

    The start time of the process is compared, because another process may have the recorded id.
    """
    daemon, started = _recorded(place) or (None, None)
    return daemon if daemon is not None and _started(daemon.pid) == started else None


def crashed(place: StateDirectory) -> Daemon | None:
    """Return the controller that ended without `stop`, because it was killed or failed; None if there is none."""
    daemon, started = _recorded(place) or (None, None)
    return daemon if daemon is not None and _started(daemon.pid) != started else None


def start(place: StateDirectory, environment: Mapping[str, str], made_from: str) -> Daemon:
    """Start a controller in a session of its own. It appends to its log file and rotates it.

    `environment` is the complete environment of the process.
    """
    with place.controller_log.open("a") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "indb_tensile.worker.controller"],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd="/",
        )
    place.controller_pid.write_text(f"{process.pid} {_started(process.pid)} {made_from}\n")
    return Daemon(pid=process.pid, made_from=made_from)


def stop(place: StateDirectory) -> bool:
    """Ask the controller to end, and wait until it has ended. Returns False if none was running.

    The controller is never killed, so that it can hand its jobs back. Raises UnavailableError if it does not end.
    """
    daemon = running(place)
    if daemon is not None:
        _end(place, daemon.pid)
    place.controller_pid.unlink(missing_ok=True)
    return daemon is not None


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


def _recorded(place: StateDirectory) -> tuple[Daemon, str] | None:
    """Read the recorded controller and its start time from the file. Returns None for no or another file."""
    try:
        pid, started, made_from = place.controller_pid.read_text().split()
        return Daemon(pid=int(pid), made_from=made_from), started
    except (FileNotFoundError, ValueError):
        return None


def _end(place: StateDirectory, pid: int) -> None:
    try:
        descriptor = os.pidfd_open(pid)  # works for processes that are not children of this one
    except ProcessLookupError:
        return
    try:
        signal.pidfd_send_signal(descriptor, signal.SIGTERM)
        if not select.select([descriptor], [], [], _STOP_S)[0]:
            raise UnavailableError(
                f"the controller (process {pid}) did not end within {_STOP_S:.0f} s",
                hint=f"read {place.controller_log}, then end it with: kill -9 {pid}",
            )
    except ProcessLookupError:
        return
    finally:
        os.close(descriptor)


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
