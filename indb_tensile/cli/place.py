"""Where the embedded service keeps its state: below the checkout, unless the database's user cannot reach that.

The directory holds the cluster (`data`, `run`), the service's socket (`service`), the controller's process id,
settings and log. It is the only thing a checkout writes besides its virtual environment and caches.
"""

import fcntl
import hashlib
import os
import pwd
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from indb_tensile.cli.output import warn
from indb_tensile.cluster import (
    MAX_SOCKET_PATH_BYTES,
    Cluster,
    existing,
    find_programs,
    path_fault,
    reachable,
    system_user,
)
from indb_tensile.errors import DatabaseError, PrivilegeError

STATE_VARIABLE = "TENSILE_STATE_DIR"
_FOLDER = ".tensile"
# Where `_FOLDER` does not do. Neither is cleared at a start of the machine, as /run and /tmp are.
_OF_ROOT = "/var/lib"
_OF_OTHERS = "/var/tmp"  # noqa: S108 - check_owner() says whose it is
_SERVICE_SOCKET = "0123456789ab-999999999.sock"  # the longest name that a service gives its socket


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The state directory and why it is there (`reason` is empty for the ordinary place)."""

    directory: Path
    reason: str = ""

    @property
    def controller_pid(self) -> Path:
        """Holds the running controller's process id, start time and what it was started with."""
        return self.directory / "controller.pid"

    @property
    def controller_log(self) -> Path:
        """The controller's, its trainers' and its service's records."""
        return self.directory / "controller.log"

    @property
    def settings(self) -> Path:
        """The settings (TOML) that `tensile up` was last given."""
        return self.directory / "settings.toml"

    @property
    def running_settings(self) -> Path:
        """All settings (TOML) that the running controller was started with."""
        return self.directory / "controller.toml"

    @property
    def service(self) -> Path:
        """The directory of the service's socket."""
        return self.directory / "service"

    @property
    def mps(self) -> Path:
        """The pipes of MPS's daemon, and in `log` its logs (cli/mps_daemon.py); not there without it."""
        return self.directory / "mps"

    @property
    def lock(self) -> Path:
        """Locked by whoever starts or stops something here."""
        return self.directory / "lock"

    def make(self) -> None:
        """Create the directory. Raises DatabaseError where it does not suit, PrivilegeError where it is another's."""
        if not os.path.lexists(self.directory):
            self.directory.mkdir(parents=True)
        self.check_owner()
        self.service.mkdir(exist_ok=True)
        for directory in (self.directory, self.service):
            directory.chmod(0o755)  # whatever the umask: the database's user must be able to enter
        fault = _fault(self.directory, _database_user())
        if fault:
            raise DatabaseError(fault, hint=f"name another directory with {STATE_VARIABLE}")

    def check_owner(self) -> None:
        """Raise PrivilegeError where the directory is another user's: nothing in it is to be trusted."""
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
    def locked(self) -> Iterator[None]:
        """Keep every other `tensile up` or `down` on this directory waiting. The lock ends with the process."""
        with self.lock.open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                warn("waiting for another tensile up or down to end")
                fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def cluster(self) -> Cluster:
        """The embedded cluster here, created or not. Raises DatabaseError without the PostgreSQL that it needs."""
        programs = find_programs(self._major())
        return Cluster(directory=self.directory, programs=programs, system_user=system_user())

    def has_cluster(self) -> bool:
        """Whether `tensile up` has created one here; needs no PostgreSQL program."""
        return os.path.isdir(self.directory / "data")  # noqa: PTH112 - Path.is_dir raises where one may not look

    def _major(self) -> int | None:
        """The major version that the cluster was created by."""
        try:
            return int((self.directory / "data" / "PG_VERSION").read_text())
        except (FileNotFoundError, ValueError):
            return None


def find_place(environ: Mapping[str, str]) -> Place:
    """The state directory of this installation.

    Raises DatabaseError where no directory suits the database's system user.
    """
    chosen = environ.get(STATE_VARIABLE, "")
    if chosen:
        return Place(directory=Path(os.path.abspath(chosen)), reason=f"{STATE_VARIABLE} says so")  # noqa: PTH100
    ordinary = Place(directory=_checkout(environ) / _FOLDER)
    user = _database_user()
    fault = _fault(ordinary.directory, user)
    other = Place(directory=fallback(ordinary.directory), reason=fault or "it was put there when .tensile did not do")
    if not fault and (ordinary.has_cluster() or not other.has_cluster()):
        return ordinary
    second_fault = _fault(other.directory, user)
    if second_fault:
        raise DatabaseError(
            f"the embedded cluster has no place: {fault}; {second_fault}",
            hint=f"name a directory that the system user {user} can reach with {STATE_VARIABLE}",
        )
    return other


def fallback(ordinary: Path) -> Path:
    """The one directory that stands in for `ordinary`: of this checkout and this user alone."""
    identity = os.fsencode(ordinary) if os.geteuid() == 0 else os.fsencode(ordinary) + b" %d" % os.geteuid()
    name = "tensile-" + hashlib.sha256(identity).hexdigest()[:8]
    return Path(_OF_ROOT if os.geteuid() == 0 else _OF_OTHERS) / name


def _checkout(environ: Mapping[str, str]) -> Path:
    """The folder that holds the package: the checkout, or the user's state folder for an installed package."""
    top = Path(__file__).resolve().parents[2]
    if (top / "pyproject.toml").exists():
        return top
    return Path(environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser().absolute() / "tensile"


def _database_user() -> str:
    """The cluster's system user; `nobody` stands in for `postgres` where that is not installed yet."""
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
    if not reachable(directory, user):
        return f"the system user {user}, who runs PostgreSQL, cannot enter {existing(directory)}"
    if not os.path.lexists(directory) and not os.access(existing(directory), os.W_OK):
        return f"you may not create {directory}"
    return ""


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"of id {uid}"
