"""Where the embedded service keeps its state: below the checkout, unless the database's user cannot reach that.

The directory holds the cluster (`data`, `run`), the service's socket (`service`), the controller's process id,
settings and log. It is the only thing a checkout writes besides its virtual environment and caches.
"""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from indb_tensile.cli.cluster import Cluster, find_programs, reachable, socket_fits, system_user
from indb_tensile.errors import DatabaseError

STATE_VARIABLE = "TENSILE_STATE_DIR"
_FOLDER = ".tensile"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The state directory and why it is there (`reason` is empty for the ordinary place)."""

    directory: Path
    reason: str = ""

    @property
    def controller_pid(self) -> Path:
        """Holds the running controller's process id and start time."""
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
    def service(self) -> Path:
        """The directory of the service's socket."""
        return self.directory / "service"

    def make(self) -> None:
        """Create the directory. Raises DatabaseError where it belongs to somebody else."""
        self.directory.mkdir(parents=True, exist_ok=True)
        if self.directory.stat().st_uid != os.geteuid():
            raise DatabaseError(
                f"the state directory {self.directory} belongs to another system user",
                hint=f"remove it, or name another with {STATE_VARIABLE}",
            )
        self.directory.chmod(0o755)  # the database's user, and whoever uses psql, must be able to enter
        self.service.mkdir(exist_ok=True)

    def cluster(self) -> Cluster:
        """The embedded cluster here, created or not. Raises DatabaseError without PostgreSQL."""
        return Cluster(directory=self.directory, programs=find_programs(), system_user=system_user())

    def has_cluster(self) -> bool:
        """Whether `tensile up` has created one here; needs no PostgreSQL program."""
        return (self.directory / "data").is_dir()


def find_place(environ: dict[str, str]) -> Place:
    """The state directory of this installation.

    Raises DatabaseError where no directory suits the database's system user.
    """
    chosen = environ.get(STATE_VARIABLE, "")
    if chosen:
        return Place(directory=Path(chosen).absolute(), reason=f"{STATE_VARIABLE} says so")
    ordinary = _checkout() / _FOLDER
    user = _database_user()
    fault = _fault(ordinary, user)
    if not fault:
        return Place(directory=ordinary)
    other = _fallback(ordinary)
    if _fault(other, user):
        raise DatabaseError(
            f"the embedded cluster has no place: {fault}; {_fault(other, user)}",
            hint=f"name a directory that the system user {user} can reach with {STATE_VARIABLE}",
        )
    return Place(directory=other, reason=fault)


def _checkout() -> Path:
    """The folder that holds the package: the checkout, or the user's state folder for an installed package."""
    top = Path(__file__).resolve().parents[2]
    if (top / "pyproject.toml").exists():
        return top
    return Path(os.environ.get("XDG_STATE_HOME", "~/.local/state")).expanduser() / "tensile"


def _database_user() -> str:
    """The cluster's system user; `postgres` stands in where it is not installed yet."""
    try:
        return system_user()
    except DatabaseError:
        return "nobody"


def _fault(directory: Path, user: str) -> str:
    if not socket_fits(directory):
        return f"the path of a socket below {directory} would be too long"
    if not reachable(directory, user):
        return f"the system user {user}, who runs PostgreSQL, cannot enter {directory.parent}"
    return ""


def _fallback(ordinary: Path) -> Path:
    name = "tensile-" + hashlib.sha256(os.fsencode(ordinary)).hexdigest()[:8]
    return Path("/var/lib" if os.geteuid() == 0 else "/var/tmp") / name  # noqa: S108 - make() checks whose it is
