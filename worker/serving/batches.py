"""One compute thread for all predictions: what arrives while it works is one batch per model when it is done.

A request of many rows is computed in passes that take about PASS_NS each by what the model's rows took before. A
request of a few rows that waits goes before the next pass of a long one, and the two kinds take turns under load.
Among requests of one kind the owner of the model whose last pass is longest ago comes first. So between two passes of
one owner's models everybody else has a turn, however slow these models are.

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

import numpy as np
import numpy.typing as npt

from indb_tensile.errors import InvariantError, RequestError, UnavailableError
from indb_tensile.job import ModelVersionId

from .requests import RowError

MAX_BATCH_ROWS = 4096  # bounds the activations of one pass
PASS_NS = 100_000_000  # a pass of many rows takes about so long: others wait for it

QUICK_NS = 500_000  # a pass that the event loop can afford: other connections wait as long
_FEW_ROWS = 8  # rows of a request that goes first

_log = logging.getLogger(__name__)


class Model(Protocol):
    """A loaded version of a model."""

    def predict_rows(self, rows: list[Any], kind: str) -> list[Any]:
        """One prediction per row. Raises RequestError naming the column that does not fit."""
        ...

    def metrics(self, outputs: npt.NDArray[np.float32], targets: npt.NDArray[Any]) -> dict[str, float]:
        """The metrics of scored rows."""
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
    kind: str
    rows: list[Any]
    owner: int  # of the model: a role's oid
    result: Future[list[Any]] = field(default_factory=Future)

    @property
    def few(self) -> bool:
        """Whether it goes before those of many rows."""
        return len(self.rows) <= _FEW_ROWS

    def joins(self, other: "_Waiting") -> bool:
        return self.model is other.model and self.kind == other.kind


class Batches:
    """The compute thread and what waits for it. `clock_ns` tells how long a pass takes."""

    def __init__(self, clock_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self.counters = Counters()
        self._clock_ns = clock_ns
        self._last_pass_ns: dict[ModelVersionId, int] = {}
        self._row_ns: dict[ModelVersionId, float] = {}  # by the last pass of many rows, else by the last one
        self._measured: set[ModelVersionId] = set()  # those that have had a pass of many rows
        self._many_next = False  # a request of many rows has its turn before those of few
        self._turns = 0
        self._last_turn: dict[int, int] = {}  # of each owner
        self._waiting: deque[_Waiting] = deque()
        self._changed = threading.Condition()
        self._busy = False
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="compute", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        """How many requests wait."""
        return len(self._waiting)

    async def predict(
        self, version: ModelVersionId, model: Model, rows: list[Any], kind: str, *, owner: int = 0
    ) -> list[Any]:
        """One prediction per row, computed together with what else waits for the same model.

        Many rows go in passes, between which others have their turn. Raises RowError with the row's place in `rows`.
        """
        values: list[Any] = []
        while (begin := len(values)) < len(rows):
            part = rows[begin : begin + self._pass_rows(version)]
            try:
                values += await self._queue(version, model, part, kind, owner)
            except RowError as error:
                raise RowError(error, begin + error.row) from error
        return values

    def close(self) -> None:
        """Refuse new requests, finish what waits, end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _pass_rows(self, version: ModelVersionId) -> int:
        """How many rows of this version take about PASS_NS, by what is known of it."""
        row_ns = self._row_ns.get(version, PASS_NS)  # one row, until its time is known: it may be any
        return min(MAX_BATCH_ROWS, max(1, int(PASS_NS / max(row_ns, 1.0))))

    async def _queue(
        self, version: ModelVersionId, model: Model, rows: list[Any], kind: str, owner: int
    ) -> list[Any]:
        waiting = _Waiting(version=version, model=model, kind=kind, rows=rows, owner=owner)
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
            batch = self._take()
        self._compute(batch)

    def _is_quick(self, one: _Waiting) -> bool:
        return one.few and self._last_pass_ns.get(one.version, QUICK_NS) < QUICK_NS

    def _run(self) -> None:
        while batch := self._next():
            self._compute(batch)

    def _next(self) -> list[_Waiting]:
        """The oldest request and all that can be computed with it; empty when closed and done."""
        with self._changed:
            self._busy = False
            self._changed.wait_for(lambda: self._waiting or self._closed)
            self._busy = True
            return self._take()

    def _take(self) -> list[_Waiting]:
        """Remove the request whose turn it is and those that join it; the others keep their order."""
        if not self._waiting:
            return []
        many = self._many_next
        eligible = [one for one in self._waiting if one.few != many] or list(self._waiting)
        first = min(eligible, key=lambda one: self._last_turn.get(one.owner, 0))  # the oldest of equals
        self._turns += 1
        self._last_turn[first.owner] = self._turns
        self._many_next = first.few
        batch, others, rows = [first], [], len(first.rows)
        most_rows = self._pass_rows(first.version)
        for one in self._waiting:
            if one is first:
                continue
            if one.joins(first) and rows + len(one.rows) <= most_rows:
                batch.append(one)
                rows += len(one.rows)
            else:
                others.append(one)
        self._waiting.clear()
        self._waiting.extend(others)
        return batch

    def _compute(self, batch: Sequence[_Waiting]) -> None:
        """Answer every request of the batch. A batch that fails is computed one by one: a row's fault is its own."""
        wanted = [one for one in batch if one.result.set_running_or_notify_cancel()]
        if wanted:
            self._answer(wanted)

    def _answer(self, wanted: Sequence[_Waiting]) -> None:
        try:
            values = self._predict(wanted)
        except RequestError as error:
            if len(wanted) == 1:
                wanted[0].result.set_exception(error)
                return
            for one in wanted:
                self._answer([one])
        except Exception as error:  # noqa: BLE001 - the thread's outermost loop: one model's fault must not end it
            _log.exception("predicting with version %d failed", wanted[0].version)
            _fail(wanted, error)
        else:
            begin = 0
            for one in wanted:
                one.result.set_result(values[begin : begin + len(one.rows)])
                begin += len(one.rows)

    def _predict(self, wanted: Sequence[_Waiting]) -> list[Any]:
        """The predictions for all rows of these requests, which are for one model and of one kind."""
        version, model, kind = wanted[0].version, wanted[0].model, str(wanted[0].kind)
        rows = wanted[0].rows if len(wanted) == 1 else [row for one in wanted for row in one.rows]
        started_ns = self._clock_ns()
        try:
            values = model.predict_rows(rows, kind)
        finally:  # measured before any result is handed out: the size of the request's next pass depends on it
            self._measure(version, self._clock_ns() - started_ns, len(rows))
        if len(values) != len(rows):
            raise InvariantError(f"version {version} gave {len(values)} predictions for {len(rows)} rows")
        self.counters.requests += len(wanted)
        self.counters.batches += 1
        self.counters.rows += len(rows)
        return values

    def _measure(self, version: ModelVersionId, pass_ns: int, rows: int) -> None:
        self._last_pass_ns[version] = pass_ns
        if rows >= _FEW_ROWS:
            self._measured.add(version)
        if rows >= _FEW_ROWS or version not in self._measured:
            self._row_ns[version] = pass_ns / max(rows, 1)


def _fail(wanted: Sequence[_Waiting], error: Exception) -> None:
    fault = InvariantError(
        f"predicting with version {wanted[0].version} failed: {type(error).__name__}: {error}",
        hint="the service's log has the whole of it",
    )
    for one in wanted:
        one.result.set_exception(fault)
