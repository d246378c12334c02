"""Check how a service counts the inputs of predictions, and that each batch of counts is stored once."""

import asyncio
import contextlib
from collections.abc import Coroutine, Sequence
from typing import Any
from uuid import UUID

import numpy as np
import pytest

from indb_tensile.catalog.count_batches import CountBatch, store_batch
from indb_tensile.catalog.drift import InputAmounts
from indb_tensile.catalog.prediction_counts import PredictionCounts
from indb_tensile.errors import DatabaseError
from indb_tensile.job import ModelVersionId
from indb_tensile.learning.evaluation.input_bins import InputBins, Measure
from indb_tensile.learning.storage.columns import Columns
from tests.conftest import Database
from worker.serving.count_sender import CountSender
from worker.serving.input_counts import InputCounts
from worker.serving.primary_counts import PrimaryCounts

from .fakes import Echo

ONE, TWO = ModelVersionId(1), ModelVersionId(2)
PROCESSES = [UUID(int=number) for number in (1, 2, 3)]
BINS = [InputBins(feature="a", measure=Measure.NUMBER, edges=(0.0,))]


class Catalog:
    """Loads bins: version 1 has them, version 2 has none, and others cannot be read."""

    def __init__(self) -> None:
        self.loads: list[ModelVersionId] = []

    async def load(self, version: ModelVersionId) -> Sequence[InputBins]:
        self.loads.append(version)
        if version > TWO:
            raise DatabaseError("the catalog is locked")
        return BINS if version == ONE else ()


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(main)


def rows(*values: float) -> list[dict[str, float]]:
    return [{"a": value} for value in values]


def test_rows_of_single_calls_wait_until_counts_are_taken() -> None:
    async def main() -> None:
        catalog = Catalog()
        counts = InputCounts(catalog.load)
        assert not counts.takes_at_once(ONE), "the bins are not in memory yet"
        await counts.add(ONE, Echo(), rows(-1.0), 10)
        for value in (0.0, 1.0, 2.0):
            assert counts.takes_at_once(ONE)
            counts.add_at_once(ONE, Echo(), rows(value), 10)

        assert await counts.take() == [InputAmounts(version=ONE, rows=4, counts=[2, 2, 0])]
        assert await counts.take() == []
        assert catalog.loads == [ONE]
        counts.close()

    run(main())


def test_version_without_bins_and_one_whose_bins_cannot_be_read_are_not_counted() -> None:
    async def main() -> None:
        catalog = Catalog()
        counts = InputCounts(catalog.load)
        for version in (TWO, ModelVersionId(3), TWO):
            await counts.add(version, Echo(), rows(1.0), 10)

        assert await counts.take() == []
        assert counts.takes_at_once(TWO)
        assert catalog.loads == [TWO, 3]
        counts.close()

    run(main())


class SlowColumns(Echo):
    """A model whose rows become columns while its gate is set, and that notes how many rows it has seen."""

    def input_columns(self, rows: Sequence[Any], features: Sequence[str]) -> Columns:
        self.entered.set()
        assert self.gate.wait(60)
        return super().input_columns(rows, features)


def test_rows_that_wait_for_the_thread_are_bounded() -> None:
    async def main() -> None:
        counts, model = InputCounts(Catalog().load), SlowColumns()
        model.gate.clear()
        await counts.add(ONE, model, rows(), 10)
        added = 0
        while counts.takes_at_once(ONE):
            counts.add_at_once(ONE, model, rows(1.0), 1)
            added += 1
        assert added == 2_000, "two groups of a thousand rows"
        waiting = asyncio.ensure_future(counts.add(ONE, model, rows(*[1.0] * 1_000), 1))
        await asyncio.sleep(0)
        assert not waiting.done(), "a request of many rows waits for the thread"
        model.gate.set()
        await waiting
        assert await counts.take() == [InputAmounts(version=ONE, rows=3_000, counts=[0, 3_000, 0])]
        counts.close()

    run(main())


def test_fault_of_counting_ends_no_prediction() -> None:
    async def main() -> None:
        counts = InputCounts(Catalog().load)
        await counts.add(ONE, Echo(), [{"b": 1.0}], 10)
        await counts.add(ONE, Echo(), np.array([1.0]), 10)  # type: ignore[arg-type]
        counts.add_at_once(ONE, Echo(), rows(1.0), 10)
        assert await counts.take() == []
        counts.close()

    run(main())


def test_batch_that_was_not_confirmed_is_sent_again_unchanged_before_the_next_one() -> None:
    async def main() -> None:
        counts, inputs = PredictionCounts(), InputCounts(Catalog().load)
        sender = CountSender("worker 1", counts, inputs)
        sent: list[CountBatch] = []

        async def unconfirmed(batch: CountBatch) -> None:
            sent.append(batch)
            raise DatabaseError("the connection broke")

        async def store(batch: CountBatch) -> None:
            sent.append(batch)

        await sender.send(store)
        assert sent == [], "nothing was counted"
        counts.answered(3, 0.01)
        with pytest.raises(DatabaseError):
            await sender.send(unconfirmed)
        counts.answered(4, 0.01)
        with pytest.raises(DatabaseError):
            await sender.send(unconfirmed)
        await sender.send(store)

        assert [batch.number for batch in sent] == [1, 1, 1, 2]
        assert [batch.totals["predicted_rows", ""] for batch in sent] == [3.0, 3.0, 3.0, 4.0]
        assert sent[0] == sent[1] == sent[2]
        inputs.close()

    run(main())


@pytest.mark.postgres
def test_batch_is_added_once_however_often_it_is_stored(database: Database) -> None:
    def total() -> Any:
        with database.connect() as admin:
            return admin.execute("select sum(value) from tensile.totals where name = 'sent'").fetchall()[0][0]

    first = CountBatch(source="worker 7", process=PROCESSES[0], number=1, totals={("sent", ""): 3.0})
    second = CountBatch(source="worker 7", process=PROCESSES[0], number=2, totals={("sent", ""): 4.0})
    restarted = CountBatch(source="worker 7", process=PROCESSES[1], number=1, totals={("sent", ""): 5.0})
    other = CountBatch(source="worker 8", process=PROCESSES[2], number=1, totals={("sent", ""): 6.0})
    sums = []
    with database.connect("tensile_worker") as worker:
        for batch in (first, first, second, first, second, restarted, restarted, other):
            store_batch(worker, batch)
            sums.append(total())

    assert sums == [3.0, 3.0, 7.0, 7.0, 7.0, 12.0, 12.0, 18.0]


@pytest.mark.postgres
def test_counts_for_a_standby_go_only_to_the_database_that_it_replicates(database: Database) -> None:
    batch = CountBatch(source="standby", process=PROCESSES[0], number=1, totals={("copied", ""): 3.0})
    with database.connect() as admin:
        (installation,) = admin.execute("select tensile.installation()::text").fetchone() or ("",)
        for expected, stored in ((str(PROCESSES[0]), []), (installation, [(3.0,)])):
            counts = PrimaryCounts(database.dsn("tensile_worker"), expected)
            refusal = contextlib.nullcontext() if stored else pytest.raises(DatabaseError, match="another database")
            with refusal:
                asyncio.run(counts.store(batch))
            counts.close()
            assert admin.execute("select value from tensile.totals where name = 'copied'").fetchall() == stored
