"""Check that the catalog keeps the first measured contention of a kind of device, and that doctor shows it."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from psycopg.rows import dict_row

from indb_tensile.catalog import device_contention
from indb_tensile.catalog.device_contention import ALONE, MeasuredContention, contention_of, numbers_to_measure
from indb_tensile.cli import doctor
from indb_tensile.errors import DeviceError
from indb_tensile.scheduler.completion.contention import Contention
from tests.catalog.enqueue import claim, enqueue, register
from tests.conftest import Database
from tests.controller.waiting import until

pytestmark = pytest.mark.postgres

_WAITING = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
_ALONE = replace(ALONE, short_ns=1_500_000)


def _pair(factor: float) -> MeasuredContention:
    """Return the row of two jobs, as it was before short steps were measured."""
    return MeasuredContention(jobs=2, arithmetic=factor, memory=factor, mixed=factor)


def _pair_with_short(factor: float, short: float) -> MeasuredContention:
    return replace(_pair(factor), short=short, short_mixed=short)


def test_first_measured_contention_of_a_device_is_kept(database: Database) -> None:
    with database.connect("tensile_worker") as connection:
        assert device_contention.load_contention(connection, "cpu") == ()
        device_contention.save_contention(connection, "cpu", (_ALONE, _pair(1.5)))
        device_contention.save_contention(connection, "cpu", (_ALONE, _pair(9.0)))
        device_contention.save_contention(connection, "cuda:A", (_ALONE,))
        assert device_contention.load_contention(connection, "cpu") == (_ALONE, _pair(1.5))
        assert device_contention.load_contention(connection, "cuda:A") == (_ALONE,)


@pytest.mark.parametrize(
    ("kinds", "host", "times"),
    [(("cpu", "cpu"), None, 1), (("cpu", "cpu"), "here", 1), (("cpu", "emulated"), "here", 2)],
    ids=["one kind", "one kind on one host", "two kinds on the cores of one host"],
)
def test_controllers_that_are_idle_together_measure_one_after_the_other(
    database: Database, kinds: tuple[str, str], host: str | None, times: int
) -> None:
    measured, begun, may_end = [], threading.Event(), threading.Event()

    def measure(missing: tuple[int, ...]) -> Iterator[tuple[MeasuredContention, ...]]:
        measured.append(missing)
        begun.set()
        assert may_end.wait(60)
        yield _ALONE, _pair(1.5)

    def start(kind: str) -> tuple[MeasuredContention, ...]:
        with database.connect("tensile_worker") as claim, database.connect("tensile_worker") as store:
            return device_contention.contention_measured_once(claim, store, kind, (1, 2), measure, host)

    with ThreadPoolExecutor(2) as threads, database.connect() as observer:
        first = threads.submit(start, kinds[0])
        assert begun.wait(60)
        second = threads.submit(start, kinds[1])
        until(lambda: observer.execute(_WAITING).fetchone() == (1,))
        may_end.set()
        assert first.result(60) == second.result(60) == (_ALONE, _pair(1.5))
    assert measured == [(1, 2)] * times


def test_a_measurement_that_ends_early_keeps_its_rows_and_the_next_one_measures_the_rest(database: Database) -> None:
    asked = []

    def fail(missing: tuple[int, ...]) -> Iterator[tuple[MeasuredContention, ...]]:
        asked.append(missing)
        if len(asked) > 1:
            yield _ALONE, _pair(1.5)
        raise DeviceError("no device")

    def measure(missing: tuple[int, ...]) -> Iterator[tuple[MeasuredContention, ...]]:
        asked.append(missing)
        yield (replace(_pair(2.5), jobs=4),)

    with database.connect("tensile_worker") as claim, database.connect("tensile_worker") as store:
        for kept in ((), (_ALONE, _pair(1.5))):
            with pytest.raises(DeviceError):
                device_contention.contention_measured_once(claim, store, "cpu", (1, 2, 4), fail)
            assert device_contention.load_contention(store, "cpu") == kept
        assert claim.execute("select count(*) from tensile.device_contention").fetchone() == (2,)
        rows = device_contention.contention_measured_once(claim, store, "cpu", (1, 2, 4), measure)
        assert rows == (_ALONE, _pair(1.5), replace(_pair(2.5), jobs=4))
        assert device_contention.contention_measured_once(claim, store, "cpu", (1, 2), measure) == rows
    assert asked == [(1, 2, 4), (1, 2, 4), (4,)]


def test_contention_is_measured_for_no_more_jobs_than_may_run() -> None:
    assert {most: numbers_to_measure(most) for most in (1, 2, 3, 5, 8, 64)} == {
        1: (1, 2),
        2: (1, 2),
        3: (1, 2),
        5: (1, 2, 4),
        8: (1, 2, 4, 8),
        64: (1, 2, 4, 8),
    }


def test_jobs_of_a_host_are_those_that_its_controllers_have(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        worker = register(connection)
        host = str(connection.execute("select host from tensile.workers").fetchone()[0])  # type: ignore[index]
        enqueue(alice, "m")
        assert not device_contention.has_jobs(connection, host)
        claim(connection, worker)
        assert device_contention.has_jobs(connection, host)
        assert not device_contention.has_jobs(connection, "another host")


def test_what_jobs_have_taught_counts_half_and_only_where_it_was_measured(database: Database) -> None:
    with database.connect("tensile_worker") as connection:
        device_contention.save_contention(connection, "cpu", (_ALONE, _pair(1.5)))
        device_contention.learn_contention(connection, "cpu", Contention(points=((1, 1.0), (2, 1.1), (3, 1.2))))
        alone, pair = device_contention.load_contention(connection, "cpu")
        assert (alone, pair.learned, pair.learned_short) == (_ALONE, 1.1, None)
        assert pair.factor == pytest.approx(1.3)
        with connection.cursor(row_factory=dict_row) as cursor:
            (row,) = doctor._contention(cursor)
        assert "2 jobs take 1.30 times as long" in row["found"]


def test_what_short_steps_have_taught_counts_for_short_steps(database: Database) -> None:
    with database.connect("tensile_worker") as connection:
        device_contention.save_contention(connection, "cpu", (_ALONE, _pair_with_short(1.5, 2.0)))
        measured = contention_of(device_contention.load_contention(connection, "cpu"))
        assert (measured.slowdown(2), measured.slowdown(2, 1_500_000)) == (1.5, 2.0)
        device_contention.learn_contention(connection, "cpu", measured.observed(2, 4.0, 1_500_000))
        taught = contention_of(device_contention.load_contention(connection, "cpu"))
        assert [taught.slowdown(2), taught.slowdown(2, 1_500_000)] == pytest.approx([1.5, (2.0 + 3.0) / 2])
        with connection.cursor(row_factory=dict_row) as cursor:
            (row,) = doctor._contention(cursor)
        assert "2 jobs take 1.50 times as long as alone (short steps 2.50 times)" in row["found"]


def test_cores_that_other_programs_take_are_kept_with_the_measurement(database: Database) -> None:
    with database.connect("tensile_worker") as connection:
        device_contention.learn_taken_cores(connection, "cpu", 0.05)
        assert device_contention.load_contention(connection, "cpu") == (), "nothing was measured"
        device_contention.save_contention(connection, "cpu", (_ALONE, _pair(1.5)))
        device_contention.learn_taken_cores(connection, "cpu", 0.05)
        loaded = contention_of(device_contention.load_contention(connection, "cpu"), 2)
        assert loaded == Contention(points=((1, 1.0), (2, 1.5)), processors=2, taken_cores=0.05)


def test_measurements_without_short_steps_hold_for_all_steps() -> None:
    old = MeasuredContention(jobs=1, arithmetic=1.0, memory=1.0, mixed=1.0)
    assert contention_of((old, _pair(1.5))) == Contention(points=((1, 1.0), (2, 1.5)))
    assert contention_of((_ALONE, _pair(1.5))) == Contention(points=((1, 1.0), (2, 1.5)))


def test_doctor_says_what_jobs_share(database: Database) -> None:
    with database.connect("tensile_worker") as connection:
        device_contention.save_contention(connection, "cpu:x", (_ALONE, _pair(1.5)))
        device_contention.save_contention(connection, "cuda:A", (_ALONE, _pair(1.25)))
        with connection.cursor(row_factory=dict_row) as cursor:
            assert [(row["check"], row["found"]) for row in doctor._contention(cursor)] == [
                (
                    "sharing of cpu:x",
                    "jobs share this machine's processor cores; "
                    "beside each other, 2 jobs take 1.50 times as long as alone",
                ),
                (
                    "sharing of cuda:A",
                    "jobs share the GPU; beside each other, 2 jobs take 1.25 times as long as alone",
                ),
            ]


def test_doctor_says_where_the_contention_is_estimated(database: Database) -> None:
    with database.connect("tensile_worker") as connection:
        register(connection)
        with connection.cursor(row_factory=dict_row) as cursor:
            (row,) = doctor._contention(cursor)
    assert row["check"].startswith("sharing of ")
    assert "how much they slow each other down is estimated. " in row["found"]


def test_long_steps_have_the_factor_of_a_training(database: Database) -> None:
    pair = MeasuredContention(jobs=2, arithmetic=1.0, memory=2.0, mixed=1.5, training=1.1)
    with database.connect("tensile_worker") as connection:
        device_contention.save_contention(connection, "cpu", (_ALONE, pair))
        rows = device_contention.load_contention(connection, "cpu")
        assert rows == (_ALONE, pair)
        assert contention_of(rows).slowdown(2) == 1.1
        with connection.cursor(row_factory=dict_row) as cursor:
            (row,) = doctor._contention(cursor)
        assert "2 jobs take 1.10 times as long as alone" in row["found"]


def test_without_a_measured_training_the_mean_of_all_kinds_counts() -> None:
    assert MeasuredContention(jobs=2, arithmetic=1.0, memory=2.0, mixed=1.5).factor == 1.5
