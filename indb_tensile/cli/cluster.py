"""The embedded PostgreSQL cluster: private, on a Unix socket only, run by its own system user when started by root.

PostgreSQL refuses to run as root, so root hands the cluster to the system user `postgres`; anyone else runs it
as themselves. No password and no `trust`: `peer` authentication with a map says which roles the invoking
system user may be.
"""

import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from indb_tensile.errors import DatabaseError

MAX_SOCKET_PATH_BYTES = 107  # sockaddr_un.sun_path holds 108 with its terminating zero
MINIMUM_MAJOR = 15
DATABASE = "tensile"
ROLES = ("postgres", "tensile_worker", "demo")
_SOCKET_NAME = ".s.PGSQL.5432"
_CONFIGURATION = """\
listen_addresses = ''
port = 5432
unix_socket_directories = '{run}'
unix_socket_permissions = 0777
max_connections = 100
shared_buffers = 128MB
logging_collector = off
log_line_prefix = '%m [%p] %q%u@%d '
lc_messages = 'C'
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """Where one version of PostgreSQL's programs are."""

    major: int
    directory: Path

    def path(self, name: str) -> str:
        """The program's path."""
        return str(self.directory / name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """One private cluster below `directory`: `data`, `run` (its socket) and `postgres.log`."""

    directory: Path
    programs: Programs
    system_user: str

    @property
    def data(self) -> Path:
        """The data directory."""
        return self.directory / "data"

    @property
    def run(self) -> Path:
        """The directory of the server's socket."""
        return self.directory / "run"

    @property
    def log(self) -> Path:
        """The server's log."""
        return self.directory / "postgres.log"

    def dsn(self, user: str = "postgres", database: str = DATABASE) -> str:
        """A libpq connection string; the role must be one that the map allows."""
        return f"host={self.run} user={user} dbname={database}"

    def exists(self) -> bool:
        """Whether it has been created, running or not."""
        return _status(self) is not None

    def running(self) -> bool:
        """Whether its server runs."""
        return _status(self) == 0

    def create(self, roles: Sequence[str] = ROLES) -> None:
        """Make the cluster where there is none; `roles` are those the invoking system user may be.

        Raises DatabaseError where the socket's path would be too long or `initdb` fails.
        """
        if not socket_fits(self.directory):
            raise DatabaseError(
                f"the socket's path below {self.directory} has more than {MAX_SOCKET_PATH_BYTES} bytes",
                hint="choose a shorter directory with TENSILE_STATE_DIR",
            )
        self.directory.mkdir(parents=True, exist_ok=True)
        for path, mode in ((self.data, 0o700), (self.run, 0o755)):
            path.mkdir(exist_ok=True)
            path.chmod(mode)
            _give(path, self.system_user)
        self.log.touch()
        _give(self.log, self.system_user)
        _call(
            self,
            [
                *(self.programs.path("initdb"), "-D", str(self.data), "-U", "postgres", "-E", "UTF8"),
                *("--locale=C.UTF-8", "--auth=peer", "--no-instructions"),
            ],
        )
        self._configure(roles)

    def _configure(self, roles: Sequence[str]) -> None:
        own = (self.data / "pg_hba.conf", self.data / "pg_ident.conf", self.data / "tensile.conf")
        system_users = sorted({_invoking_user(), self.system_user})
        own[0].write_text("local all all peer map=tensile\nlocal replication all reject\n")
        own[1].write_text("".join(f"tensile {user} {role}\n" for user in system_users for role in roles))
        own[2].write_text(_CONFIGURATION.format(run=self.run))
        with (self.data / "postgresql.conf").open("a") as configuration:
            configuration.write("include 'tensile.conf'\n")
        for path in own:
            _give(path, self.system_user)

    def start(self) -> None:
        """Start the server and wait until it answers; nothing happens where it runs already."""
        if not self.running():
            _call(self, [*self._pg_ctl("start"), "-l", str(self.log), "-w", "-t", "60"])

    def stop(self, mode: str = "fast") -> None:
        """Stop the server; nothing happens where it does not run."""
        if self.running():
            _call(self, [*self._pg_ctl("stop"), "-m", mode, "-w", "-t", "60"])

    def restart(self, mode: str = "fast") -> None:
        """Stop as `mode` says (`immediate` is a crash) and start again."""
        _call(self, [*self._pg_ctl("restart"), "-m", mode, "-l", str(self.log), "-w", "-t", "60"])

    def _pg_ctl(self, verb: str) -> list[str]:
        return [self.programs.path("pg_ctl"), verb, "-s", "-D", str(self.data)]


def find_programs() -> Programs:
    """The newest installed PostgreSQL that has PL/Python.

    Raises DatabaseError that names what to install.
    """
    for directory in sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=_major_of, reverse=True):
        if _major_of(directory) >= MINIMUM_MAJOR and _has_plpython(directory):
            return Programs(major=_major_of(directory), directory=directory)
    on_path = shutil.which("initdb")
    if on_path is not None and _has_plpython(Path(on_path).resolve().parent):
        directory = Path(on_path).resolve().parent
        return Programs(major=_version_of(directory), directory=directory)
    raise DatabaseError(
        f"there is no PostgreSQL {MINIMUM_MAJOR} or newer with PL/Python on this machine",
        hint="install Debian's postgresql and postgresql-plpython3-NN packages, or run examples/quickstart.sh",
    )


def system_user() -> str:
    """The system user that runs the cluster: `postgres` when root asks, else the invoking user.

    Raises DatabaseError where root asks and there is no user `postgres`.
    """
    if os.geteuid() != 0:
        return _invoking_user()
    try:
        return pwd.getpwnam("postgres").pw_name
    except KeyError as error:
        raise DatabaseError(
            "PostgreSQL does not run as root, and there is no system user postgres",
            hint="install Debian's postgresql package, which creates it",
        ) from error


def socket_fits(directory: Path) -> bool:
    """Whether the server's socket below `directory` stays within what the system allows."""
    return len(os.fsencode(directory / "run" / _SOCKET_NAME)) <= MAX_SOCKET_PATH_BYTES


def reachable(directory: Path, user: str) -> bool:
    """Whether `user` may enter every folder on the way to `directory`, which need not exist yet."""
    while not directory.exists():
        directory = directory.parent
    if os.geteuid() != 0:
        return os.access(directory, os.X_OK)
    return subprocess.run(["test", "-x", str(directory)], user=user, check=False, cwd="/").returncode == 0


def _status(cluster: Cluster) -> int | None:
    """None: not created; 0: running; 3: stopped (pg_ctl's own codes)."""
    if not (cluster.data / "PG_VERSION").exists():
        return None
    command = [cluster.programs.path("pg_ctl"), "status", "-D", str(cluster.data)]
    done = subprocess.run(command, user=_other_user(cluster), capture_output=True, check=False, cwd="/")
    return done.returncode


def _call(cluster: Cluster, command: Sequence[str]) -> None:
    """Run one of PostgreSQL's programs as the cluster's user.

    Output goes to a file: a server started by pg_ctl would hold a pipe open for as long as it lives.
    """
    output = cluster.directory / "pg_ctl.log"
    with output.open("w") as log:
        done = subprocess.run(
            command,
            user=_other_user(cluster),
            group=_other_user(cluster),
            extra_groups=None if _other_user(cluster) is None else [],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
            cwd="/",
        )
    if done.returncode != 0:
        last = "\n".join([*output.read_text().splitlines()[-5:], *_tail(cluster.log)])
        raise DatabaseError(
            f"{Path(command[0]).name} {command[1]} failed with exit code {done.returncode}",
            detail=last,
            hint=f"the whole log is in {cluster.log}",
        )


def _tail(path: Path) -> list[str]:
    return path.read_text(errors="replace").splitlines()[-5:] if path.exists() else []


def _other_user(cluster: Cluster) -> str | None:
    return cluster.system_user if cluster.system_user != _invoking_user() else None


def _invoking_user() -> str:
    return pwd.getpwuid(os.geteuid()).pw_name


def _give(path: Path, user: str) -> None:
    if user != _invoking_user():
        entry = pwd.getpwnam(user)
        os.chown(path, entry.pw_uid, entry.pw_gid)


def _major_of(directory: Path) -> int:
    name = directory.parent.name
    return int(name) if name.isdigit() else 0


def _version_of(directory: Path) -> int:
    done = subprocess.run([directory / "postgres", "--version"], capture_output=True, text=True, check=True)
    found = re.search(r"\(PostgreSQL\) (\d+)", done.stdout)
    return int(found[1]) if found else 0


def _has_plpython(directory: Path) -> bool:
    done = subprocess.run([directory / "pg_config", "--sharedir"], capture_output=True, text=True, check=False)
    share = (
        Path(done.stdout.strip()) if done.returncode == 0 else Path(f"/usr/share/postgresql/{_major_of(directory)}")
    )
    return (share / "extension" / "plpython3u.control").exists()
