"""Contention is measured only while the controller has no job, is passed on, and leaves no process behind."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.catalog.device_contention import ALONE, MeasuredContention
from indb_tensile.config import Settings
from indb_tensile.controller.contention_process import (
    BUSY_AGAIN_S,
    DISTURBED,
    DISTURBED_AGAIN_S,
    FAILED_AGAIN_S,
    IDLE_S,
    ContentionProcess,
)
from indb_tensile.controller.controller_loop import Mail
from indb_tensile.controller.fork_client import ForkServer
from indb_tensile.controller.mailbox import Mailbox
from indb_tensile.controller.records import CatalogRecords
from indb_tensile.errors import DatabaseError
from indb_tensile.job import WorkerId
from indb_tensile.scheduler.admission.events import ContentionChange
from tests.conftest import Database
from tests.controller.fakes import DEADLINE_S, alive
from tests.controller.real_controller import controller, count_adoptions, enqueue, scalar
from tests.controller.waiting import until
from tests.controller.warm_forks import fork_server
from worker import controller as controller_process
from worker.controller_device import first_contention

ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
MEASURING = "select count(*) > 0 from pg_stat_activity where application_name = 'tensile contention'"
MANY = 1024.0  # more cores than other tests keep busy
MEASURED = "select count(*) from tensile.device_contention"


class Reader:
    """Stands for the function that reads the stored factors. The database is away for the first `failures` calls."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.calls = 0

    def announce(self) -> bool:
        self.calls += 1
        return self.calls > self.failures


@contextmanager
def measurement(reader: Reader, **environment: str) -> Iterator[ContentionProcess]:
    with closing(fork_server(ENVIRONMENT | environment)) as forks:
        process = ContentionProcess(
            forks=forks,
            module="tests.controller.fake_learner",
            announce=reader.announce,
            tolerated_cores=0.25,
            read_busy_s=lambda: 0.0,
            draw=lambda: 0.0,
        )
        process.serve(WorkerId(4))
        try:
            yield process
        finally:
            process.stop()


def wait_until_ended(process: ContentionProcess, now_s: float) -> None:
    def ended() -> bool:
        process.attend(now_s)
        return not process.asked

    until(ended, DEADLINE_S)


def test_a_measurement_begins_only_after_a_while_without_a_job() -> None:
    with measurement(Reader(), FAKE_LEARNER_CODE="0") as process:
        process.attend(0.0)
        assert not process.asked, "it is not known yet whether there are jobs"
        process.see_jobs(0)
        process.attend(10.0)
        process.attend(9.9 + IDLE_S)
        process.see_jobs(1)
        process.attend(10.0 + IDLE_S)
        assert not process.asked
        process.see_jobs(0)
        process.attend(20.0)
        process.attend(19.9 + IDLE_S)
        assert not process.asked
        process.attend(20.0 + IDLE_S)
        assert process.asked


def test_what_was_measured_is_announced_once_the_database_is_back_and_nothing_is_measured_again() -> None:
    reader = Reader(failures=2)
    with measurement(reader, FAKE_LEARNER_CODE="0") as process:
        process.see_jobs(0)
        process.attend(0.0)
        assert process.holds_back_others(0.0)
        wait_until_ended(process, IDLE_S)
        assert reader.calls == 1
        for _ in range(3):
            process.attend(IDLE_S)
        assert reader.calls == 3
        process.attend(1e6)
        assert not process.asked
        assert not process.holds_back_others(1e6)


@pytest.mark.parametrize(("code", "pause_s"), [(DISTURBED, DISTURBED_AGAIN_S), (5, FAILED_AGAIN_S)])
def test_a_measurement_that_was_disturbed_or_failed_begins_again_after_a_pause(code: int, pause_s: float) -> None:
    with measurement(Reader(), FAKE_LEARNER_CODE=str(code)) as process:
        process.see_jobs(0)
        process.attend(0.0)
        wait_until_ended(process, IDLE_S)
        process.attend(IDLE_S + pause_s - 0.1)
        assert not process.asked
        assert not process.holds_back_others(IDLE_S + pause_s - 0.1), "the learner need not wait so long"
        process.attend(IDLE_S + pause_s)
        assert process.asked


def test_a_job_that_comes_ends_the_measurement_and_its_processes_at_once(tmp_path: Path) -> None:
    path, reader = tmp_path / "pid", Reader()
    with measurement(reader, FAKE_LEARNER_OUT=str(path)) as process:
        process.see_jobs(0)
        process.attend(0.0)

        def has_child() -> bool:
            process.attend(IDLE_S)
            return path.exists() and bool(path.read_text())

        until(has_child, DEADLINE_S)
        pid = process.pid
        process.see_jobs(1)
        assert not process.asked
        assert pid is not None
        assert not alive(pid)
        until(lambda: not alive(int(path.read_text())), DEADLINE_S)
        process.attend(IDLE_S)
        assert reader.calls == 1, "what it had stored is read"
        process.see_jobs(0)
        process.attend(100.0)
        process.attend(100.0 + IDLE_S)
        assert process.asked, "the rest is measured"


@dataclass(slots=True)
class FakeFork:
    """Stands for a process of the fork server. It is over when it has a code."""

    code: int | None = None
    abandoned: bool = False
    failed: bool = False
    pid: int = 1

    @property
    def over(self) -> bool:
        return self.code is not None

    def reap(self) -> int | None:
        return self.code

    def abandon(self) -> None:
        self.abandoned = True


@dataclass(slots=True)
class FakeForks:
    """Stands for the fork server, and keeps every process that was asked for."""

    asked: list[FakeFork] = field(default_factory=list)

    def receive(self) -> None:
        """Nothing arrives."""

    def ask(self, module: str, descriptors: Mapping[str, int]) -> FakeFork:
        assert (module, descriptors) == ("m", {})
        self.asked.append(FakeFork())
        return self.asked[-1]


class Machine:
    """Says how much processor time all programs have used. `cores` is how many they keep busy from now on."""

    def __init__(self) -> None:
        self.cores: float | None = 0.0
        self.now_s = self._used_s = 0.0

    def pass_time(self, seconds: float) -> float:
        """Let time pass, and return the moment."""
        self.now_s += seconds
        self._used_s += seconds * (self.cores or 0.0)
        return self.now_s

    def busy_s(self) -> float | None:
        return None if self.cores is None else self._used_s


def _process_with(
    forks: FakeForks, reader: Reader, machine: Machine | None = None, draw: float = 0.0
) -> ContentionProcess:
    process = ContentionProcess(
        forks=cast(ForkServer, forks),
        module="m",
        announce=reader.announce,
        tolerated_cores=0.25,
        read_busy_s=(machine or Machine()).busy_s,
        draw=lambda: draw,
    )
    process.serve(WorkerId(1))
    return process


def test_a_measurement_begins_when_other_programs_have_rested() -> None:
    forks, machine = FakeForks(), Machine()
    process = _process_with(forks, Reader(), machine)
    process.see_jobs(0)
    machine.cores = 1.0
    for _ in range(10):
        process.attend(machine.pass_time(1.0))
    assert forks.asked == []
    assert process.holds_back_others(machine.now_s), "other programs may soon rest"
    machine.cores = 0.2
    process.attend(machine.pass_time(IDLE_S / 2))
    assert forks.asked == []
    process.attend(machine.pass_time(IDLE_S / 2))
    assert len(forks.asked) == 1


def test_a_machine_that_is_never_idle_holds_back_no_other_work_for_long() -> None:
    forks, machine = FakeForks(), Machine()
    process = _process_with(forks, Reader(), machine)
    process.see_jobs(0)
    machine.cores, held_s = 1.0, 0
    for _ in range(600):
        process.attend(machine.pass_time(1.0))
        held_s += process.holds_back_others(machine.now_s)
    assert forks.asked == []
    assert held_s < 600 / 4
    machine.cores = 0.0
    while not forks.asked:
        process.attend(machine.pass_time(1.0))
        assert machine.now_s < 600 + BUSY_AGAIN_S + IDLE_S + 1


def test_a_measurement_begins_where_the_load_of_others_is_not_known() -> None:
    forks, machine = FakeForks(), Machine()
    process = _process_with(forks, Reader(), machine)
    machine.cores = None
    process.see_jobs(0)
    process.attend(machine.pass_time(1.0))
    process.attend(machine.pass_time(IDLE_S))
    assert len(forks.asked) == 1


def test_two_measurements_that_stop_each_other_begin_again_at_different_times() -> None:
    """Each is of a database of its own, so no lock lets one wait for the other."""
    forks = FakeForks(), FakeForks()
    processes = [_process_with(own, Reader(), draw=draw) for own, draw in zip(forks, (0.1, 0.9), strict=True)]
    for own, process in zip(forks, processes, strict=True):
        process.see_jobs(0)
        process.attend(0.0)
        process.attend(IDLE_S)
        own.asked[0].code = DISTURBED
        process.attend(IDLE_S)
    pauses_s = [_begin_s(process) - IDLE_S for process in processes]
    assert pauses_s == [pytest.approx(1.1 * DISTURBED_AGAIN_S), pytest.approx(1.9 * DISTURBED_AGAIN_S)]


def _begin_s(process: ContentionProcess) -> float:
    """Return when the process begins a measurement, in tenths of a second."""
    for tenth in range(1000):
        process.attend(tenth / 10)
        if process.asked:
            return tenth / 10
    raise AssertionError("no measurement has begun within 100 s")


ENDS = st.sampled_from([None, 0, DISTURBED, 5])
TURNS = st.lists(st.tuples(st.integers(0, 2), st.floats(0.1, 400.0), ENDS), max_size=40)


@given(turns=TURNS)
def test_no_sequence_of_jobs_and_ends_lets_a_measurement_run_beside_a_job_or_after_all_is_measured(
    turns: list[tuple[int, float, int | None]],
) -> None:
    forks, reader = FakeForks(), Reader()
    process = _process_with(forks, reader)
    now_s, idle_s, not_before_s, measured = 0.0, None, 0.0, False
    for jobs, pause_s, code in turns:
        now_s += pause_s
        running = forks.asked[-1] if process.asked else None
        process.see_jobs(jobs)
        idle_s = None if jobs else idle_s if idle_s is not None else now_s
        assert running is None or running.abandoned == bool(jobs)
        if running is not None and not jobs and code is not None:
            running.code = code
            measured |= code == 0
            not_before_s = now_s + {0: 0.0, DISTURBED: DISTURBED_AGAIN_S}.get(code, FAILED_AGAIN_S)
        before = len(forks.asked)
        process.attend(now_s)
        due = not measured and idle_s is not None and now_s >= max(not_before_s, idle_s + IDLE_S)
        ran = running is not None and not jobs and code is None
        assert process.asked == (ran or due)
        assert len(forks.asked) - before == (process.asked and not ran)


class Rows:
    """Stands for the catalog. It has these rows of one kind of device, or is away."""

    def __init__(self) -> None:
        self.rows: tuple[MeasuredContention, ...] | None = ()

    def contention(self) -> tuple[MeasuredContention, ...]:
        if self.rows is None:
            raise DatabaseError("the database is away")
        return self.rows


def test_only_what_was_measured_anew_is_passed_to_the_loop() -> None:
    rows, mailbox = Rows(), Mailbox[Mail]()
    settings = Settings(dsn="", device="emulated", max_jobs=4)
    records = cast(CatalogRecords, rows)
    known, pending = first_contention(settings, records)
    assert pending
    announce = controller_process._contention_reader(settings, known, records, mailbox)
    assert announce()
    assert mailbox.take() == [], "an estimate would replace what jobs have taught"
    rows.rows = None
    assert not announce()
    rows.rows = (ALONE, MeasuredContention(jobs=2, arithmetic=1.0, memory=1.0, mixed=1.0, training=1.25))
    assert announce()
    assert announce()
    [change] = mailbox.take()
    assert isinstance(change, ContentionChange)
    assert change.contention.points == ((1, 1.0), (2, 1.25))


def test_nothing_is_read_again_where_all_is_measured_or_nothing_is_to_be() -> None:
    rows = Rows()
    records = cast(CatalogRecords, rows)
    settings = Settings(dsn="", device="emulated", max_jobs=2)
    assert not first_contention(replace(settings, survey_s=0.0), records)[1]
    rows.rows = (ALONE, replace(ALONE, jobs=2))
    assert not first_contention(settings, records)[1]
    assert first_contention(replace(settings, max_jobs=4), records)[1]


@pytest.mark.nightly
def test_a_job_on_a_new_kind_of_device_waits_for_no_measurement(database: Database) -> None:
    with database.connect() as connection, controller(database, survey_s=0.05, survey_busy_cores=MANY, max_jobs=2):
        job = enqueue(connection, "train")
        until(lambda: count_adoptions(connection, job))
        assert scalar(connection, MEASURED) == 0
        assert not scalar(connection, MEASURING)
        connection.execute("update tensile.jobs set cancel_requested = true")
        until(lambda: scalar(connection, MEASURED) == 2, DEADLINE_S)
        until(lambda: not scalar(connection, MEASURING))


@pytest.mark.nightly
def test_a_job_is_not_delayed_by_a_measurement_that_has_begun(database: Database) -> None:
    with database.connect() as connection, controller(database, survey_s=0.05, survey_busy_cores=MANY):
        until(lambda: scalar(connection, MEASURING), DEADLINE_S)
        job = enqueue(connection, "train")
        until(lambda: count_adoptions(connection, job))
        assert scalar(connection, MEASURED) < 4, "the measurement had not ended"
        until(lambda: not scalar(connection, MEASURING))


@pytest.mark.nightly
def test_a_job_of_another_controller_of_the_host_ends_the_measurement(database: Database) -> None:
    with database.connect() as connection, controller(database) as first:
        job = enqueue(connection, "train")
        until(lambda: count_adoptions(connection, job))
        code = _measure(database, survey_busy_cores=MANY)
        assert code == DISTURBED
        assert scalar(connection, MEASURED) == 0
        assert first.poll() is None


@pytest.mark.nightly
@pytest.mark.parametrize(("tolerated", "code", "measured"), [(0.25, DISTURBED, 0), (MANY, 0, 2)])
def test_what_was_measured_beside_another_program_is_stored_only_if_that_is_tolerated(
    database: Database, tolerated: float, code: int, measured: int
) -> None:
    computing = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        with database.connect() as connection:
            assert _measure(database, survey_busy_cores=tolerated, max_jobs=2) == code
            assert scalar(connection, MEASURED) == measured
    finally:
        computing.kill()
        computing.wait()


@pytest.mark.nightly
def test_a_program_that_begins_to_compute_ends_a_measurement_that_has_begun(database: Database) -> None:
    ended: list[int] = []
    with database.connect() as connection, ThreadPoolExecutor(1) as threads:
        measuring = threads.submit(_measure, database, max_jobs=8)
        until(lambda: measuring.done() or scalar(connection, MEASURED) == 2, DEADLINE_S)
        computing = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        try:
            ended.append(measuring.result())
        finally:
            computing.kill()
            computing.wait()
        assert ended == [DISTURBED]
        assert scalar(connection, MEASURED) < 4, "what came beside the program is not stored"


@pytest.mark.nightly
def test_a_killed_controller_leaves_no_process_that_measures(database: Database) -> None:
    with database.connect() as connection, controller(database, survey_s=0.05, survey_busy_cores=MANY) as process:
        until(lambda: scalar(connection, MEASURING), DEADLINE_S)
        process.kill()
        process.wait()
        # the block ends only when no process with this database's address is left


def _measure(database: Database, **changed: Any) -> int:
    """Run the measurement as the controller of another device of this host does, and return its exit code."""
    settings = Settings(dsn=database.dsn("tensile_worker"), device="emulated", **changed)
    command = [sys.executable, "-m", "indb_tensile.worker.measure_contention"]
    return subprocess.run(command, env=os.environ | settings.environment(), check=False).returncode
