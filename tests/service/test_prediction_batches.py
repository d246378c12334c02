"""Check how the service combines requests into batches and divides them into passes of the compute thread."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from indb_tensile.errors import InvariantError, RequestError, UnavailableError
from indb_tensile.job import ModelVersionId
from worker.serving.prediction_batches import MAX_BATCH_ROWS, PASS_NS, QUICK_NS, Batches, Counters
from worker.serving.requests import PredictionKind, RowError

from .fakes import Echo, Unevaluated

V1, V2 = ModelVersionId(1), ModelVersionId(2)


def untimed() -> Batches:
    """Return batches with a clock that stands still, so that no pass counts as slow on a busy machine."""
    return Batches(lambda: 0)


class FailingModel(Unevaluated):
    def predict_rows(self, rows: Sequence[Any], kind: str) -> list[Any]:
        raise ValueError("shapes do not match")

    def table_answer(self, entries: Sequence[Any], kind: str) -> dict[str, str | None]:
        return {}

    def features(self, side: str | None = None) -> Sequence[tuple[str, str]]:
        return ()

    def forecast(self) -> None:
        return None

    def own_kind(self) -> str:
        return "value"

    def several(self) -> bool:
        return False


class ShortModel(Unevaluated):
    def predict_rows(self, rows: Sequence[Any], kind: str) -> list[Any]:
        return []

    def table_answer(self, entries: Sequence[Any], kind: str) -> dict[str, str | None]:
        return {}

    def features(self, side: str | None = None) -> Sequence[tuple[str, str]]:
        return ()

    def forecast(self) -> None:
        return None

    def own_kind(self) -> str:
        return "value"

    def several(self) -> bool:
        return False


async def occupy_thread(batches: Batches, model: Echo) -> asyncio.Task[list[Any]]:
    """Start a request that occupies the compute thread until the model's gate is set."""
    model.gate.clear()
    first = asyncio.ensure_future(batches.predict(V1, model, [0], PredictionKind.VALUE))
    await asyncio.to_thread(model.entered.wait)
    return first


async def enqueue(
    batches: Batches, *requests: tuple[ModelVersionId, Any, list[Any], PredictionKind]
) -> list[asyncio.Task[list[Any]]]:
    tasks = [asyncio.ensure_future(batches.predict(*request)) for request in requests]
    await asyncio.sleep(0)  # after one turn of the event loop, each request is in the queue
    return tasks


def test_requests_that_arrive_while_the_thread_computes_are_one_batch() -> None:
    async def scenario() -> tuple[list[Any], Counters, list[list[Any]]]:
        batches, model = untimed(), Echo()
        first = await occupy_thread(batches, model)
        later = await enqueue(batches, *((V1, model, [n], PredictionKind.VALUE) for n in range(1, 11)))
        model.gate.set()
        values = await asyncio.gather(first, *later)
        batches.close()
        return values, batches.counters, model.passes

    values, counters, passes = asyncio.run(scenario())
    assert values == [[n] for n in range(11)]
    assert counters == Counters(requests=11, batches=2, rows=11)
    assert passes == [[0], list(range(1, 11))]


def test_batch_contains_one_model_and_kind_and_the_order_of_requests_is_kept() -> None:
    async def scenario() -> tuple[list[Any], list[list[Any]], list[list[Any]]]:
        batches, model, other = untimed(), Echo(), Echo()
        await batches.predict(
            V2, other, [0], PredictionKind.VALUE
        )  # a pass has one row until the time of a row is known
        first = await occupy_thread(batches, model)
        later = await enqueue(
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

    values, passes, other_passes = asyncio.run(scenario())
    assert values == [[0], [1], ["label 2"], [3], [4], ["label 5"]]
    assert other_passes == [[0], [1, 4]]
    assert passes == [[0], [2, 5], [3]]


def test_error_of_one_request_does_not_affect_the_rest_of_its_batch() -> None:
    async def scenario() -> list[list[Any] | BaseException]:
        batches, model = untimed(), Echo()
        first = await occupy_thread(batches, model)
        later = await enqueue(batches, *((V1, model, [row], PredictionKind.VALUE) for row in (1, "bad", 3)))
        model.gate.set()
        values: list[list[Any] | BaseException] = await asyncio.gather(first, *later, return_exceptions=True)
        batches.close()
        return values

    values = asyncio.run(scenario())
    fault = values.pop(2)
    assert values == [[0], [1], [3]]
    assert isinstance(fault, RequestError)
    assert fault.message == "column a: 'bad' is not a number"


@pytest.mark.parametrize("model", [FailingModel(), ShortModel()])
def test_failing_model_answers_with_an_error_and_the_thread_continues(model: Any) -> None:
    async def scenario() -> tuple[Any, Any]:
        batches = untimed()
        broken = await asyncio.gather(batches.predict(V1, model, [1], PredictionKind.VALUE), return_exceptions=True)
        sound = await batches.predict(V2, Echo(), [1], PredictionKind.VALUE)
        batches.close()
        return broken[0], sound

    broken, sound = asyncio.run(scenario())
    assert isinstance(broken, InvariantError)
    assert "version 1" in broken.message
    assert sound == [1]


def test_cancelled_request_is_not_computed() -> None:
    async def scenario() -> list[list[Any]]:
        batches, model = untimed(), Echo()
        first = await occupy_thread(batches, model)
        cancelled_request, kept_request = await enqueue(
            batches, (V1, model, ["gone"], PredictionKind.VALUE), (V1, model, ["stays"], PredictionKind.VALUE)
        )
        cancelled_request.cancel()
        await asyncio.sleep(0)
        model.gate.set()
        assert [await first, await kept_request] == [[0], ["stays"]]
        batches.close()
        return model.passes

    assert asyncio.run(scenario()) == [[0], ["stays"]]


def test_many_rows_are_computed_in_passes_and_the_first_pass_is_small() -> None:
    async def scenario() -> tuple[list[Any], list[int]]:
        batches, model = untimed(), Echo()
        values = await batches.predict(V1, model, list(range(2 * MAX_BATCH_ROWS + 1)), PredictionKind.VALUE)
        batches.close()
        return values, [len(rows) for rows in model.passes]

    values, sizes = asyncio.run(scenario())
    assert values == list(range(2 * MAX_BATCH_ROWS + 1))
    assert sizes == [1, MAX_BATCH_ROWS, MAX_BATCH_ROWS]


def test_other_owners_have_a_pass_between_two_passes_of_one_owner() -> None:
    async def scenario() -> list[Any]:
        batches, model = untimed(), Echo()
        first = await occupy_thread(batches, model)
        later = [
            asyncio.ensure_future(batches.predict(ModelVersionId(10 + n), model, [row], f"kind {n}", owner=owner))
            for n, (row, owner) in enumerate((("a1", 1), ("a2", 1), ("a3", 1), ("b1", 2), ("c1", 3), ("b2", 2)))
        ]
        await asyncio.sleep(0)
        model.gate.set()
        await asyncio.gather(first, *later)
        batches.close()
        return [row for passed in model.passes for row in passed]

    assert asyncio.run(scenario()) == [0, "a1", "b1", "c1", "a2", "b2", "a3"]


class TimedModel(Unevaluated):
    """A model that takes the same time for each row and for each pass, on a clock that it advances itself."""

    def __init__(self, row_ns: int, constant_ns: int) -> None:
        self.now_ns = 0
        self.row_ns, self.constant_ns = row_ns, constant_ns
        self.passes: list[int] = []

    def clock_ns(self) -> int:
        return self.now_ns

    def predict_rows(self, rows: Sequence[Any], kind: str) -> list[Any]:
        self.now_ns += self.constant_ns + self.row_ns * len(rows)
        self.passes.append(len(rows))
        return list(rows)

    def table_answer(self, entries: Sequence[Any], kind: str) -> dict[str, str | None]:
        return {}

    def features(self, side: str | None = None) -> Sequence[tuple[str, str]]:
        return ()

    def forecast(self) -> None:
        return None

    def own_kind(self) -> str:
        return "value"

    def several(self) -> bool:
        return False


@pytest.mark.parametrize(
    ("row_ns", "constant_ns", "passes"),
    [
        (PASS_NS // 20, 0, [1, 7, 20, 20, 2]),
        (2 * PASS_NS, 0, [1, 2, *[1] * 47]),  # two rows once, which shows that each row takes long
        (PASS_NS // 1000, 2 * PASS_NS, [1, 2, 5, 19, 23]),  # a table of many columns
        (PASS_NS // 1000, PASS_NS // 2, [1, 2, 5, 42]),
    ],
)
def test_rows_of_a_pass_are_limited_by_the_time_of_a_row(row_ns: int, constant_ns: int, passes: list[int]) -> None:
    async def scenario() -> list[int]:
        model = TimedModel(row_ns, constant_ns)
        batches = Batches(model.clock_ns)
        for begin, end in ((0, 8), (8, 50)):
            await batches.predict(V1, model, list(range(begin, end)), PredictionKind.VALUE)
            await wait_until_idle(batches)
        batches.close()
        return model.passes

    assert asyncio.run(scenario()) == passes


def test_small_requests_and_passes_of_large_requests_take_turns() -> None:
    async def scenario() -> list[list[Any]]:
        batches, model, other = untimed(), Echo(), Echo()
        await batches.predict(V2, other, ["known"] * 9, PredictionKind.VALUE)
        await wait_until_idle(batches)
        first = await occupy_thread(batches, model)
        many = [(V2, other, [kind] * 9, kind) for kind in (PredictionKind.VALUE, PredictionKind.VECTOR)]
        few = [(V1, model, [kind], kind) for kind in (PredictionKind.VALUE, PredictionKind.LABEL)]
        later = await enqueue(batches, *many, *few)
        passes: list[list[Any]] = []
        other.passes = model.passes = passes
        model.gate.set()
        await asyncio.gather(first, *later)
        batches.close()
        return passes

    assert asyncio.run(scenario()) == [[0], ["value"] * 9, ["value"], ["vector"] * 9, ["label"]]


def test_error_names_the_rows_position_in_the_whole_request() -> None:
    class PickyModel(Echo):
        def predict_rows(self, rows: Sequence[Any], kind: str) -> list[Any]:
            if "bad" in rows:
                raise RowError(RequestError("no"), rows.index("bad"))
            return list(rows)

    async def scenario() -> int:
        batches = untimed()
        with pytest.raises(RowError) as caught:
            await batches.predict(V1, PickyModel(), [*range(20), "bad", *range(20)], PredictionKind.VALUE)
        batches.close()
        return caught.value.row

    assert asyncio.run(scenario()) == 20


def test_request_without_rows_needs_no_model() -> None:
    async def scenario() -> list[Any]:
        batches = untimed()
        values = await batches.predict(V1, FailingModel(), [], PredictionKind.VALUE)
        batches.close()
        return values

    assert asyncio.run(scenario()) == []


def test_close_computes_waiting_requests_and_refuses_later_ones() -> None:
    async def scenario() -> list[Any]:
        batches, model = untimed(), Echo()
        first = await occupy_thread(batches, model)
        (waiting,) = await enqueue(batches, (V1, model, [1], PredictionKind.VALUE))
        closing = asyncio.ensure_future(asyncio.to_thread(batches.close))
        model.gate.set()
        values = [await first, await waiting]
        await closing
        with pytest.raises(UnavailableError, match="stopping"):
            await batches.predict(V1, model, [2], PredictionKind.VALUE)
        return values

    assert asyncio.run(scenario()) == [[0], [1]]


class ThreadNamingModel(Unevaluated):
    """A model that returns the name of the computing thread, on a clock that it advances itself."""

    def __init__(self, pass_ns: int) -> None:
        self.now_ns = 0
        self.pass_ns = pass_ns

    def clock_ns(self) -> int:
        return self.now_ns

    def predict_rows(self, rows: Sequence[Any], kind: str) -> list[Any]:
        self.now_ns += self.pass_ns
        return [threading.current_thread().name for _ in rows]

    def table_answer(self, entries: Sequence[Any], kind: str) -> dict[str, str | None]:
        return {}

    def features(self, side: str | None = None) -> Sequence[tuple[str, str]]:
        return ()

    def forecast(self) -> None:
        return None

    def own_kind(self) -> str:
        return "value"

    def several(self) -> bool:
        return False


async def wait_until_idle(batches: Batches) -> None:
    async with asyncio.timeout(30):
        while batches._busy:
            await asyncio.sleep(0)


def threads_of(model: ThreadNamingModel, *sizes: int) -> list[str]:
    """Send requests of these sizes one after another, and return the name of the thread that computes each."""

    async def scenario() -> list[str]:
        batches = Batches(model.clock_ns)
        values = []
        for size in sizes:
            values += (await batches.predict(V1, model, [0] * size, PredictionKind.VALUE))[:1]
            await wait_until_idle(batches)  # the thread records its time after it has answered
        batches.close()
        return values

    return asyncio.run(scenario())


def test_single_small_request_to_a_quick_model_is_computed_in_the_event_loop() -> None:
    own_thread = threading.current_thread().name
    assert threads_of(ThreadNamingModel(QUICK_NS - 1), 1, 1, 8, 9, 1) == [
        "compute",
        own_thread,
        own_thread,
        "compute",
        own_thread,
    ]


def test_slow_model_is_never_computed_in_the_event_loop() -> None:
    assert threads_of(ThreadNamingModel(QUICK_NS), 1, 1, 1) == ["compute", "compute", "compute"]


def test_concurrent_requests_to_a_quick_model_are_one_batch() -> None:
    async def scenario() -> tuple[Any, Counters]:
        model = ThreadNamingModel(1)
        batches = Batches(model.clock_ns)
        await batches.predict(V1, model, [0], PredictionKind.VALUE)
        values = await asyncio.gather(*(batches.predict(V1, model, [n], PredictionKind.VALUE) for n in range(5)))
        batches.close()
        return values, batches.counters

    values, counters = asyncio.run(scenario())
    assert values == [["compute"]] * 5
    assert counters == Counters(requests=6, batches=2, rows=6)


def test_quick_model_is_not_computed_in_the_event_loop_while_the_thread_computes() -> None:
    async def scenario() -> list[Any]:
        batches, slow, quick = untimed(), Echo(), ThreadNamingModel(1)
        await batches.predict(V2, quick, [0], PredictionKind.VALUE)
        first = await occupy_thread(batches, slow)
        (second,) = await enqueue(batches, (V2, quick, [0], PredictionKind.VALUE))
        slow.gate.set()
        values = [await first, await second]
        batches.close()
        return values

    assert asyncio.run(scenario()) == [[0], ["compute"]]


def test_request_is_answered_at_once_only_if_it_is_small_and_nothing_else_waits() -> None:
    async def scenario() -> list[Any]:
        batches, model = untimed(), Echo()

        def ask(rows: list[Any]) -> Any:
            return batches.predict_at_once(V1, model, rows, PredictionKind.VALUE)

        answers = [ask([1])]  # the model's speed is not known yet
        await batches.predict(V1, model, [0], PredictionKind.VALUE)
        await wait_until_idle(batches)
        answers += [ask([1, 2]), ask([3] * 100)]
        waiting = await enqueue(batches, (V2, model, [0], PredictionKind.VALUE))
        answers.append(ask([1]))
        await waiting[0]
        batches.close()
        answers.append(ask([1]))
        return answers

    assert asyncio.run(scenario()) == [None, [1, 2], None, None, None]


@pytest.mark.parametrize(("model", "fault"), [(FailingModel(), "ValueError: shapes"), (ShortModel(), "gave 0")])
def test_failing_model_is_an_internal_error_of_an_answer_at_once_too(model: Any, fault: str) -> None:
    async def scenario() -> None:
        batches = untimed()
        await batches.predict(V1, Echo(), [0], PredictionKind.VALUE)
        await wait_until_idle(batches)
        try:
            batches.predict_at_once(V1, model, [1], PredictionKind.VALUE)
        finally:
            batches.close()

    with pytest.raises(InvariantError, match=fault):
        asyncio.run(scenario())
