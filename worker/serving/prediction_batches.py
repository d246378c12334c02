"""Computes all predictions in one thread, and batches requests to the same model that arrive while it works.

A pass is one computation of a model for a number of rows. A request of many rows is computed in passes of about
PASS_NS each, as estimated from the model's earlier passes. A waiting request of a few rows goes before the next pass
of a request of many rows; under load the two sizes alternate. Among requests of one size, the owner whose models were
computed least recently comes first. So between two passes for one owner, all other owners are served, however slow
that owner's models are.

No request waits for a batch to fill: a single request is computed at once, and under load the batches grow. A single
request of a few rows to a fast model is computed on the event loop at once, because passing it to the thread and back
takes longer (about 120 us) than most models do.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from indb_tensile.errors import InvariantError, RequestError, UnavailableError
from indb_tensile.job import ModelVersionId
from indb_tensile.learning.evaluation.shapley_values import ShapleyGame
from indb_tensile.learning.storage.columns import Columns
from indb_tensile.learning.storage.encoded_rows import EncodedRows

from .requests import Figure, FigureOptions, RowError

MAX_BATCH_ROWS = 4096  # limits the memory for activations of one pass
PASS_NS = 100_000_000  # the intended duration of a pass of many rows, for which other requests wait

_MOST_GROWTH = 16  # a pass has at most about this many times the rows of the pass before, because times are inexact

QUICK_NS = 500_000  # the longest pass on the event loop, for which other connections wait
_FEW_ROWS = 8  # most rows of a request that goes before requests of many rows

_log = logging.getLogger(__name__)


class ServedModel(Protocol):
    """A loaded version of a model."""

    def predict_rows(self, rows: Sequence[Any], kind: str) -> list[Any]:
        """Return one prediction per row. Raises RequestError that names the column that does not fit."""
        ...

    def table_answer(self, entries: Sequence[Any], kind: str) -> dict[str, str | None]:
        """Return the answers for rows of a relation, as texts for SQL, from the results of `predict_rows`."""
        ...

    def features(self, side: str | None = None) -> Sequence[tuple[str, str]]:
        """Return the names of the columns that a row needs, and their kinds; with `side` one of one side of pairs."""
        ...

    def input_columns(self, rows: Sequence[Any], features: Sequence[str]) -> Columns:
        """Return these features of rows that the model has predicted for."""
        ...

    def odd_columns(self, outputs: npt.NDArray[np.float32]) -> list[list[Any]] | None:
        """Return what each column adds to a row's anomaly score, or None for a model of another task."""
        ...

    def forecast(self) -> dict[str, Any] | None:
        """Return the columns and the lengths that a forecast needs, or None for a model of another task."""
        ...

    def own_kind(self) -> str:
        """Return the kind of prediction that suits the model: value, label, labels or values."""
        ...

    def several(self) -> bool:
        """Return whether the target consists of several columns."""
        ...

    def metrics(self, outputs: npt.NDArray[np.float32], targets: npt.NDArray[Any]) -> dict[str, float]:
        """Return the metrics of scored rows."""
        ...

    def check_figure(self, figure: Figure, options: FigureOptions) -> None:
        """Raise RequestError for a figure that the model does not have."""
        ...

    def figure(
        self, figure: Figure, options: FigureOptions, outputs: npt.NDArray[np.float32], targets: npt.NDArray[Any]
    ) -> Sequence[Sequence[Any]]:
        """Return the rows of a figure of scored rows."""
        ...

    def permuted_columns(
        self, x: npt.NDArray[np.float32], repeats: int, seed: int
    ) -> Iterator[tuple[str, list[EncodedRows]]]:
        """Yield each column with the encoded rows of its permutations."""
        ...

    def judge(self, options: FigureOptions, outputs: npt.NDArray[np.float32], targets: npt.NDArray[Any]) -> float:
        """Return the metric whose decrease is the importance of a column, NaN if the rows do not define it."""

    def judged_by(self, options: FigureOptions) -> tuple[str, bool]:
        """Return the name of the metric that `judge` computes, and whether a higher value is better."""

    def shapley_game(
        self, x: npt.NDArray[np.float32], label: str | None, seed: int
    ) -> tuple[ShapleyGame, EncodedRows]:
        """Return the coalitions of the columns of an encoded row, and the encoded rows to predict for."""
        ...

    def attributions(self, game: ShapleyGame, outputs: npt.NDArray[np.float32], label: str | None) -> list[list[Any]]:
        """Return what each column adds to the prediction (Shapley values). `outputs` are for `game.rows`."""
        ...


@dataclass(slots=True)
class Counters:
    """Counters of the compute thread. If there are fewer batches than requests, requests were computed together."""

    requests: int = 0
    batches: int = 0
    rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Waiting:
    """One request that waits for its turn, or one pass of a longer request."""

    version: ModelVersionId
    model: ServedModel
    kind: str
    rows: Sequence[Any]  # JSON values, or BinaryRows
    owner: int  # oid of the role that owns the model
    result: Future[list[Any]] = field(default_factory=Future)

    @property
    def has_few_rows(self) -> bool:
        """Whether the request has few rows, and so goes before requests of many rows."""
        return len(self.rows) <= _FEW_ROWS

    def can_join(self, other: "_Waiting") -> bool:
        """Return whether both can be computed in one pass."""
        plain = isinstance(self.rows, list) and isinstance(other.rows, list)
        return plain and self.model is other.model and self.kind == other.kind


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pace:
    """The time that a version computes, by its last pass: a constant time, and `row_ns` for each row.

    The constant time matters: a pass of a table of many columns takes a tenth of a second for its columns, however
    few its rows are. If the whole time were attributed to the rows, all passes would have few rows. `compared` is
    true once passes of different numbers of rows have told the two apart.
    """

    rows: int
    pass_ns: int
    row_ns: float
    compared: bool = False

    @classmethod
    def after(cls, before: "_Pace | None", *, rows: int, pass_ns: int) -> "_Pace":
        """Return the pace after a pass.

        The time of a row follows from the difference of two passes, if one has at least twice the rows of the other.
        """
        mean_ns = pass_ns / rows
        comparable = before is not None and max(rows, before.rows) >= 2 * min(rows, before.rows)
        if before is None:
            row_ns = mean_ns
        elif comparable:
            row_ns = (pass_ns - before.pass_ns) / (rows - before.rows)
        else:
            row_ns = before.row_ns
        return cls(
            rows=rows,
            pass_ns=pass_ns,
            row_ns=min(max(row_ns, mean_ns / _MOST_GROWTH), mean_ns),
            compared=comparable or (before is not None and before.compared),
        )

    def rows_of_pass(self) -> int:
        """Return how many rows to compute in the next pass: at least half of PASS_NS is for rows."""
        constant_ns = self.pass_ns - self.row_ns * self.rows
        rows = int(max(PASS_NS - constant_ns, PASS_NS / 2) / max(self.row_ns, 1.0))
        return rows if self.compared else max(rows, 2 * self.rows)


class Batches:
    """The compute thread and its queue. `clock_ns` measures the duration of passes."""

    def __init__(self, clock_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self.counters = Counters()
        self._clock_ns = clock_ns
        self._last_pass_ns: dict[ModelVersionId, int] = {}
        self._paces: dict[ModelVersionId, _Pace] = {}  # from the last passes of _FEW_ROWS or more, if any
        self._measured: set[ModelVersionId] = set()  # versions that have had a pass of _FEW_ROWS or more
        self._many_next = False  # whether a request of many rows is next, before those of few rows
        self._turns = 0  # a turn is one batch, counted for the owner of its models
        self._last_turn: dict[int, int] = {}  # the number of each owner's last turn
        self._waiting: deque[_Waiting] = deque()
        self._changed = threading.Condition()
        self._busy = False
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="compute", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        """Return the number of waiting requests."""
        return len(self._waiting)

    async def predict(
        self, version: ModelVersionId, model: ServedModel, rows: Sequence[Any], kind: str, *, owner: int = 0
    ) -> list[Any]:
        """Return one prediction per row, computed together with waiting requests to the same model.

        Many rows are computed in several passes, between which other requests are served. Raises RowError with the
        row's number in `rows`.
        """
        values: list[Any] = []
        while (begin := len(values)) < len(rows):
            part = rows[begin : begin + self._pass_rows(version)]
            try:
                values += await self._queue(version, model, part, kind, owner)
            except RowError as error:
                raise RowError(error, begin + error.row) from error
        return values

    def predict_at_once(
        self, version: ModelVersionId, model: ServedModel, rows: list[Any], kind: str, *, owner: int = 0
    ) -> list[Any] | None:
        """Return one prediction per row, or None if the rows are many, the model is slow, or other requests wait.

        Raises RequestError for a row that does not fit.
        """
        with self._changed:
            if self._busy or self._waiting or self._closed or not self._is_quick(version, len(rows)):
                return None
            self._take_turn(owner)
        try:
            return self._predict(version, model, kind, rows)
        except RequestError:
            raise
        except Exception as error:
            _log.exception("predicting with version %d failed", version)
            raise _fault(version, error) from error

    def close(self) -> None:
        """Refuse new requests, finish waiting ones, and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _pass_rows(self, version: ModelVersionId) -> int:
        """Return how many rows of this version take about PASS_NS, as far as its speed is known."""
        pace = self._paces.get(version)
        return 1 if pace is None else min(MAX_BATCH_ROWS, max(1, pace.rows_of_pass()))  # a row may take long

    async def _queue(
        self, version: ModelVersionId, model: ServedModel, rows: Sequence[Any], kind: str, owner: int
    ) -> list[Any]:
        waiting = _Waiting(version=version, model=model, kind=kind, rows=rows, owner=owner)
        with self._changed:
            if self._closed:
                raise UnavailableError("the service is stopping", hint="Ask again: a new service is started.")
            self._waiting.append(waiting)
        # Requests that have already arrived at the event loop enter the queue first.
        asyncio.get_running_loop().call_soon(self._flush)
        return await asyncio.wrap_future(waiting.result)

    def _flush(self) -> None:
        """Compute the waiting request on the event loop if it is quick, else wake the thread."""
        with self._changed:
            if self._busy or len(self._waiting) != 1 or not self._first_is_quick():
                self._changed.notify()
                return
            batch = self._take_batch()
        self._compute(batch)

    def _first_is_quick(self) -> bool:
        return self._is_quick(self._waiting[0].version, len(self._waiting[0].rows))

    def _is_quick(self, version: ModelVersionId, rows: int) -> bool:
        return rows <= _FEW_ROWS and self._last_pass_ns.get(version, QUICK_NS) < QUICK_NS

    def _take_turn(self, owner: int) -> None:
        self._turns += 1
        self._last_turn[owner] = self._turns

    def _run(self) -> None:
        while batch := self._next_batch():
            self._compute(batch)

    def _next_batch(self) -> list[_Waiting]:
        """Wait for requests and return the next batch. It is empty if the queue is closed and no request waits."""
        with self._changed:
            self._busy = False
            self._changed.wait_for(lambda: self._waiting or self._closed)
            self._busy = True
            return self._take_batch()

    def _take_batch(self) -> list[_Waiting]:
        """Remove the request whose turn it is, and those that can join it. The others keep their order."""
        if not self._waiting:
            return []
        many = self._many_next
        eligible = [request for request in self._waiting if request.has_few_rows != many] or list(self._waiting)
        # Of equal owners min() returns the first request, which is the oldest.
        first = min(eligible, key=lambda request: self._last_turn.get(request.owner, 0))
        self._take_turn(first.owner)
        self._many_next = first.has_few_rows
        batch, others, rows = [first], [], len(first.rows)
        most_rows = self._pass_rows(first.version)
        for request in self._waiting:
            if request is first:
                continue
            if request.can_join(first) and rows + len(request.rows) <= most_rows:
                batch.append(request)
                rows += len(request.rows)
            else:
                others.append(request)
        self._waiting.clear()
        self._waiting.extend(others)
        return batch

    def _compute(self, batch: Sequence[_Waiting]) -> None:
        """Answer every request of the batch that was not cancelled while it waited."""
        active = [request for request in batch if request.result.set_running_or_notify_cancel()]
        if active:
            self._answer(active)

    def _answer(self, active: Sequence[_Waiting]) -> None:
        """Compute these requests together.

        If that fails, they are computed one by one, so that a faulty row affects only its own request.
        """
        try:
            first = active[0]
            rows = first.rows if len(active) == 1 else [row for request in active for row in request.rows]
            values = self._predict(first.version, first.model, str(first.kind), rows, requests=len(active))
        except RequestError as error:
            if len(active) == 1:
                active[0].result.set_exception(error)
                return
            for request in active:
                self._answer([request])
        except Exception as error:  # noqa: BLE001 - the thread's outermost loop: one model's error must not end it
            _log.exception("predicting with version %d failed", active[0].version)
            _fail(active, error)
        else:
            begin = 0
            for request in active:
                request.result.set_result(values[begin : begin + len(request.rows)])
                begin += len(request.rows)

    def _predict(
        self, version: ModelVersionId, model: ServedModel, kind: str, rows: Sequence[Any], *, requests: int = 1
    ) -> list[Any]:
        """Predict the rows of requests for one model and of one kind."""
        started_ns = self._clock_ns()
        try:
            values = model.predict_rows(rows, kind)
        finally:  # measured before any result is returned: the size of the request's next pass depends on it
            self._measure(version, self._clock_ns() - started_ns, len(rows))
        if len(values) != len(rows):
            raise InvariantError(f"version {version} gave {len(values)} predictions for {len(rows)} rows")
        self.counters.requests += requests
        self.counters.batches += 1
        self.counters.rows += len(rows)
        return values

    def _measure(self, version: ModelVersionId, pass_ns: int, rows: int) -> None:
        self._last_pass_ns[version] = pass_ns
        if rows >= _FEW_ROWS:
            self._measured.add(version)
        if rows >= _FEW_ROWS or version not in self._measured:
            self._paces[version] = _Pace.after(self._paces.get(version), rows=max(rows, 1), pass_ns=pass_ns)


def _fail(active: Sequence[_Waiting], error: Exception) -> None:
    fault = _fault(active[0].version, error)
    for request in active:
        request.result.set_exception(fault)


def _fault(version: ModelVersionId, error: Exception) -> InvariantError:
    return InvariantError(
        f"predicting with version {version} failed: {type(error).__name__}: {error}",
        hint="See the service's log for the traceback.",
    )
