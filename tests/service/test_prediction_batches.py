import asyncio
import threading
from typing import Any

import pytest

from indb_tensile.errors import InvariantError, RequestError, UnavailableError
from indb_tensile.job import ModelVersionId
from worker.serving.prediction_batches import MAX_BATCH_ROWS, PASS_NS, QUICK_NS, Batches, Counters
from worker.serving.requests import PredictionKind, RowError

from .fakes import Echo

V1, V2 = ModelVersionId(1), ModelVersionId(2)


def untimed() -> Batches:
    """Passes take no time on its clock: however busy the machine, no batch is cut short because the last was slow."""
    return Batches(lambda: 0)


class Broken:
    def predict_rows(self, rows: list[Any], kind: str) -> list[Any]:
        raise ValueError("shapes do not match")

    def metrics(self, outputs: Any, targets: Any) -> dict[str, float]:
        return {}


class Short:
    def predict_rows(self, rows: list[Any], kind: str) -> list[Any]:
        return []

    def metrics(self, outputs: Any, targets: Any) -> dict[str, float]:
        return {}


async def blocked(batches: Batches, model: Echo) -> asyncio.Task[list[Any]]:
    """A request that the compute thread has begun and cannot end until the model's gate opens."""
    model.gate.clear()
    first = asyncio.ensure_future(batches.predict(V1, model, [0], PredictionKind.VALUE))
    await asyncio.to_thread(model.entered.wait)
    return first


async def queued(
    batches: Batches, *requests: tuple[ModelVersionId, Any, list[Any], PredictionKind]
) -> list[asyncio.Task[list[Any]]]:
    tasks = [asyncio.ensure_future(batches.predict(*request)) for request in requests]
    await asyncio.sleep(0)  # one turn of the loop: each has put itself into the queue
    return tasks


def test_what_arrives_while_the_thread_computes_is_one_batch() -> None:
    async def scene() -> tuple[list[Any], Counters, list[list[Any]]]:
        batches, model = untimed(), Echo()
        first = await blocked(batches, model)
        later = await queued(batches, *((V1, model, [n], PredictionKind.VALUE) for n in range(1, 11)))
        model.gate.set()
        values = await asyncio.gather(first, *later)
        batches.close()
        return values, batches.counters, model.passes

    values, counters, passes = asyncio.run(scene())
    assert values == [[n] for n in range(11)]
    assert counters == Counters(requests=11, batches=2, rows=11)
    assert passes == [[0], list(range(1, 11))]


def test_a_batch_holds_one_model_and_one_kind_and_the_others_keep_their_order() -> None:
    async def scene() -> tuple[list[Any], list[list[Any]], list[list[Any]]]:
        batches, model, other = untimed(), Echo(), Echo()
        await batches.predict(V2, other, [0], PredictionKind.VALUE)  # until a row's time is known, a pass has one row
        first = await blocked(batches, model)
        later = await queued(
            batches,
            (V2, other, [1], PredictionKind.VALUE),
            (V1, model, [2], PredictionKind.LABEL),
            (V1, model, [3], PredictionKind.VALUE),
            (V2, other, [4], PredictionKind.VALUE),
            (V1, model, [5], PredictionKind.LABEL),
        )
        model.gate.set()
        values = await asyncio.gather(first, *later)
        batches.close()
        return values, model.passes, other.passes

    values, passes, other_passes = asyncio.run(scene())
    assert values == [[0], [1], ["label 2"], [3], [4], ["label 5"]]
    assert other_passes == [[0], [1, 4]]
    assert passes == [[0], [2, 5], [3]]


def test_the_fault_of_one_request_is_not_that_of_those_it_was_batched_with() -> None:
    async def scene() -> list[list[Any] | BaseException]:
        batches, model = untimed(), Echo()
        first = await blocked(batches, model)
        later = await queued(batches, *((V1, model, [row], PredictionKind.VALUE) for row in (1, "bad", 3)))
        model.gate.set()
        values: list[list[Any] | BaseException] = await asyncio.gather(first, *later, return_exceptions=True)
        batches.close()
        return values

    values = asyncio.run(scene())
    fault = values.pop(2)
    assert values == [[0], [1], [3]]
    assert isinstance(fault, RequestError)
    assert fault.message == "column a: 'bad' is not a number"


@pytest.mark.parametrize("model", [Broken(), Short()])
def test_a_model_that_fails_answers_with_an_error_and_the_thread_goes_on(model: Any) -> None:
    async def scene() -> tuple[Any, Any]:
        batches = untimed()
        broken = await asyncio.gather(batches.predict(V1, model, [1], PredictionKind.VALUE), return_exceptions=True)
        sound = await batches.predict(V2, Echo(), [1], PredictionKind.VALUE)
        batches.close()
        return broken[0], sound

    broken, sound = asyncio.run(scene())
    assert isinstance(broken, InvariantError)
    assert "version 1" in broken.message
    assert sound == [1]


def test_a_request_whose_client_has_gone_is_not_computed() -> None:
    async def scene() -> list[list[Any]]:
        batches, model = untimed(), Echo()
        first = await blocked(batches, model)
        gone, stays = await queued(
            batches, (V1, model, ["gone"], PredictionKind.VALUE), (V1, model, ["stays"], PredictionKind.VALUE)
        )
        gone.cancel()
        await asyncio.sleep(0)
        model.gate.set()
        assert [await first, await stays] == [[0], ["stays"]]
        batches.close()
        return model.passes

    assert asyncio.run(scene()) == [[0], ["stays"]]


def test_many_rows_go_in_passes_the_first_of_them_small() -> None:
    async def scene() -> tuple[list[Any], list[int]]:
        batches, model = untimed(), Echo()
        values = await batches.predict(V1, model, list(range(2 * MAX_BATCH_ROWS + 1)), PredictionKind.VALUE)
        batches.close()
        return values, [len(rows) for rows in model.passes]

    values, sizes = asyncio.run(scene())
    assert values == list(range(2 * MAX_BATCH_ROWS + 1))
    assert sizes == [1, MAX_BATCH_ROWS, MAX_BATCH_ROWS]


def test_between_two_passes_of_one_owner_everybody_else_has_a_turn() -> None:
    async def scene() -> list[Any]:
        batches, model = untimed(), Echo()
        first = await blocked(batches, model)
        later = [
            asyncio.ensure_future(batches.predict(ModelVersionId(10 + n), model, [row], f"kind {n}", owner=owner))
            for n, (row, owner) in enumerate((("a1", 1), ("a2", 1), ("a3", 1), ("b1", 2), ("c1", 3), ("b2", 2)))
        ]
        await asyncio.sleep(0)
        model.gate.set()
        await asyncio.gather(first, *later)
        batches.close()
        return [row for passed in model.passes for row in passed]

    assert asyncio.run(scene()) == [0, "a1", "b1", "c1", "a2", "b2", "a3"]


class Timed:
    """A model that takes as long for each row, on a clock that it moves itself."""

    def __init__(self, row_ns: int) -> None:
        self.now_ns = 0
        self.row_ns = row_ns
        self.passes: list[int] = []

    def clock_ns(self) -> int:
        return self.now_ns

    def predict_rows(self, rows: list[Any], kind: str) -> list[Any]:
        self.now_ns += self.row_ns * len(rows)
        self.passes.append(len(rows))
        return rows

    def metrics(self, outputs: Any, targets: Any) -> dict[str, float]:
        return {}


@pytest.mark.parametrize(("row_ns", "passes"), [(PASS_NS // 20, [1, 7, 20, 20, 2]), (2 * PASS_NS, [1] * 50)])
def test_a_pass_of_a_slow_model_takes_about_as_long_as_one_may(row_ns: int, passes: list[int]) -> None:
    async def scene() -> list[int]:
        model = Timed(row_ns)
        batches = Batches(model.clock_ns)
        for begin, end in ((0, 8), (8, 50)):
            await batches.predict(V1, model, list(range(begin, end)), PredictionKind.VALUE)
            await idle(batches)
        batches.close()
        return model.passes

    assert asyncio.run(scene()) == passes


def test_a_request_of_few_rows_goes_before_the_next_pass_of_many_and_the_two_take_turns() -> None:
    async def scene() -> list[list[Any]]:
        batches, model, other = untimed(), Echo(), Echo()
        await batches.predict(V2, other, ["known"] * 9, PredictionKind.VALUE)
        await idle(batches)
        first = await blocked(batches, model)
        many = [(V2, other, [kind] * 9, kind) for kind in (PredictionKind.VALUE, PredictionKind.VECTOR)]
        few = [(V1, model, [kind], kind) for kind in (PredictionKind.VALUE, PredictionKind.LABEL)]
        later = await queued(batches, *many, *few)
        passes: list[list[Any]] = []
        other.passes = model.passes = passes
        model.gate.set()
        await asyncio.gather(first, *later)
        batches.close()
        return passes

    assert asyncio.run(scene()) == [[0], ["value"] * 9, ["value"], ["vector"] * 9, ["label"]]


def test_a_fault_is_told_with_the_rows_place_in_the_whole_request() -> None:
    class Picky(Echo):
        def predict_rows(self, rows: list[Any], kind: str) -> list[Any]:
            if "bad" in rows:
                raise RowError(RequestError("no"), rows.index("bad"))
            return rows

    async def scene() -> int:
        batches = untimed()
        with pytest.raises(RowError) as caught:
            await batches.predict(V1, Picky(), [*range(20), "bad", *range(20)], PredictionKind.VALUE)
        batches.close()
        return caught.value.row

    assert asyncio.run(scene()) == 20


def test_no_rows_need_no_model() -> None:
    async def scene() -> list[Any]:
        batches = untimed()
        values = await batches.predict(V1, Broken(), [], PredictionKind.VALUE)
        batches.close()
        return values

    assert asyncio.run(scene()) == []


def test_when_it_closes_what_waits_is_computed_and_what_comes_later_is_refused() -> None:
    async def scene() -> list[Any]:
        batches, model = untimed(), Echo()
        first = await blocked(batches, model)
        (waiting,) = await queued(batches, (V1, model, [1], PredictionKind.VALUE))
        closing = asyncio.ensure_future(asyncio.to_thread(batches.close))
        model.gate.set()
        values = [await first, await waiting]
        await closing
        with pytest.raises(UnavailableError, match="stopping"):
            await batches.predict(V1, model, [2], PredictionKind.VALUE)
        return values

    assert asyncio.run(scene()) == [[0], [1]]


class Placed:
    """A model that says which thread computes it, on a clock that it moves itself."""

    def __init__(self, pass_ns: int) -> None:
        self.now_ns = 0
        self.pass_ns = pass_ns

    def clock_ns(self) -> int:
        return self.now_ns

    def predict_rows(self, rows: list[Any], kind: str) -> list[Any]:
        self.now_ns += self.pass_ns
        return [threading.current_thread().name for _ in rows]

    def metrics(self, outputs: Any, targets: Any) -> dict[str, float]:
        return {}


async def idle(batches: Batches) -> None:
    async with asyncio.timeout(30):
        while batches._busy:
            await asyncio.sleep(0)


def places(model: Placed, *sizes: int) -> list[str]:
    """The thread that computes each of these requests, one after the other."""

    async def scene() -> list[str]:
        batches = Batches(model.clock_ns)
        values = []
        for size in sizes:
            values += (await batches.predict(V1, model, [0] * size, PredictionKind.VALUE))[:1]
            await idle(batches)  # the thread answers first and notes afterwards how long it took
        batches.close()
        return values

    return asyncio.run(scene())


def test_a_lone_request_of_few_rows_to_a_model_known_to_be_quick_is_computed_where_it_arrived() -> None:
    here = threading.current_thread().name
    assert places(Placed(QUICK_NS - 1), 1, 1, 8, 9, 1) == ["compute", here, here, "compute", here]


def test_a_model_that_is_not_quick_never_holds_up_the_event_loop() -> None:
    assert places(Placed(QUICK_NS), 1, 1, 1) == ["compute", "compute", "compute"]


def test_requests_that_arrive_together_are_one_batch_even_of_a_quick_model() -> None:
    async def scene() -> tuple[Any, Counters]:
        model = Placed(1)
        batches = Batches(model.clock_ns)
        await batches.predict(V1, model, [0], PredictionKind.VALUE)
        values = await asyncio.gather(*(batches.predict(V1, model, [n], PredictionKind.VALUE) for n in range(5)))
        batches.close()
        return values, batches.counters

    values, counters = asyncio.run(scene())
    assert values == [["compute"]] * 5
    assert counters == Counters(requests=6, batches=2, rows=6)


def test_a_quick_model_is_not_computed_twice_at_once() -> None:
    async def scene() -> list[Any]:
        batches, slow, quick = untimed(), Echo(), Placed(1)
        await batches.predict(V2, quick, [0], PredictionKind.VALUE)
        first = await blocked(batches, slow)
        (second,) = await queued(batches, (V2, quick, [0], PredictionKind.VALUE))
        slow.gate.set()
        values = [await first, await second]
        batches.close()
        return values

    assert asyncio.run(scene()) == [[0], ["compute"]]
