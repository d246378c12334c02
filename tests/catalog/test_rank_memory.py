"""Check that the memory of connections is stored by kind and number of devices, and reserved for each rank."""

from contextlib import ExitStack, closing

import pytest

from indb_tensile.catalog.rank_memory import load_memory, save_memory
from indb_tensile.controller.records import CatalogRecords
from indb_tensile.device.backend import kind_of
from indb_tensile.device.trainer_footprint import FIRST_NCCL_BYTES
from indb_tensile.job import ClaimedJob
from tests.catalog.enqueue import enqueue
from tests.conftest import Database
from worker.serving.store import Store

pytestmark = [pytest.mark.postgres, pytest.mark.clears_database]

KIND = "cuda:A"


def test_largest_measurement_of_a_day_counts_for_each_kind_and_number_of_devices(database: Database) -> None:
    with database.connect("tensile_worker") as worker:
        assert load_memory(worker, KIND, 2) is None
        for memory_bytes in (500, 700, 600):
            save_memory(worker, KIND, 2, memory_bytes)
        save_memory(worker, KIND, 4, 900)
        assert [load_memory(worker, KIND, ranks) for ranks in (2, 3, 4)] == [700, None, 900]
        assert load_memory(worker, "cuda:B", 2) is None


def test_measurement_of_two_days_ago_is_replaced_by_a_smaller_one(database: Database) -> None:
    with database.connect("tensile_worker") as worker, database.connect() as postgres:
        save_memory(worker, KIND, 2, 700)
        postgres.execute("update tensile.rank_memory set measured_at = now() - interval '2 days'")
        assert load_memory(worker, KIND, 2) == 700
        save_memory(worker, KIND, 2, 600)
        assert load_memory(worker, KIND, 2) == 600


def test_measurements_are_forgotten_with_their_kind_of_device(database: Database) -> None:
    with database.connect("tensile_worker") as worker, database.connect() as postgres:
        save_memory(worker, KIND, 2, 700)
        save_memory(worker, "cuda:B", 2, 700)
        assert postgres.execute("select tensile.forget_device(%s)", (KIND,)).fetchone() == (1,)
        assert [load_memory(worker, kind, 2) for kind in (KIND, "cuda:B")] == [None, 700]


def records_of(database: Database, number: int, *, uses_nccl: bool) -> CatalogRecords:
    return CatalogRecords(
        database.dsn("tensile_worker"),
        application_name="test",
        host="host",
        pid=number,
        device_kind=KIND,
        policy="tensile+",
        lease_s=60.0,
        uses_nccl=uses_nccl,
    )


@pytest.mark.parametrize(
    ("uses_nccl", "measured_bytes", "expected_bytes"),
    [(True, None, FIRST_NCCL_BYTES), (True, 700, 700), (False, 700, 0)],
)
def test_rank_is_claimed_with_the_memory_of_its_connection(
    database: Database, uses_nccl: bool, measured_bytes: int | None, expected_bytes: int
) -> None:
    with ExitStack() as stack:
        postgres = stack.enter_context(database.connect())
        if measured_bytes is not None:
            save_memory(postgres, KIND, 2, measured_bytes)
        both = [stack.enter_context(closing(records_of(database, n, uses_nccl=uses_nccl))) for n in (1, 2)]
        workers = [records.register() for records in both]
        job = enqueue(postgres)
        postgres.execute("update tensile.jobs set devices = 2 where job_id = %s", (job,))
        claimed = [records.claim(worker, frozenset()) for records, worker in zip(both, workers, strict=True)]
        gangs = [rank.gang for rank in claimed if isinstance(rank, ClaimedJob)]
        assert [(gang.rank, gang.connection_bytes) for gang in gangs if gang is not None] == [
            (0, expected_bytes),
            (1, expected_bytes),
        ]


@pytest.mark.parametrize("by_nccl", [False, True])
def test_explanations_know_the_memory_of_a_connection(database: Database, by_nccl: bool) -> None:
    with closing(Store(database.dsn("tensile_worker"), "test", "cpu", by_nccl=by_nccl)) as store:
        assert store.connection_bytes(2) == (FIRST_NCCL_BYTES if by_nccl else 0)
        with database.connect("tensile_worker") as worker:
            save_memory(worker, kind_of("cpu", 1), 2, 500)
        assert store.connection_bytes(2) == (500 if by_nccl else 0)
