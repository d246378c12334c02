"""The system that a chaos test disturbs: a private server, on a small disk if possible, and its controllers.

Each controller reaches the server through a forwarder of its own, and has a clock of its own where libfaketime is
installed. `mend` restarts processes that have ended, as a service manager does.
"""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from psycopg import sql
from psycopg.conninfo import make_conninfo

from indb_tensile import config
from indb_tensile.bench.harness.chaos.chaos_clock import Clock, find_library
from indb_tensile.bench.harness.chaos.chaos_disk import Disk, small_disk
from indb_tensile.bench.harness.chaos.chaos_events import ChaosEventKind
from indb_tensile.bench.harness.chaos.chaos_forwarder import Forwarder
from indb_tensile.bench.harness.processes import process_table as processes
from indb_tensile.bench.harness.processes.controller_process import start_controller
from indb_tensile.catalog import install
from indb_tensile.catalog.connection import connect
from indb_tensile.catalog.queries import parse
from indb_tensile.cluster import Cluster, temporary_cluster
from indb_tensile.errors import DatabaseError

SQL = parse(Path(__file__).with_name("chaos_rig.sql").read_text(encoding="utf-8"))
DATABASE = "chaos"
PURPOSE = "tensile bench chaos"
_WORKERS = ("tensile_worker", "tensile_reader")  # tensile_reader is missing in versions where the worker reads tables
_MARK = "TENSILE_BENCH_CHAOS"  # environment variable of all processes of a rig; its value is the rig's directory
_END_S = 60.0
_CAPTURES = "captures"  # the folder of worker/captured_steps.py
_LAST_LINES = 40  # of a log: enough for a traceback
_KEPT_S = 900.0  # 15 minutes: controllers remove unreferenced files after 10 minutes, plus time for housekeeping
_SERVER = """\
max_connections = 60
max_wal_size = 64MB
min_wal_size = 32MB
checkpoint_timeout = 30s
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosRigOptions:
    """Options of a rig."""

    owners: Sequence[str]
    controllers: int
    lease_s: float
    kinds: Sequence[ChaosEventKind]
    rank_timeout_s: float  # after which a rank of a job on several devices gives up another one


@dataclass(slots=True, kw_only=True)
class ControllerProcess:
    """One controller with its environment, files, forwarder and clock."""

    environment: Mapping[str, str]
    log: Path
    state: Path
    forwarder: Forwarder
    clock: Clock | None
    process: subprocess.Popen[bytes] | None = None
    # Nonzero exit codes with the last lines of the log, except those of processes that a fault killed.
    ended_badly: list[str] = field(default_factory=list)

    @property
    def pid(self) -> int:
        """Return the process id; 0 if the controller does not run."""
        return 0 if self.process is None or self.process.poll() is not None else self.process.pid

    def start(self) -> None:
        """Start the process without waiting until it is ready."""
        with self.log.open("a") as log:
            self.process = start_controller(
                {**_without_settings(os.environ), **self.environment}, log, own_session=True
            )

    def mend(self) -> None:
        """Restart the process if it has ended. Records an exit code that is neither 0 nor that of SIGKILL."""
        if self.pid:
            return
        self._tidy()
        if self.process is not None and self.process.returncode not in (0, -signal.SIGKILL):
            self._blame(self.process.returncode)
        self.start()

    def end(self) -> None:
        """Send SIGTERM and wait for the end. Kills a process that does not end in time."""
        if self.process is None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        if code:
            self._blame(code)

    def kill(self) -> None:
        """Kill the process by SIGKILL, which it cannot handle."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self._tidy()

    def _blame(self, code: int) -> None:
        with suppress(OSError):
            lines = self.log.read_text(errors="replace").splitlines()[-_LAST_LINES:]
            self.ended_badly.append("\n".join((f"exit code {code}", *lines)))

    def _tidy(self) -> None:
        if self.process is not None:
            Clock.tidy(self.process.pid)


@dataclass(slots=True, kw_only=True)
class ChaosRig:
    """The server and its controllers. `left_out` gives, by kind of event, why this machine does not support it."""

    directory: Path
    cluster: Cluster
    disk: Disk | None
    clock: Clock | None  # of the server
    controllers: Sequence[ControllerProcess]
    left_out: Mapping[ChaosEventKind, str]

    def dsn(self, user: str = "postgres") -> str:
        """Return a connection string to the server itself, which bypasses the forwarders."""
        return self.cluster.dsn(user=user, database=DATABASE)

    def mend(self) -> None:
        """Restart processes that have ended. If the server cannot start now, the next call tries again."""
        with suppress(DatabaseError):
            self.cluster.start()
        for controller in self.controllers:
            controller.mend()

    def postmaster(self) -> int:
        """Return the server's process id; 0 if it does not run."""
        return int((self.cluster.data / "postmaster.pid").read_text().split()[0]) if self.cluster.running() else 0

    def controller_children(self, name: str) -> list[int]:
        """Return ids of the controllers' child processes of this name: trainer, service, learner, analyst."""
        parents = {controller.pid for controller in self.controllers}
        kept_name = f"tensile {name}"[:15]  # the kernel keeps 15 characters
        return [p.pid for p in processes.all_processes() if p.parent in parents and p.name == kept_name]

    def backends(self) -> list[int]:
        """Return ids of the server's backends that serve controllers."""
        server = self.postmaster()
        return [p.pid for p in processes.all_processes() if server and p.parent == server and p.serves(_WORKERS)]

    def processes(self) -> list[int]:
        """Return ids of the controllers and of all processes that they started."""
        return processes.pids_with_environment(f"{_MARK}={self.directory}")

    def close(self) -> None:
        """Kill all controllers and the processes that they left, and close the forwarders."""
        for controller in self.controllers:
            controller.forwarder.heal()
            controller.kill()
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for controller in self.controllers:
            controller.forwarder.close()

    @property
    def old_state_files(self) -> list[Path]:
        """Return old files in the controllers' state directories, and old sockets of services.

        Captured steps are kept for later trainings, so their files may be old.
        """
        states = [path for controller in self.controllers for path in controller.state.rglob("*")]
        candidates = [path for path in states if _CAPTURES not in path.parts]
        files = [path for path in (*candidates, *(self.directory / "service").iterdir()) if not path.is_dir()]
        return sorted(path for path in files if path.stat().st_mtime < time.time() - _KEPT_S)


@contextmanager
def set_up(options: ChaosRigOptions) -> Iterator[ChaosRig]:
    """Yield a running server with the catalog and the owners' roles, and controllers that are not started yet."""
    with ExitStack() as stack:
        directory = Path(tempfile.mkdtemp(prefix="chaos-"))
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        directory.chmod(0o755)
        left_out: dict[ChaosEventKind, str] = {}
        disk = (
            stack.enter_context(small_disk(directory / "disk")) if ChaosEventKind.FILL_DISK in options.kinds else None
        )
        if disk is not None and disk.fault:
            left_out[ChaosEventKind.FILL_DISK] = disk.fault
            disk = None
        clocks = {ChaosEventKind.STEP_SERVER_CLOCK, ChaosEventKind.STEP_CONTROLLER_CLOCK} & set(options.kinds)
        library = find_library() if clocks else None
        if library is None:
            left_out |= dict.fromkeys(clocks, "libfaketime is not installed")
        clock = Clock(directory / "server-clock", library) if library else None
        cluster = stack.enter_context(
            temporary_cluster(
                ("postgres", *_WORKERS, *options.owners),
                _SERVER,
                within=disk.directory if disk else directory,
                environment=clock.environment if clock else None,
            )
        )
        (directory / "service").mkdir()
        _install(cluster, options.owners, directory / "service")
        rig = ChaosRig(
            directory=directory,
            cluster=cluster,
            disk=disk,
            clock=clock,
            controllers=[
                _controller(directory, number, cluster, options, library) for number in range(options.controllers)
            ],
            left_out=left_out,
        )
        stack.callback(rig.close)
        yield rig


def _install(cluster: Cluster, owners: Sequence[str], service: Path) -> None:
    """Create the database, the catalog, and for each owner a role with a schema of its own."""
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


def _controller(
    directory: Path, number: int, cluster: Cluster, options: ChaosRigOptions, library: Path | None
) -> ControllerProcess:
    own = directory / f"controller{number}"
    state, lease_s = own / "state", options.lease_s
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
        "rank_timeout_s": options.rank_timeout_s,
        "survey_s": 0.0,
        "service_directory": directory / "service",
        "state_dir": state,
    }
    environment = {config.variable(key): str(value) for key, value in settings.items()} | {
        _MARK: str(directory),
        # By default the service serves the user that runs the server, read from its database connection. That
        # connection's peer is the forwarder in this process, so the server's user is given explicitly.
        "TENSILE_SERVICE_PEER_UID": str(_uid(cluster)),
    }
    return ControllerProcess(
        environment=environment | (clock.environment if clock else {}),
        log=own / "controller.log",
        state=state,
        forwarder=Forwarder(link, cluster.run / ".s.PGSQL.5432"),
        clock=clock,
    )


def _without_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without the variables that configure controllers."""
    return {name: value for name, value in environment.items() if not name.startswith(config.PREFIX)}


def _uid(cluster: Cluster) -> int:
    return cluster.data.stat().st_uid


def poll_until(condition: Callable[[], bool], limit_s: float, poll_s: float = 0.1) -> bool:
    """Poll until the condition holds. Returns False if it does not hold within the limit."""
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(poll_s)
    return True
