"""The databases, roles and controllers with which `bench share` runs sets of jobs.

All controllers of one mix start from copies of one warm database: it has the tables to train on, the latencies of the
mix's operators, what jobs take besides their iterations, how much jobs slow each other down, and the pace of the
emulated device. They also have copies of the captured networks. Each controller
has a database of its own, since it would otherwise claim jobs that another method is to run. A controller without
jobs waits, so several are ready at the same time.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from indb_tensile import config
from indb_tensile.bench.harness.processes.bench_database import temporary_database
from indb_tensile.bench.harness.processes.controller_process import start_controller
from indb_tensile.bench.harness.processes.process_table import all_processes
from indb_tensile.bench.harness.share.share_jobs import IterationTimes
from indb_tensile.bench.harness.share.share_measures import JobTimes, SetShare
from indb_tensile.bench.harness.share.share_mixes import MixJob, MixTraining
from indb_tensile.bench.harness.tables.stored_samples import store_samples
from indb_tensile.catalog import device_contention
from indb_tensile.catalog.connection import Connection, connect
from indb_tensile.catalog.device_contention import numbers_to_measure
from indb_tensile.catalog.queries import parse
from indb_tensile.config import Settings
from indb_tensile.controller.contention_process import DISTURBED
from indb_tensile.device.backend import kind_of
from indb_tensile.device.waiting_threads import with_short_waits
from indb_tensile.errors import TensileError, UnavailableError

PURPOSE = "tensile bench share"
TABLES = ("digits", "breast_cancer", "diabetes")
MOST_OWNERS = 2
_SQL = parse(Path(__file__).with_name("share_site.sql").read_text(encoding="utf-8"))
_CAPTURES = "captures"  # folder of captures in a controller's state directory (worker/capture_files.py)
_READY_S = 300.0
_CONTENTION_S = 300.0  # for what takes half a minute on an idle machine
_POLL_S = 0.2  # polls take processor time from the jobs: every 0.05 s they took 1.3 % of two cores
_END_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareSite:
    """A warm database, and the roles that own jobs. `run_s` is the time limit of one run."""

    dsn: str
    directory: Path
    device: str
    owners: Sequence[str]
    run_s: float

    @contextmanager
    def controller(self, name: str, threads: int, settings: Mapping[str, object]) -> Iterator["ShareController"]:
        """Yield a controller that starts with a copy of the warm database. Both are gone after the block."""
        own = f"{self._name}_{name}"
        drop = sql.SQL(_SQL["drop_clone"]).format(sql.Identifier(own))
        create = sql.SQL(_SQL["create_clone"]).format(sql.Identifier(own), sql.Identifier(self._name))
        with connect(make_conninfo(self.dsn, dbname="postgres"), application_name=PURPOSE) as server:
            _wait_for_sessions(server, self._name)
            try:
                server.execute(create)
                with self._started(make_conninfo(self.dsn, dbname=own), name, threads, settings) as controller:
                    yield controller
            finally:
                server.execute(drop)

    @contextmanager
    def warm_controller(self, threads: int, settings: Mapping[str, object]) -> Iterator["ShareController"]:
        """Yield a controller of the warm database itself, which knows no latencies when the block begins."""
        with connect(self.dsn, application_name=PURPOSE) as connection:
            connection.execute(_SQL["forget_latencies"])
        self._measure_contention(threads)
        shutil.rmtree(self._captures, ignore_errors=True)
        with self._started(self.dsn, "warm", threads, settings) as controller:
            yield controller
            captures = controller.log.parent / _CAPTURES
            if captures.is_dir():
                shutil.copytree(captures, self._captures)

    def _measure_contention(self, threads: int) -> None:
        """Measure how much jobs slow each other down, as a controller does that meets its device. It is done once."""
        with connect(self.dsn, application_name=PURPOSE) as connection:
            measured = device_contention.load_contention(connection, kind_of(self.device, threads))
            if {row.jobs for row in measured}.issuperset(numbers_to_measure(Settings().max_jobs)):
                return
        command = [sys.executable, "-m", "indb_tensile.worker.measure_contention"]
        environment = with_short_waits(_environment(self.dsn, self.device, self.directory, threads, {}))
        deadline_s = time.monotonic() + _CONTENTION_S
        code = DISTURBED
        while code == DISTURBED:  # what was measured until a disturbance stays
            try:
                code = subprocess.run(
                    command,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    check=False,
                    timeout=max(0.0, deadline_s - time.monotonic()),
                ).returncode
            except subprocess.TimeoutExpired:
                raise UnavailableError(
                    f"by how much jobs slow each other down was not measured within {_CONTENTION_S:.0f} s",
                    hint="end other programs on this machine, and other controllers of this database",
                ) from None
        if code:
            raise UnavailableError(f"by how much jobs slow each other down was not measured: exit code {code}")

    @contextmanager
    def _started(
        self, dsn: str, name: str, threads: int, settings: Mapping[str, object]
    ) -> Iterator["ShareController"]:
        with ExitStack() as stack:
            directory = Path(
                stack.enter_context(
                    TemporaryDirectory(prefix=f"{name}-", dir=self.directory, ignore_cleanup_errors=True)
                )
            )
            directory.chmod(0o755)
            if self._captures.is_dir():
                shutil.copytree(self._captures, directory / _CAPTURES)
            log = directory / "controller.log"
            environment = _environment(dsn, self.device, directory, threads, settings)
            with log.open("wb") as output:
                process = start_controller(environment, output)
            stack.callback(_end, process)
            connection = stack.enter_context(connect(dsn, application_name=PURPOSE, callers_path=True))
            yield ShareController(
                name=name, process=process, connection=connection, log=log, owners=self.owners, run_s=self.run_s
            )

    @property
    def _captures(self) -> Path:
        return self.directory / _CAPTURES

    @property
    def _name(self) -> str:
        return str(conninfo_to_dict(self.dsn)["dbname"])


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareController:
    """A running controller, its log, and a superuser's connection to its database."""

    name: str
    process: "subprocess.Popen[bytes]"
    connection: Connection
    log: Path
    owners: Sequence[str]
    run_s: float
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def wait_until_ready(self) -> None:
        """Wait until the controller has registered and has a trainer. Raises UnavailableError."""
        pid = self.process.pid
        self._wait(lambda: self._fetch("ready", pid=pid)[0][0] > 0, "the controller to register", _READY_S)
        self._wait(lambda: bool(_trainers(pid)), "a trainer to be ready", _READY_S)

    def run(self, jobs: Sequence[MixJob]) -> list[JobTimes]:
        """Enqueue the jobs at their times and wait for their ends. Returns their times, in the order of `jobs`.

        Raises TensileError for a job that does not succeed, UnavailableError for jobs that do not end in time.
        """
        began_s, ids = time.monotonic(), dict[int, int]()
        for place, job in sorted(enumerate(jobs), key=lambda item: (item[1].after_s, item[0])):
            time.sleep(max(0.0, began_s + job.after_s - time.monotonic()))
            ids[place] = self._enqueue(job)
        listed = [ids[place] for place in range(len(jobs))]
        self._wait(lambda: self._fetch("unended", jobs=listed)[0][0] == 0, "jobs to end", self.run_s, listed)
        if states := self._fetch("states", jobs=listed):
            job_id, state, message = states[0]
            raise TensileError(
                f"{self.name}: job {job_id} {state}: {message}", detail=self._tail(), hint=f"See {self.log}."
            )
        times = {row[0]: row[1:] for row in self._fetch("times", jobs=listed)}
        left = {row[0]: row[1] for row in self._fetch("departures", jobs=listed)} if self._stores_sets else {}
        return [
            _job_times(job.training, job_id, left.get(job_id), *times[job_id])
            for job, job_id in zip(jobs, listed, strict=True)
        ]

    @property
    def _stores_sets(self) -> bool:
        return bool(self._fetch("stores_sets")[0][0])

    def sets(self, jobs: Sequence[JobTimes]) -> list[SetShare]:
        """Return the part of each job in each set of jobs that ran; empty if the catalog does not store sets."""
        if not self._stores_sets:
            return []
        rows = self._fetch("sets", jobs=[job.job_id for job in jobs])
        return [
            SetShare(
                job_id=job_id,
                stp_foretold=foretold,
                stp_measured=measured,
                speed_foretold=speed,
                seconds=seconds,
                jobs=together,
            )
            for job_id, foretold, measured, speed, seconds, together in rows
        ]

    def iterations(self, jobs: Sequence[JobTimes]) -> dict[int, IterationTimes]:
        """Return the foretold and the measured time of an iteration of each job that was measured."""
        rows = self._fetch("iterations", jobs=[job.job_id for job in jobs])
        return {job_id: IterationTimes(foretold_ns=foretold, measured_ns=ns) for job_id, foretold, ns in rows}

    def run_alone(self, training: MixTraining) -> JobTimes:
        """Run one training and return its times."""
        return self.run([MixJob(training=training)])[0]

    def peak_bytes(self) -> int:
        """Return the most bytes in use since the controller started. Waits until no job uses any.

        The parameters that were published are deleted.
        """
        ((since,),) = self._fetch("now")
        rows: list[tuple[int, int]] = []

        def idle() -> bool:
            rows[:] = self._fetch("device", pid=self.process.pid, since=since)
            return bool(rows) and rows[0][0] == 0

        self._wait(idle, "the device to be free", _READY_S)
        self.connection.execute(_SQL["drop_models"])
        return rows[0][1]

    def _enqueue(self, job: MixJob) -> int:
        training = job.training
        with self.connection.transaction():
            self.connection.execute(sql.SQL(_SQL["set_role"]).format(sql.Identifier(self.owners[job.owner])))
            values = {
                "model": f"share_{next(self._numbers)}",
                "relation": f"public.{training.table}",
                "architecture": training.architecture,
                "hyperparams": training.hyperparams,
                "priority": job.priority,
            }
            return int(self._fetch("train", **values)[0][0])

    def _fetch(self, name: str, **values: object) -> list[tuple[Any, ...]]:
        return self.connection.execute(_SQL[name].encode(), values).fetchall()

    def _wait(self, condition: Callable[[], bool], awaited: str, limit_s: float, jobs: Sequence[int] = ()) -> None:
        """Poll until the condition holds. Raises UnavailableError on timeout, or if the controller has ended."""
        end_s = time.monotonic() + limit_s
        while not condition():
            if time.monotonic() > end_s or self.process.poll() is not None:
                states = "; ".join(
                    f"job {job} {state}: {text}" for job, state, text in self._fetch("states", jobs=list(jobs))
                )
                raise UnavailableError(
                    f"{self.name}: waited {limit_s:g} s for {awaited}"
                    if self.process.poll() is None
                    else f"{self.name}: the controller ended with code {self.process.returncode}",
                    detail="\n".join(filter(None, (states, self._tail()))),
                    hint="Run the benchmark while this machine has less to do, or give it more time with --limit.",
                )
            time.sleep(_POLL_S)

    def _tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])


@contextmanager
def share_site(dsn: str, device: str, run_s: float, within: str | None = None) -> Iterator[ShareSite]:
    """Yield a site whose warm database has the tables and knows no latencies. `dsn` is a superuser's.

    The controllers' files, also those that they swap to, are below `within`, or else where temporary files are.
    """
    owners = [f"tensile_bench_share_{os.getpid()}_{number}" for number in range(MOST_OWNERS)]
    with ExitStack() as stack:
        server = stack.enter_context(connect(dsn, application_name=PURPOSE))
        for owner in owners:  # dropped after the databases in which they own rows
            server.execute(sql.SQL(_SQL["create_role"]).format(sql.Identifier(owner)))
            stack.callback(server.execute, sql.SQL(_SQL["drop_role"]).format(sql.Identifier(owner)))
        own = stack.enter_context(temporary_database(dsn, "share"))
        with connect(own, application_name=PURPOSE) as connection:
            _fill(connection, owners)
        directory = Path(
            stack.enter_context(TemporaryDirectory(prefix="tensile-share-", dir=within, ignore_cleanup_errors=True))
        )
        directory.chmod(0o755)
        yield ShareSite(dsn=own, directory=directory, device=device, owners=owners, run_s=run_s)


def _fill(connection: Connection, owners: Sequence[str]) -> None:
    """Create the tables, let the roles use them, and record when each job has finished its first iteration."""
    for role in ("tensile_worker", "tensile_reader"):
        connection.execute(sql.SQL(_SQL["allow_login"]).format(sql.Identifier(role)))
    for owner in owners:
        connection.execute(sql.SQL(_SQL["grant_use"]).format(sql.Identifier(owner)))
    store_samples(connection, TABLES)
    for name in ("create_first_steps", "create_first_step_function", "create_first_step_trigger"):
        connection.execute(_SQL[name])


def _environment(
    dsn: str, device: str, directory: Path, threads: int, settings: Mapping[str, object]
) -> dict[str, str]:
    values: dict[str, object] = {
        "dsn": make_conninfo(dsn, user="tensile_worker"),
        "reader_dsn": make_conninfo(dsn, user="tensile_reader"),
        "device": device,
        "torch_threads": threads,
        "survey_s": 0.0,  # latencies are measured, and no predictor may start to learn in the middle of a run
        "state_dir": directory,
        **settings,
    }
    kept = {name: text for name, text in os.environ.items() if not name.startswith(config.PREFIX)}
    return kept | {config.variable(name): str(value) for name, value in values.items()}


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _trainers(controller: int) -> list[int]:
    return [p.pid for p in all_processes() if p.parent == controller and p.name == "tensile trainer"]


def _wait_for_sessions(server: Connection, name: str) -> None:
    """Wait until a database has no sessions, because it cannot be copied while it has any."""
    end_s = time.monotonic() + _END_S
    while (server.execute(_SQL["sessions"], {"name": name}).fetchone() or (0,))[0]:
        if time.monotonic() > end_s:
            raise UnavailableError(f"the database {name} still has sessions after {_END_S:g} s")
        time.sleep(_POLL_S)


def _job_times(
    training: MixTraining,
    job_id: int,
    left_s: float | None,
    enqueued_s: float,
    trains_s: float,
    stepped_s: float,
    ended_s: float,
    needed_bytes: int,
    digest: str,
) -> JobTimes:
    return JobTimes(
        job_id=job_id,
        training=training,
        enqueued_s=enqueued_s,
        trains_s=trains_s,
        stepped_s=stepped_s,
        left_s=ended_s if left_s is None else left_s,
        ended_s=ended_s,
        needed_bytes=needed_bytes,
        digest=digest,
    )
