"""What a storm disturbs: a private server, on a small disk where one can be had, and controllers that talk to it.

Each controller reaches the server through a forwarder of its own, and each has a clock of its own where libfaketime
is installed. What has died is started again by `mend`, as a service manager does.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from psycopg import sql
from psycopg.conninfo import make_conninfo

from indb_tensile import config
from indb_tensile.bench import chaos_processes as processes
from indb_tensile.bench.chaos_clock import Clock, find_library
from indb_tensile.bench.chaos_disk import Disk, small_disk
from indb_tensile.bench.chaos_events import Kind
from indb_tensile.bench.chaos_forwarder import Forwarder
from indb_tensile.catalog import install
from indb_tensile.catalog.connection import connect
from indb_tensile.catalog.queries import parse
from indb_tensile.cluster import Cluster, passing
from indb_tensile.errors import DatabaseError

SQL = parse(Path(__file__).with_name("chaos.sql").read_text(encoding="utf-8"))
DATABASE = "chaos"
PURPOSE = "tensile bench chaos"
_WORKERS = ("tensile_worker", "tensile_reader")  # the second comes with a version that reads tables as it
_MARK = "TENSILE_BENCH_CHAOS"  # in the environment of all that a rig starts, with its directory
_END_S = 60.0
_SERVER = """\
max_connections = 60
max_wal_size = 64MB
min_wal_size = 32MB
checkpoint_timeout = 30s
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """How a rig is built."""

    owners: Sequence[str]
    controllers: int
    lease_s: float
    kinds: Sequence[Kind]


@dataclass(slots=True, kw_only=True)
class Controller:
    """One controller, what it is started with, and what it talks through."""

    environment: Mapping[str, str]
    log: Path
    state: Path
    forwarder: Forwarder
    clock: Clock | None
    process: subprocess.Popen[bytes] | None = None
    ended_badly: list[int] = field(default_factory=list)  # exit codes of those that nobody killed

    @property
    def pid(self) -> int:
        """The running controller's process id; 0 where none runs."""
        return 0 if self.process is None or self.process.poll() is not None else self.process.pid

    def start(self) -> None:
        """Start it, and do not wait until it is ready."""
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "indb_tensile.worker.controller"],
                env={**_others(os.environ), **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd="/",
            )

    def mend(self) -> None:
        """Start it again where it has ended; an end that was neither a kill nor asked for is kept."""
        if self.pid:
            return
        self._tidy()
        if self.process is not None and self.process.returncode not in (0, -signal.SIGKILL):
            self.ended_badly.append(self.process.returncode)
        self.start()

    def end(self) -> None:
        """Ask it to end, and wait; one that does not is killed."""
        if self.process is None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        if code:
            self.ended_badly.append(code)

    def kill(self) -> None:
        """Kill it as nothing can prepare for."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self._tidy()

    def _tidy(self) -> None:
        if self.process is not None:
            Clock.tidy(self.process.pid)


@dataclass(slots=True, kw_only=True)
class Rig:
    """The server and its controllers. `left_out` says which kinds of event this machine cannot have, and why."""

    directory: Path
    cluster: Cluster
    disk: Disk | None
    clock: Clock | None  # the server's
    controllers: Sequence[Controller]
    left_out: Mapping[Kind, str]

    def dsn(self, user: str = "postgres") -> str:
        """A connection string to the server itself, whatever becomes of the forwarders."""
        return self.cluster.dsn(user=user, database=DATABASE)

    def mend(self) -> None:
        """Start again what has died. A server that cannot start now is tried again by the next call."""
        with suppress(DatabaseError):
            self.cluster.start()
        for controller in self.controllers:
            controller.mend()

    def postmaster(self) -> int:
        """The server's process id; 0 where none runs."""
        return int((self.cluster.data / "postmaster.pid").read_text().split()[0]) if self.cluster.running() else 0

    def workers_processes(self, name: str) -> list[int]:
        """Process ids of what the controllers started under this name: trainer, service, learner, analyst."""
        parents = {controller.pid for controller in self.controllers}
        return [p.pid for p in processes.every() if p.parent in parents and p.name == f"tensile {name}"[:15]]

    def backends(self) -> list[int]:
        """Process ids of the server's processes that work for controllers."""
        server = self.postmaster()
        return [p.pid for p in processes.every() if server and p.parent == server and p.serves(_WORKERS)]

    def processes(self) -> list[int]:
        """Process ids of all that the rig's controllers have started, and of the controllers."""
        return processes.marked(f"{_MARK}={self.directory}")

    def close(self) -> None:
        """End all controllers and what they have left running."""
        for controller in self.controllers:
            controller.forwarder.heal()
            controller.kill()
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for controller in self.controllers:
            controller.forwarder.close()

    @property
    def state_files(self) -> list[Path]:
        """Files that controllers keep between their lives, sockets of services among them."""
        kept = [path for controller in self.controllers for path in controller.state.rglob("*")]
        return sorted(path for path in (*kept, *(self.directory / "service").iterdir()) if not path.is_dir())


@contextmanager
def set_up(design: Design) -> Iterator[Rig]:
    """A running server with the catalog and the owners' roles, and controllers that have yet to be started."""
    with ExitStack() as stack:
        directory = Path(tempfile.mkdtemp(prefix="chaos-"))
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        directory.chmod(0o755)
        left_out: dict[Kind, str] = {}
        disk = stack.enter_context(small_disk(directory / "disk")) if Kind.FILL_DISK in design.kinds else None
        if disk is not None and disk.fault:
            left_out[Kind.FILL_DISK] = disk.fault
            disk = None
        clocks = {Kind.STEP_SERVER_CLOCK, Kind.STEP_CONTROLLER_CLOCK} & set(design.kinds)
        library = find_library() if clocks else None
        if library is None:
            left_out |= dict.fromkeys(clocks, "libfaketime is not installed")
        clock = Clock(directory / "server-clock", library) if library else None
        cluster = stack.enter_context(
            passing(
                ("postgres", *_WORKERS, *design.owners),
                _SERVER,
                within=disk.directory if disk else directory,
                environment=clock.environment if clock else None,
            )
        )
        (directory / "service").mkdir()
        _install(cluster, design.owners, directory / "service")
        rig = Rig(
            directory=directory,
            cluster=cluster,
            disk=disk,
            clock=clock,
            controllers=[
                _controller(directory, number, cluster, design.lease_s, library)
                for number in range(design.controllers)
            ],
            left_out=left_out,
        )
        stack.callback(rig.close)
        yield rig


def _install(cluster: Cluster, owners: Sequence[str], service: Path) -> None:
    """The database, the catalog, and a role with a schema of its own for each owner."""
    name = sql.Identifier
    with connect(cluster.dsn(database="postgres"), application_name=PURPOSE) as connection:
        connection.execute(sql.SQL(SQL["create_database"]).format(name(DATABASE)))
    with connect(cluster.dsn(database=DATABASE), application_name=PURPOSE) as connection:
        install.install(connection)
        connection.execute(SQL["set_socket_directory"], {"directory": str(service)})
        workers = [row[0] for row in connection.execute(SQL["worker_roles"])]
        for role in workers:
            connection.execute(sql.SQL(SQL["allow_login"]).format(name(role)))
        for owner in owners:
            connection.execute(sql.SQL(SQL["create_owner"]).format(name(owner)))
            connection.execute(sql.SQL(SQL["grant_use"]).format(name(owner)))
            connection.execute(sql.SQL(SQL["create_schema"]).format(name(owner), name(owner)))
            for role in workers:
                connection.execute(sql.SQL(SQL["grant_schema"]).format(name(owner), name(role)))


def _controller(directory: Path, number: int, cluster: Cluster, lease_s: float, library: Path | None) -> Controller:
    own = directory / f"controller{number}"
    state = own / "state"
    state.mkdir(parents=True)
    link = own / ".s.PGSQL.5432"
    clock = Clock(own / "clock", library) if library else None
    settings: dict[str, object] = {
        "dsn": make_conninfo(host=str(own), user="tensile_worker", dbname=DATABASE),
        "device": "emulated",
        "capacity_bytes": 64 * config.MIB,
        "link_out_bytes_per_s": 400_000_000,
        "link_in_bytes_per_s": 400_000_000,
        "lease_s": lease_s,
        "beat_s": min(1.0, lease_s / 10),
        "poll_s": min(1.0, lease_s / 10),
        "spare_trainers": 1,
        "checkpoint_s": 1.0,
        "stop_grace_s": 2.0,
        "answer_s": 60.0,
        "survey_s": 0.0,
        "service_directory": directory / "service",
        "state_dir": state,
    }
    environment = {config.variable(key): str(value) for key, value in settings.items()} | {
        _MARK: str(directory),
        # Its connection shows this process, the forwarder, where a service looks for the server's user.
        "TENSILE_SERVICE_PEER_UID": str(_uid(cluster)),
    }
    return Controller(
        environment=environment | (clock.environment if clock else {}),
        log=own / "controller.log",
        state=state,
        forwarder=Forwarder(link, cluster.run / ".s.PGSQL.5432"),
        clock=clock,
    )


def _others(environment: Mapping[str, str]) -> dict[str, str]:
    """Without settings of controllers that the invoking process may have."""
    return {name: value for name, value in environment.items() if not name.startswith(config.PREFIX)}


def _uid(cluster: Cluster) -> int:
    return cluster.data.stat().st_uid


def until(condition: Callable[[], bool], limit_s: float, poll_s: float = 0.1) -> bool:
    """Poll until it holds; False where it does not within the time."""
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(poll_s)
    return True
