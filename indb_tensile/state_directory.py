"""Chooses the state directory of the embedded database and controller, and names the files in it.

The directory is that of the setting `state_dir`, else in the checkout, unless the database's system user cannot enter
that. It holds the cluster (`data`, `run`), the directory of the service's socket (`service`), the process id,
settings and log of the controller of each device, and the traceback of a bug in a command. Besides its virtual
environment and caches, a checkout writes only this directory.
"""

import fcntl
import hashlib
import os
import pwd
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from indb_tensile.cluster import (
    MAX_SOCKET_PATH_BYTES,
    Cluster,
    can_enter,
    find_programs,
    nearest_existing,
    path_fault,
    system_user,
)
from indb_tensile.errors import DatabaseError, PrivilegeError
from indb_tensile.settings_loader import configured_state_directory

STATE_VARIABLE = "TENSILE_STATE_DIR"
_FOLDER = ".tensile"
# Used if `_FOLDER` is unsuitable. Unlike /run and /tmp, these directories are not cleared when the machine starts.
_OF_ROOT = "/var/lib"
_OF_OTHERS = "/var/tmp"  # noqa: S108 - check_owner() refuses another user's directory
_KEPT_PLACE = "it was created there when .tensile was unsuitable"
_PID = re.compile(r"controller-([1-9]\d?)\.pid")
_SERVICE_SOCKET = "0123456789ab-999999999.sock"  # a socket name of the greatest length


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerFiles:
    """The files of one embedded controller. The device `number` counts from 0, as GPUs do."""

    directory: Path
    number: int = 0

    @property
    def pid(self) -> Path:
        """The file with the running controller's process id, its start time and the digest of its settings."""
        return self._path("pid")

    @property
    def log(self) -> Path:
        """The log of the controller, its trainers and its service."""
        return self._path("log")

    @property
    def settings(self) -> Path:
        """All settings (TOML) with which the running controller was started."""
        return self._path("toml")

    def _path(self, suffix: str) -> Path:
        return self.directory / (f"controller-{self.number}.{suffix}" if self.number else f"controller.{suffix}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StateDirectory:
    """The state directory. `reason` says why it is not in the ordinary place; it is empty otherwise."""

    directory: Path
    reason: str = ""

    def controller(self, number: int = 0) -> "ControllerFiles":
        """Return the files of the controller of this machine's device `number`."""
        return ControllerFiles(directory=self.directory, number=number)

    def controllers(self) -> tuple["ControllerFiles", ...]:
        """Return the files of the controllers that were started here and not stopped, by number.

        The first one is always among them.
        """
        numbers = {
            int(match[1]) for path in self.directory.glob("controller-*.pid") if (match := _PID.match(path.name))
        }
        return tuple(self.controller(number) for number in sorted({0} | numbers))

    @property
    def settings(self) -> Path:
        """The settings (TOML) that options of `tensile up` have set."""
        return self.directory / "settings.toml"

    @property
    def service(self) -> Path:
        """The directory of the service's socket."""
        return self.directory / "service"

    @property
    def mps(self) -> Path:
        """The directory of the MPS daemon's pipes and logs (cli/mps_daemon.py). It does not exist without MPS."""
        return self.directory / "mps"

    @property
    def traceback(self) -> Path:
        """The traceback of the last command that ended because of a bug (cli/bug_report.py)."""
        return self.directory / "traceback.txt"

    @property
    def lock(self) -> Path:
        """The file that `tensile up` and `tensile down` lock while they run."""
        return self.directory / "lock"

    def make(self) -> None:
        """Create the directory. Raises DatabaseError if it is unsuitable, PrivilegeError if another user owns it."""
        if not os.path.lexists(self.directory):
            self.directory.mkdir(parents=True)
        self.check_owner()
        self.service.mkdir(exist_ok=True)
        for directory in (self.directory, self.service):
            directory.chmod(0o755)  # the database's user must be able to enter, whatever the umask is
        fault = _fault(self.directory, _database_user())
        if fault:
            raise DatabaseError(fault, hint=f"name another directory with {STATE_VARIABLE}")

    def check_owner(self) -> None:
        """Raise PrivilegeError if another user owns the directory, because its contents cannot be trusted then."""
        try:
            owner = self.directory.lstat().st_uid
        except FileNotFoundError:
            return
        if owner != os.geteuid():
            raise PrivilegeError(
                f"the state directory {self.directory} belongs to the system user {_name_of(owner)}",
                hint=f"run the command as {_name_of(owner)}, or name a directory of your own with {STATE_VARIABLE}",
            )

    @contextmanager
    def locked(self, tell: Callable[[str], None]) -> Iterator[None]:
        """Make any other `tensile up` or `down` on this directory wait. The lock ends with the process.

        `tell` gets a sentence if this call has to wait.
        """
        with self.lock.open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                tell("waiting for another tensile up or down to end")
                fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def cluster(self) -> Cluster:
        """Return the embedded cluster in this directory, created or not.

        Raises DatabaseError if the PostgreSQL version that it needs is not installed.
        """
        programs = find_programs(self._major())
        return Cluster(directory=self.directory, programs=programs, system_user=system_user())

    def has_cluster(self) -> bool:
        """Return whether `tensile up` has created a cluster in this directory; needs no PostgreSQL program."""
        return os.path.isdir(self.directory / "data")  # noqa: PTH112 - Path.is_dir raises without permission

    def _major(self) -> int | None:
        """Return the major version of PostgreSQL that created the cluster, or None."""
        try:
            return int((self.directory / "data" / "PG_VERSION").read_text())
        except (FileNotFoundError, ValueError):
            return None


def find_state_directory(environ: Mapping[str, str]) -> StateDirectory:
    """Return the state directory of this installation: the setting `state_dir`, else the ordinary place.

    Raises RequestError if the settings file cannot be read, and DatabaseError if no directory suits the database's
    system user.
    """
    configured = configured_state_directory(environ)
    if configured is not None:
        chosen, source = configured
        return StateDirectory(directory=Path(os.path.abspath(chosen)), reason=f"{source} says so")  # noqa: PTH100
    ordinary = StateDirectory(directory=_checkout(environ) / _FOLDER)
    user = _database_user()
    fault = _fault(ordinary.directory, user)
    other = StateDirectory(directory=fallback_directory(ordinary.directory), reason=fault or _KEPT_PLACE)
    if not fault and (ordinary.has_cluster() or not other.has_cluster()):
        return ordinary
    second_fault = _fault(other.directory, user)
    if second_fault:
        raise DatabaseError(
            f"there is no suitable directory for the embedded cluster: {fault}; {second_fault}",
            hint=f"name a directory that the system user {user} can enter with {STATE_VARIABLE}",
        )
    return other


def fallback_directory(ordinary: Path) -> Path:
    """Return the directory that replaces an unsuitable `ordinary` directory, unique to this checkout and user."""
    identity = os.fsencode(ordinary) if os.geteuid() == 0 else os.fsencode(ordinary) + b" %d" % os.geteuid()
    name = "tensile-" + hashlib.sha256(identity).hexdigest()[:8]
    return Path(_OF_ROOT if os.geteuid() == 0 else _OF_OTHERS) / name


def _checkout(environ: Mapping[str, str]) -> Path:
    """Return the folder of the ordinary state directory: the checkout, or else the user's folder for state files."""
    top = Path(__file__).resolve().parents[1]
    if (top / "pyproject.toml").exists():
        return top
    return Path(environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser().absolute() / "tensile"


def _database_user() -> str:
    """Return the cluster's system user, or `nobody` if there is no user `postgres` yet."""
    try:
        return system_user()
    except DatabaseError:
        return "nobody"


def _fault(directory: Path, user: str) -> str:
    fault = path_fault(directory)
    if fault:
        return fault
    if len(os.fsencode(directory / "service" / _SERVICE_SOCKET)) > MAX_SOCKET_PATH_BYTES:
        return (
            f"the path of the service's socket below {directory} would have more than {MAX_SOCKET_PATH_BYTES} bytes"
        )
    if not can_enter(directory, user):
        return f"the system user {user}, who runs PostgreSQL, cannot enter {nearest_existing(directory)}"
    if not os.path.lexists(directory) and not os.access(nearest_existing(directory), os.W_OK):
        return f"you may not create {directory}"
    return ""


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"of id {uid}"
