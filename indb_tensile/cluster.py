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
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from psycopg.conninfo import make_conninfo

from indb_tensile.errors import DatabaseError

MAX_SOCKET_PATH_BYTES = 107  # sockaddr_un.sun_path holds 108 with its terminating zero
MINIMUM_MAJOR = 15
DATABASE = "tensile"
ROLES = ("postgres", "tensile_worker", "tensile_reader", "demo")
_SOCKET_NAME = ".s.PGSQL.5432"
UNFINISHED = "new-"  # a data directory that is being made
_NO_PROCESS = 4_194_305  # above the most that Linux gives a process as its number
_LEFTOVER_S = 10.0  # how long processes of a killed server may take to see that it is gone
_LEFTOVER = "pre-existing shared memory block"
# libpq splits lists at commas; pg_ctl starts the server through a shell, in double quotes.
_TROUBLESOME = re.compile(r"""[,"'`$\\%\x00-\x1f\x7f]""")
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
    """One private cluster below `directory`: `data`, `run` (its socket) and `postgres.log`.

    `environment` holds variables that PostgreSQL's programs get beside the invoking process's own.
    """

    directory: Path
    programs: Programs
    system_user: str
    environment: Mapping[str, str] = field(default_factory=dict)

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
        return make_conninfo(host=str(self.run), user=user, dbname=database)

    def exists(self) -> bool:
        """Whether it has been created, running or not."""
        return (self.data / "PG_VERSION").exists()

    def running(self) -> bool:
        """Whether its server runs: the process of the recorded number is the server that recorded it."""
        return _is_server_of(self.data / "postmaster.pid")

    def create(self, roles: Sequence[str] = ROLES) -> None:
        """Make the cluster where there is none; `roles` are those the invoking system user may be.

        It is made beside its place and moved there once whole: what an interruption leaves is removed here.
        Raises DatabaseError where the directory does not suit or `initdb` fails.
        """
        fault = path_fault(self.directory)
        if fault:
            raise DatabaseError(fault, hint="choose another directory with TENSILE_STATE_DIR")
        if os.path.lexists(self.data):
            raise DatabaseError(
                f"{self.data} is there already, and is no cluster", hint=f"move it elsewhere, or: rm -r '{self.data}'"
            )
        self.directory.mkdir(parents=True, exist_ok=True)
        self.run.mkdir(exist_ok=True)
        self.run.chmod(0o755)
        self.log.touch()
        for path in (self.run, self.log):
            _give(path, self.system_user)
        for leftover in self.directory.glob(f"{UNFINISHED}*"):
            shutil.rmtree(leftover, ignore_errors=True)
        made = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=self.directory))
        _give(made, self.system_user)
        _call(
            self,
            [
                *(self.programs.path("initdb"), "-D", str(made), "-U", "postgres", "-E", "UTF8"),
                *("--locale=C.UTF-8", "--auth=peer", "--no-instructions"),
            ],
        )
        self._configure(made, roles)
        made.rename(self.data)

    def map_roles(self, roles: Sequence[str] = ROLES) -> None:
        """Let the invoking system user be these roles in a cluster that was created when there were fewer."""
        path = self.data / "pg_ident.conf"
        before = path.read_text()
        missing = [line for line in _map(self.system_user, roles) if line not in before.splitlines()]
        if missing:
            whole_lines = before if before.endswith("\n") or not before else f"{before}\n"
            path.write_text(whole_lines + "".join(f"{line}\n" for line in missing))
            if self.running():
                _call(self, self._pg_ctl("reload"))

    def _configure(self, data: Path, roles: Sequence[str]) -> None:
        own = (data / "pg_hba.conf", data / "pg_ident.conf", data / "tensile.conf")
        own[0].write_text("local all all peer map=tensile\nlocal replication all reject\n")
        own[1].write_text("".join(f"{line}\n" for line in _map(self.system_user, roles)))
        own[2].write_text(_CONFIGURATION.format(run=self.run))
        with (data / "postgresql.conf").open("a") as configuration:
            configuration.write("include 'tensile.conf'\n")
        for path in own:
            _give(path, self.system_user)

    def start(self) -> None:
        """Start the server and wait until it answers; nothing happens where it runs already.

        What a crash left behind is overcome: a process number that is another's by now, and processes of the
        old server that have not noticed yet.
        """
        if self.running():
            return
        for path in (self.data / "postmaster.pid", self.run / f"{_SOCKET_NAME}.lock"):
            _disown(path)
        deadline = time.monotonic() + _LEFTOVER_S
        while True:
            try:
                _call(self, [*self._pg_ctl("start"), "-l", str(self.log), "-w", "-t", "60"])
            except DatabaseError as error:
                if _LEFTOVER not in error.detail or time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
            else:
                return

    def stop(self, mode: str = "fast") -> None:
        """Stop the server; nothing happens where it does not run."""
        if self.running():
            _call(self, [*self._pg_ctl("stop"), "-m", mode, "-w", "-t", "60"])

    def restart(self, mode: str = "fast") -> None:
        """Stop as `mode` says (`immediate` is a crash) and start again."""
        _call(self, [*self._pg_ctl("restart"), "-m", mode, "-l", str(self.log), "-w", "-t", "60"])

    def _pg_ctl(self, verb: str) -> list[str]:
        return [self.programs.path("pg_ctl"), verb, "-s", "-D", str(self.data)]


def _map(system_user: str, roles: Sequence[str]) -> list[str]:
    """The lines of pg_ident.conf that let the invoking user, and the cluster's, be these roles."""
    users = sorted({_invoking_user(), system_user})
    return [f'tensile "{user}" {role}' for user in users for role in roles]


@contextmanager
def passing(
    roles: Sequence[str] = ROLES,
    settings: str = "",
    *,
    within: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Cluster]:
    """A running cluster with these settings in a new directory, which is removed at the end of the block.

    The directory is made in `within`, or where temporary files are. `environment`: see `Cluster`.
    """
    directory = Path(tempfile.mkdtemp(prefix="tensile-", dir=within))
    directory.chmod(0o755)  # the cluster's system user must be able to enter
    made = Cluster(
        directory=directory, programs=find_programs(), system_user=system_user(), environment=environment or {}
    )
    try:
        made.create(roles)
        with (made.data / "tensile.conf").open("a") as configuration:
            configuration.write(f"fsync = off\n{settings}")  # it need not survive a loss of power
        made.start()
        yield made
    finally:
        made.stop(mode="immediate")
        shutil.rmtree(directory)


def find_programs(major: int | None = None) -> Programs:
    """The newest installed PostgreSQL that has PL/Python, or the one of that major version.

    Raises DatabaseError that names what to install.
    """
    found = [programs for programs in _installed() if programs.major >= MINIMUM_MAJOR]
    for programs in found:
        if major in (None, programs.major):
            return programs
    if major is None:
        raise DatabaseError(
            f"there is no PostgreSQL {MINIMUM_MAJOR} or newer with PL/Python on this machine",
            hint="install Debian's postgresql and postgresql-plpython3-NN packages, or run sh examples/quickstart.sh",
        )
    raise DatabaseError(
        f"the embedded cluster is of PostgreSQL {major}, which is not on this machine with PL/Python",
        hint=f"install Debian's postgresql-{major} and postgresql-plpython3-{major} packages",
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


def path_fault(directory: Path) -> str:
    """What keeps a cluster from living below `directory`, whoever runs it; empty where nothing does."""
    if len(os.fsencode(directory / "run" / _SOCKET_NAME)) > MAX_SOCKET_PATH_BYTES:
        return f"the path of a socket below {directory} would have more than {MAX_SOCKET_PATH_BYTES} bytes"
    if _TROUBLESOME.search(str(directory)):
        return f"the path {directory} has a character that PostgreSQL's programs do not take in a path"
    return ""


def reachable(directory: Path, user: str) -> bool:
    """Whether `user` may enter every folder on the way to `directory`, which need not exist yet."""
    directory = existing(directory)
    if user == _invoking_user():
        return os.access(directory, os.X_OK)
    return subprocess.run(["test", "-x", str(directory)], **_as_user(user), check=False, cwd="/").returncode == 0


def existing(directory: Path) -> Path:
    """The directory, or the nearest folder above it that is there."""
    while not os.path.lexists(directory):
        directory = directory.parent
    return directory


def _recorded(path: Path) -> tuple[int, str] | None:
    """What a server's lock file begins with: process number (negative for a single-user server), data directory."""
    try:
        lines = path.read_text().splitlines()
        return abs(int(lines[0])), lines[1]
    except (FileNotFoundError, ValueError, IndexError):
        return None


def _is_server_of(path: Path) -> bool:
    """Whether that process runs the program `postgres` on that directory, as everybody may read in /proc."""
    recorded = _recorded(path)
    if recorded is None:
        return False
    try:
        arguments = os.fsdecode(Path(f"/proc/{recorded[0]}/cmdline").read_bytes()).split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return Path(arguments[0]).name == "postgres" and recorded[1] in arguments


def _disown(path: Path) -> None:
    """Make a lock file of a server that is gone name no process: its number may be another process's by now.

    Only the number goes. The server still reads in the rest whether anybody uses the old one's shared memory.
    """
    recorded = _recorded(path)
    if recorded is not None and Path(f"/proc/{recorded[0]}").exists():
        rest = path.read_text().partition("\n")[2]
        path.write_text(f"{_NO_PROCESS}\n{rest}")


def _call(cluster: Cluster, command: Sequence[str]) -> None:
    """Run one of PostgreSQL's programs as the cluster's user.

    Output goes to a file: a server started by pg_ctl would hold a pipe open for as long as it lives.
    """
    output = cluster.directory / "pg_ctl.log"
    with output.open("w") as log:
        done = subprocess.run(
            command,
            **_as_user(cluster.system_user),
            env={**os.environ, **cluster.environment},
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


def _as_user(user: str) -> dict[str, Any]:
    """Arguments of `subprocess.run` that make a process wholly that user's; none for the invoking user."""
    if user == _invoking_user():
        return {}
    return {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}


def _invoking_user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError as error:
        raise DatabaseError(
            f"the user id {os.geteuid()} has no name on this machine, and PostgreSQL runs for named users only",
            hint="run as another user, or give this one a line in /etc/passwd",
        ) from error


def _give(path: Path, user: str) -> None:
    if user != _invoking_user():
        entry = pwd.getpwnam(user)
        os.chown(path, entry.pw_uid, entry.pw_gid)


def _installed() -> list[Programs]:
    """Every PostgreSQL with PL/Python: Debian's folders, the newest first, then what is on the PATH."""
    folders = [folder for folder in Path("/usr/lib/postgresql").glob("*/bin") if folder.parent.name.isdigit()]
    found = [Programs(major=int(folder.parent.name), directory=folder) for folder in folders]
    found.sort(key=lambda programs: programs.major, reverse=True)
    on_path = shutil.which("initdb")
    if on_path is not None and Path(on_path).resolve().parent not in folders:
        directory = Path(on_path).resolve().parent
        found.append(Programs(major=_version_of(directory), directory=directory))
    return [programs for programs in found if _has_plpython(programs)]


def _version_of(directory: Path) -> int:
    done = subprocess.run([directory / "initdb", "--version"], capture_output=True, text=True, check=False)
    found = re.search(r"\(PostgreSQL\) (\d+)", done.stdout)
    return int(found[1]) if found else 0


def _has_plpython(programs: Programs) -> bool:
    """Whether it can run a server with PL/Python. Debian's pg_config comes with another package: no need of it."""
    if not all((programs.directory / name).exists() for name in ("initdb", "pg_ctl", "postgres")):
        return False
    share = Path(f"/usr/share/postgresql/{programs.major}")
    if programs.directory.parent.parent != Path("/usr/lib/postgresql"):
        config = programs.path("pg_config")
        if not Path(config).exists():
            return False
        done = subprocess.run([config, "--sharedir"], capture_output=True, text=True, check=False)
        share = Path(done.stdout.strip())
    return (share / "extension" / "plpython3u.control").exists()
