"""One compute thread for all predictions: what arrives while it works is one batch per model when it is done.

Nothing waits for a batch to fill: a lone request is computed at once, and under load the batches grow by
themselves. A lone request of a few rows to a model known to be quick is computed where it arrived, on the event
loop: handing it to the thread and back takes longer (some 120 us) than most models do.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

from indb_tensile.errors import InvariantError, RequestError, UnavailableError
from indb_tensile.job import ModelVersionId

from .requests import Kind

MAX_BATCH_ROWS = 4096  # bounds how long one model holds the thread, and the activations of one pass

QUICK_NS = 500_000  # a pass that the event loop can afford: other connections wait as long
_FEW_ROWS = 8

_log = logging.getLogger(__name__)


class Model(Protocol):
    """A loaded version of a model."""

    def predict_rows(self, rows: list[Any], kind: str) -> list[Any]:
        """One prediction per row. Raises RequestError naming the column that does not fit."""
        ...


@dataclass(slots=True)
class Counters:
    """What the compute thread has done: fewer batches than requests is batching at work."""

    requests: int = 0
    batches: int = 0
    rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Waiting:
    version: ModelVersionId
    model: Model
    kind: Kind
    rows: list[Any]
    result: Future[list[Any]] = field(default_factory=Future)

    def joins(self, other: "_Waiting") -> bool:
        return self.model is other.model and self.kind == other.kind


class Batches:
    """The compute thread and what waits for it. `clock_ns` tells how long a pass takes."""

    def __init__(self, clock_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self.counters = Counters()
        self._clock_ns = clock_ns
        self._last_pass_ns: dict[ModelVersionId, int] = {}
        self._waiting: deque[_Waiting] = deque()
        self._changed = threading.Condition()
        self._busy = False
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="compute", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        """How many requests wait."""
        return len(self._waiting)

    async def predict(self, version: ModelVersionId, model: Model, rows: list[Any], kind: Kind) -> list[Any]:
        """One prediction per row, computed together with what else waits for the same model.

        More than MAX_BATCH_ROWS go in parts, between which others have their turn.
        """
        values: list[Any] = []
        for begin in range(0, len(rows), MAX_BATCH_ROWS):
            values += await self._queue(version, model, rows[begin : begin + MAX_BATCH_ROWS], kind)
        return values

    def close(self) -> None:
        """Refuse new requests, finish what waits, end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    async def _queue(self, version: ModelVersionId, model: Model, rows: list[Any], kind: Kind) -> list[Any]:
        waiting = _Waiting(version=version, model=model, kind=kind, rows=rows)
        with self._changed:
            if self._closed:
                raise UnavailableError("the service is stopping", hint="ask again: a new one is started")
            self._waiting.append(waiting)
        # Not yet: whatever else has arrived by now puts itself into the queue first.
        asyncio.get_running_loop().call_soon(self._flush)
        return await asyncio.wrap_future(waiting.result)

    def _flush(self) -> None:
        """Compute what waits here, or have the thread do it. Runs on the event loop."""
        with self._changed:
            if self._busy or len(self._waiting) != 1 or not self._is_quick(self._waiting[0]):
                self._changed.notify()
                return
            batch = _take(self._waiting)
        self._compute(batch)

    def _is_quick(self, one: _Waiting) -> bool:
        return len(one.rows) <= _FEW_ROWS and self._last_pass_ns.get(one.version, QUICK_NS) < QUICK_NS

    def _run(self) -> None:
        while batch := self._next():
            self._compute(batch)

    def _next(self) -> list[_Waiting]:
        """The oldest request and all that can be computed with it; empty when closed and done."""
        with self._changed:
            self._busy = False
            self._changed.wait_for(lambda: self._waiting or self._closed)
            self._busy = True
            return _take(self._waiting)

    def _compute(self, batch: list[_Waiting]) -> None:
        started_ns = self._clock_ns()
        _compute(batch, self.counters)
        self._last_pass_ns[batch[0].version] = self._clock_ns() - started_ns


def _take(waiting: deque[_Waiting]) -> list[_Waiting]:
    """Remove the oldest request and those that join it, up to MAX_BATCH_ROWS; the others keep their order."""
    batch: list[_Waiting] = []
    others: list[_Waiting] = []
    rows = 0
    for one in waiting:
        if not batch or (one.joins(batch[0]) and rows + len(one.rows) <= MAX_BATCH_ROWS):
            batch.append(one)
            rows += len(one.rows)
        else:
            others.append(one)
    waiting.clear()
    waiting.extend(others)
    return batch


def _compute(batch: Sequence[_Waiting], counters: Counters) -> None:
    """Answer every request of the batch. A batch that fails is computed one by one: a row's fault is its own."""
    wanted = [one for one in batch if one.result.set_running_or_notify_cancel()]
    if not wanted:
        return
    try:
        values = _predict(wanted, counters)
    except RequestError as error:
        if len(wanted) == 1:
            wanted[0].result.set_exception(error)
            return
        for one in wanted:
            _compute_alone(one, counters)
        return
    except Exception as error:  # noqa: BLE001 - the thread's outermost loop: one model's fault must not end it
        _log.exception("predicting with version %d failed", wanted[0].version)
        _fail(wanted, error)
        return
    begin = 0
    for one in wanted:
        one.result.set_result(values[begin : begin + len(one.rows)])
        begin += len(one.rows)


def _compute_alone(one: _Waiting, counters: Counters) -> None:
    try:
        one.result.set_result(_predict([one], counters))
    except RequestError as error:
        one.result.set_exception(error)
    except Exception as error:  # noqa: BLE001 - as above
        _log.exception("predicting with version %d failed", one.version)
        _fail([one], error)


def _predict(wanted: Sequence[_Waiting], counters: Counters) -> list[Any]:
    rows = wanted[0].rows if len(wanted) == 1 else [row for one in wanted for row in one.rows]
    values = wanted[0].model.predict_rows(rows, wanted[0].kind.value)
    if len(values) != len(rows):
        raise InvariantError(f"version {wanted[0].version} gave {len(values)} predictions for {len(rows)} rows")
    counters.requests += len(wanted)
    counters.batches += 1
    counters.rows += len(rows)
    return values


def _fail(wanted: Sequence[_Waiting], error: Exception) -> None:
    fault = InvariantError(
        f"predicting with version {wanted[0].version} failed: {type(error).__name__}: {error}",
        hint="the service's log has the whole of it",
    )
    for one in wanted:
        one.result.set_exception(fault)
