"""Creates, starts and stops the embedded PostgreSQL cluster, a private server on a Unix socket only.

PostgreSQL refuses to run as root, so a cluster that root creates runs as the system user `postgres`. A cluster of any
other user runs as that user. The server uses neither passwords nor `trust`: `peer` authentication with a map decides
as which roles the invoking system user may log in.
"""

import os
import pwd
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from psycopg.conninfo import make_conninfo
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

from indb_tensile.errors import DatabaseError

MAX_SOCKET_PATH_BYTES = 107  # sockaddr_un.sun_path holds 108 bytes, with the terminating zero
MINIMUM_MAJOR = 15
DATABASE = "tensile"
ROLES = ("postgres", "tensile_worker", "tensile_reader", "demo")
_SOCKET_NAME = ".s.PGSQL.5432"
UNFINISHED = "new-"  # prefix of a data directory that is still being created
_NO_PROCESS = 4_194_305  # above the largest process id of Linux
_LEFTOVER_S = 10.0  # time limit for processes of a killed server to notice that it is gone
_LEFTOVER_PAUSE_S = 0.2
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
    """The installed programs of one major version of PostgreSQL."""

    major: int
    directory: Path

    def path(self, name: str) -> str:
        """Return the path of the program `name`."""
        return str(self.directory / name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """One private cluster below `directory`: `data`, `run` (the directory of the socket) and `postgres.log`.

    PostgreSQL's programs get the variables of `environment` in addition to those of the invoking process.
    """

    directory: Path
    programs: Programs
    system_user: str
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def data(self) -> Path:
        """The cluster's data directory."""
        return self.directory / "data"

    @property
    def run(self) -> Path:
        """The directory of the server's socket."""
        return self.directory / "run"

    @property
    def log(self) -> Path:
        """The server's log file."""
        return self.directory / "postgres.log"

    def dsn(self, user: str = "postgres", database: str = DATABASE) -> str:
        """Return a libpq connection string. The map in pg_ident.conf must allow the role."""
        return make_conninfo(host=str(self.run), user=user, dbname=database)

    def exists(self) -> bool:
        """Return whether the cluster has been created, running or not."""
        return (self.data / "PG_VERSION").exists()

    def running(self) -> bool:
        """Return whether the server runs. The process with the recorded id must be the server of this directory."""
        return _is_server_of(self.data / "postmaster.pid")

    def create(self, roles: Sequence[str] = ROLES) -> None:
        """Create the cluster. The invoking system user may log in as each of `roles`.

        The data directory is created under a temporary name and renamed when it is complete, so an interruption
        leaves no incomplete cluster; the next call removes the remains. Raises DatabaseError if the path of the
        directory is unsuitable, if a file is in the way, or if `initdb` fails.
        """
        fault = path_fault(self.directory)
        if fault:
            raise DatabaseError(fault, hint="choose another directory with TENSILE_STATE_DIR")
        if os.path.lexists(self.data):
            raise DatabaseError(
                f"{self.data} exists already and is not a cluster", hint=f"move it elsewhere, or: rm -r '{self.data}'"
            )
        self.directory.mkdir(parents=True, exist_ok=True)
        self.run.mkdir(exist_ok=True)
        self.run.chmod(0o755)
        self.log.touch()
        for path in (self.run, self.log):
            _give(path, self.system_user)
        for leftover in self.directory.glob(f"{UNFINISHED}*"):
            shutil.rmtree(leftover, ignore_errors=True)
        new_data = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=self.directory))
        _give(new_data, self.system_user)
        _call(
            self,
            [
                *(self.programs.path("initdb"), "-D", str(new_data), "-U", "postgres", "-E", "UTF8"),
                *("--locale=C.UTF-8", "--auth=peer", "--no-instructions"),
            ],
        )
        self._configure(new_data, roles)
        new_data.rename(self.data)

    def map_roles(self, roles: Sequence[str] = ROLES) -> None:
        """Allow the invoking system user to log in as `roles`, in a cluster that was created with fewer roles."""
        path = self.data / "pg_ident.conf"
        before = path.read_text()
        missing = [line for line in _map_lines(self.system_user, roles) if line not in before.splitlines()]
        if missing:
            whole_lines = before if before.endswith("\n") or not before else f"{before}\n"
            path.write_text(whole_lines + "".join(f"{line}\n" for line in missing))
            if self.running():
                _call(self, self._pg_ctl("reload"))

    def _configure(self, data: Path, roles: Sequence[str]) -> None:
        files = (data / "pg_hba.conf", data / "pg_ident.conf", data / "tensile.conf")
        files[0].write_text("local all all peer map=tensile\nlocal replication all reject\n")
        files[1].write_text("".join(f"{line}\n" for line in _map_lines(self.system_user, roles)))
        files[2].write_text(_CONFIGURATION.format(run=self.run))
        with (data / "postgresql.conf").open("a") as configuration:
            configuration.write("include 'tensile.conf'\n")
        for path in files:
            _give(path, self.system_user)

    def start(self) -> None:
        """Start the server and wait until it answers. Does nothing if the server runs already.

        Handles the remains of a crash: a lock file whose process id now belongs to another process, and processes of
        the old server that have not noticed the crash yet.
        """
        if self.running():
            return
        for path in (self.data / "postmaster.pid", self.run / f"{_SOCKET_NAME}.lock"):
            _clear_process_id(path)
        attempts = Retrying(
            retry=retry_if_exception(lambda error: isinstance(error, DatabaseError) and _LEFTOVER in error.detail),
            wait=wait_fixed(_LEFTOVER_PAUSE_S),
            stop=stop_after_delay(_LEFTOVER_S),
            reraise=True,
        )
        attempts(_call, self, [*self._pg_ctl("start"), "-l", str(self.log), "-w", "-t", "60"])

    def stop(self, mode: str = "fast") -> None:
        """Stop the server. Does nothing if the server does not run."""
        if self.running():
            _call(self, [*self._pg_ctl("stop"), "-m", mode, "-w", "-t", "60"])

    def restart(self, mode: str = "fast") -> None:
        """Stop the server in the given mode of pg_ctl (`immediate` is a crash) and start it again."""
        _call(self, [*self._pg_ctl("restart"), "-m", mode, "-l", str(self.log), "-w", "-t", "60"])

    def _pg_ctl(self, verb: str) -> list[str]:
        return [self.programs.path("pg_ctl"), verb, "-s", "-D", str(self.data)]


def _map_lines(system_user: str, roles: Sequence[str]) -> list[str]:
    """Return the lines of pg_ident.conf that allow these roles to the invoking user and to the cluster's user."""
    users = sorted({_invoking_user(), system_user})
    return [f'tensile "{user}" {role}' for user in users for role in roles]


@contextmanager
def temporary_cluster(
    roles: Sequence[str] = ROLES,
    settings: str = "",
    *,
    within: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Cluster]:
    """Run a temporary cluster with these settings. The cluster and its directory are removed after the block.

    The directory is created in `within`, or else where temporary files are. `environment`: see `Cluster`.
    """
    directory = Path(tempfile.mkdtemp(prefix="tensile-", dir=within))
    directory.chmod(0o755)  # the cluster's system user must be able to enter
    cluster = Cluster(
        directory=directory, programs=find_programs(), system_user=system_user(), environment=environment or {}
    )
    try:
        cluster.create(roles)
        with (cluster.data / "tensile.conf").open("a") as configuration:
            configuration.write(f"fsync = off\n{settings}")  # a temporary cluster need not survive a loss of power
        cluster.start()
        yield cluster
    finally:
        cluster.stop(mode="immediate")
        shutil.rmtree(directory)


def find_programs(major: int | None = None) -> Programs:
    """Return the programs of the newest installed PostgreSQL that has PL/Python, or those of version `major`.

    Raises DatabaseError, whose hint names the packages to install.
    """
    candidates = [programs for programs in _installed() if programs.major >= MINIMUM_MAJOR]
    for programs in candidates:
        if major in (None, programs.major):
            return programs
    if major is None:
        raise DatabaseError(
            f"there is no PostgreSQL {MINIMUM_MAJOR} or newer with PL/Python on this machine",
            hint="install Debian's postgresql and postgresql-plpython3-NN packages, or run sh examples/quickstart.sh",
        )
    raise DatabaseError(
        f"the embedded cluster belongs to PostgreSQL {major}, which is not installed here with PL/Python",
        hint=f"install Debian's postgresql-{major} and postgresql-plpython3-{major} packages",
    )


def system_user() -> str:
    """Return the system user that runs the cluster: `postgres` for root, else the invoking user.

    Raises DatabaseError if root has no user `postgres` to run it as.
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
    """Return why no user can run a cluster below `directory`, or "" if its path suits."""
    if len(os.fsencode(directory / "run" / _SOCKET_NAME)) > MAX_SOCKET_PATH_BYTES:
        return f"the path of a socket below {directory} would have more than {MAX_SOCKET_PATH_BYTES} bytes"
    if _TROUBLESOME.search(str(directory)):
        return f"the path {directory} has a character that PostgreSQL's programs do not take in a path"
    return ""


def can_enter(directory: Path, user: str) -> bool:
    """Return whether `user` may enter every folder on the path to `directory`, which need not exist yet."""
    directory = nearest_existing(directory)
    if user == _invoking_user():
        return os.access(directory, os.X_OK)
    return subprocess.run(["test", "-x", str(directory)], **_as_user(user), check=False, cwd="/").returncode == 0


def nearest_existing(directory: Path) -> Path:
    """Return the directory, or the nearest folder above it that exists."""
    while not os.path.lexists(directory):
        directory = directory.parent
    return directory


def _recorded(path: Path) -> tuple[int, str] | None:
    """Read a server's process id and data directory from its lock file. Returns None for no or another file.

    A single-user server records its process id as a negative number.
    """
    try:
        lines = path.read_text().splitlines()
        return abs(int(lines[0])), lines[1]
    except (FileNotFoundError, ValueError, IndexError):
        return None


def _is_server_of(path: Path) -> bool:
    """Return whether the recorded process runs `postgres` on the recorded directory, according to /proc."""
    recorded = _recorded(path)
    if recorded is None:
        return False
    try:
        arguments = os.fsdecode(Path(f"/proc/{recorded[0]}/cmdline").read_bytes()).split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return Path(arguments[0]).name == "postgres" and recorded[1] in arguments


def _clear_process_id(path: Path) -> None:
    """Replace the process id in a dead server's lock file, because another process may have that id by now.

    The rest of the file stays: from it the new server reads whether a process still uses the old shared memory.
    """
    recorded = _recorded(path)
    if recorded is not None and Path(f"/proc/{recorded[0]}").exists():
        rest = path.read_text().partition("\n")[2]
        path.write_text(f"{_NO_PROCESS}\n{rest}")


def _call(cluster: Cluster, command: Sequence[str]) -> None:
    """Run one of PostgreSQL's programs as the cluster's user. Raises DatabaseError if it fails.

    The output goes to a file, because a server started by pg_ctl would hold a pipe open for as long as it runs.
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
    """Return the arguments of `subprocess.run` that run a process with only this user's rights.

    There are none for the invoking user.
    """
    if user == _invoking_user():
        return {}
    return {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}


def _invoking_user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError as error:
        raise DatabaseError(
            f"the user id {os.geteuid()} has no name on this machine, and PostgreSQL runs only for users with a name",
            hint="run as another user, or give this one a line in /etc/passwd",
        ) from error


def _give(path: Path, user: str) -> None:
    if user != _invoking_user():
        entry = pwd.getpwnam(user)
        os.chown(path, entry.pw_uid, entry.pw_gid)


def _installed() -> list[Programs]:
    """Return every PostgreSQL with PL/Python: Debian's folders, the newest first, then the one on the PATH."""
    folders = [folder for folder in Path("/usr/lib/postgresql").glob("*/bin") if folder.parent.name.isdigit()]
    installations = [Programs(major=int(folder.parent.name), directory=folder) for folder in folders]
    installations.sort(key=lambda programs: programs.major, reverse=True)
    on_path = shutil.which("initdb")
    if on_path is not None and Path(on_path).resolve().parent not in folders:
        directory = Path(on_path).resolve().parent
        installations.append(Programs(major=_version_of(directory), directory=directory))
    return [programs for programs in installations if _has_plpython(programs)]


def _version_of(directory: Path) -> int:
    done = subprocess.run([directory / "initdb", "--version"], capture_output=True, text=True, check=False)
    match = re.search(r"\(PostgreSQL\) (\d+)", done.stdout)
    return int(match[1]) if match else 0


def _has_plpython(programs: Programs) -> bool:
    """Return whether these programs can run a server with PL/Python.

    Debian's pg_config is in another package, so Debian's folders are checked without it.
    """
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
