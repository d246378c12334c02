"""Evaluations in work: scored rows come in parts, their metrics are computed when the last part is there.

Rows are scored as predictions are, in passes between which others have their turn. The metrics of all rows are
computed by a thread beside the predictions; numpy lets go of the interpreter's lock for most of that.
"""

import asyncio
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from indb_tensile.errors import RequestError

from .answers import SCORE, Scored
from .batches import Batches, Model
from .requests import Evaluate, RowError

MOST_NUMBERS = 10_000_000  # rows times outputs of one evaluation: 40 MB, and some six times as much for the metrics
_MOST_AT_ONCE = 4  # unfinished ones of one connection: a view that is evaluated may itself evaluate


class TooLargeError(RequestError):
    """More was asked for than one request may have."""

    sqlstate = "54000"  # program_limit_exceeded


class InterruptedEvaluationError(RequestError):
    """A part came whose predecessors this service does not have."""

    sqlstate = "57P03"


class Evaluations:
    """By connection and number. Belongs to the event loop."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches
        self._parts: dict[int, OrderedDict[int, list[list[Scored]]]] = {}
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="metrics")

    def __len__(self) -> int:
        """How many are unfinished."""
        return sum(map(len, self._parts.values()))

    async def add(self, connection: int, request: Evaluate, model: Model, *, owner: int = 0) -> dict[str, Any]:
        """Score a part's rows; the metrics of all parts with the last one.

        Raises RowError with the row's place in the whole evaluation.
        """
        parts = self._of(connection, request)
        try:
            parts.append(await self._score(request, model, owner, before=sum(map(len, parts))))
        except BaseException:
            self._end(connection, request.evaluation)
            raise
        if not request.last:
            return {"rows": sum(map(len, parts))}
        self._end(connection, request.evaluation)
        return {"metrics": await asyncio.get_running_loop().run_in_executor(self._executor, _metrics, model, parts)}

    def forget(self, connection: int) -> None:
        """The connection has ended, and its evaluations with it."""
        self._parts.pop(connection, None)

    def close(self) -> None:
        """End the thread once it has finished what it computes."""
        self._executor.shutdown(cancel_futures=True)

    def _of(self, connection: int, request: Evaluate) -> list[list[Scored]]:
        """The parts so far. Raises InterruptedEvaluationError where some are missing."""
        own = self._parts.setdefault(connection, OrderedDict())
        if request.part == 0:
            own[request.evaluation] = []
            while len(own) > _MOST_AT_ONCE:
                own.popitem(last=False)
        parts = own.get(request.evaluation)
        if parts is None or len(parts) != request.part:
            self._end(connection, request.evaluation)
            raise InterruptedEvaluationError(
                "the evaluation was interrupted: the service was started again meanwhile",
                hint="Run the statement again.",
            )
        return parts

    async def _score(self, request: Evaluate, model: Model, owner: int, before: int) -> list[Scored]:
        try:
            scored: list[Scored] = await self._batches.predict(
                request.version, model, request.rows, SCORE, owner=owner
            )
        except RowError as error:
            raise RowError(error, before + error.row) from error
        rows, outputs = before + len(scored), len(scored[0].outputs) if scored else 0
        if rows * outputs > MOST_NUMBERS:
            raise TooLargeError(
                f"an evaluation of {rows} rows with {outputs} outputs each exceeds the {MOST_NUMBERS} numbers that "
                "one may have",
                hint=f"Evaluate a sample of at most {MOST_NUMBERS // outputs} rows.",
            )
        return scored

    def _end(self, connection: int, evaluation: int) -> None:
        own = self._parts.get(connection, OrderedDict())
        own.pop(evaluation, None)
        if not own:
            self._parts.pop(connection, None)


def _metrics(model: Model, parts: list[list[Scored]]) -> dict[str, float]:
    scored = [one for part in parts for one in part]
    if not scored:
        raise RequestError("there are no rows to evaluate on")
    outputs: npt.NDArray[np.float32] = np.array([one.outputs for one in scored], np.float32)
    return model.metrics(outputs, np.array([one.target for one in scored]))
