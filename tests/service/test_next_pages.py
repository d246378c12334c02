"""Check that the next page of a table is computed before its session asks, and only for this session."""

import asyncio
from dataclasses import dataclass, field
from typing import cast

import msgspec
import pytest

from indb_tensile.errors import DataError
from indb_tensile.job import ModelVersionId
from worker.serving.next_pages import NextPages, PredictedPage
from worker.serving.prediction_batches import ServedModel
from worker.serving.requests import PredictionKind, Read

FIRST = Read(
    version=ModelVersionId(7),
    kind=PredictionKind.TABLE,
    oid=20000,
    schema="public",
    relation="flowers",
    columns=[("a", "float8")],
    keys=[("id", "int8")],
    server_version=150000,
    role=10,
    snapshot="00000003-0000001B-1",
    transaction="3/27",
    pid=42,
)


def after(rows: int) -> Read:
    return msgspec.structs.replace(FIRST, after=rows)


@dataclass(slots=True)
class FakeTable:
    """A table of `rows` rows, of which a page has ten, and whose page that begins at row `broken` cannot be computed.

    While `gate` is not set, no page is computed to its end.
    """

    rows: int
    broken: int = -1
    begun: list[tuple[int, int]] = field(default_factory=list)  # connection and first row of each page
    dropped: list[int] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)

    async def compute(self, request: Read, connection: int, server_start: str) -> PredictedPage:
        self.begun.append((connection, request.after))
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.dropped.append(request.after)
            raise
        if request.after == self.broken:
            raise DataError("a row does not fit")
        rows = range(request.after, min(self.rows, request.after + 10))
        return PredictedPage(model=cast(ServedModel, None), rows=rows, answer=b"%d" % request.after)


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_each_page_is_computed_once_and_before_its_session_asks() -> None:
    async def read() -> None:
        table = FakeTable(rows=15)
        table.gate.set()
        pages = NextPages(table.compute)
        taken, ahead = [], []
        for rows in (0, 10, 15):
            taken.append((await pages.take(after(rows), 1, "start")).answer)
            await settled()
            ahead.append(table.begun[-1][1])
        assert taken == [b"0", b"10", b"15"]
        assert ahead == [10, 15, 15]
        assert table.begun == [(1, 0), (1, 10), (1, 15)]

    asyncio.run(read())


def test_a_session_that_asks_for_another_page_gets_it_and_the_prepared_page_is_dropped() -> None:
    async def read() -> None:
        table = FakeTable(rows=100)
        table.gate.set()
        pages = NextPages(table.compute)
        await pages.take(FIRST, 1, "start")
        table.gate.clear()
        await settled()
        asked = asyncio.ensure_future(pages.take(after(50), 1, "start"))
        await settled()
        table.gate.set()
        assert (await asked).answer == b"50"
        assert table.dropped == [10]

    asyncio.run(read())


@pytest.mark.parametrize("all_at_once", [False, True])
def test_the_end_of_a_connection_drops_its_page_alone(all_at_once: bool) -> None:
    async def read() -> None:
        table = FakeTable(rows=100)
        table.gate.set()
        pages = NextPages(table.compute)
        await pages.take(FIRST, 1, "start")
        await pages.take(after(20), 2, "start")
        table.gate.clear()
        await settled()
        if all_at_once:
            pages.close()
        else:
            pages.forget(1)
        await settled()
        assert table.dropped == ([10, 30] if all_at_once else [10])

    asyncio.run(read())


def test_an_error_of_a_prepared_page_is_raised_when_its_session_asks_and_then_computed_anew() -> None:
    async def read() -> None:
        table = FakeTable(rows=100, broken=10)
        table.gate.set()
        pages = NextPages(table.compute)
        await pages.take(FIRST, 1, "start")
        with pytest.raises(DataError, match="a row does not fit"):
            await pages.take(after(10), 1, "start")
        table.broken = -1
        assert (await pages.take(after(10), 1, "start")).answer == b"10"

    asyncio.run(read())
