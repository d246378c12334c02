"""Evaluations in work: scored rows come in parts, their metrics are computed when the last part is there.

Rows are scored as predictions are, in passes between which others have their turn. Their scores are kept on disk. A
thread beside the predictions computes the metrics; numpy lets go of the interpreter's lock for most of that.
"""

import asyncio
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from indb_tensile.errors import RequestError

from .answers import SCORE, Scored
from .batches import Batches, Model
from .requests import Evaluate, RowError
from .scores import Scores

MOST_ROWS = 20_000_000  # of one evaluation: the metrics take some 100 bytes of memory for each
MOST_NUMBERS = 1_000_000_000  # rows times outputs of one evaluation: 4 GB on disk
_MOST_AT_ONCE = 4  # unfinished ones of one connection: a view that is evaluated may itself evaluate


class TooLargeError(RequestError):
    """More was asked for than one request may have."""

    sqlstate = "54000"  # program_limit_exceeded


class InterruptedEvaluationError(RequestError):
    """A part came whose predecessors this service does not have."""

    sqlstate = "57P03"


@dataclass(slots=True)
class _Evaluation:
    """One in work: how many parts of it have been scored, and their rows."""

    parts: int = 0
    scores: Scores = field(default_factory=Scores)


class Evaluations:
    """By connection and number. Belongs to the event loop."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches
        self._parts: dict[int, OrderedDict[int, _Evaluation]] = {}
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="metrics")

    def __len__(self) -> int:
        """How many are unfinished."""
        return sum(map(len, self._parts.values()))

    async def add(self, connection: int, request: Evaluate, model: Model, *, owner: int = 0) -> dict[str, Any]:
        """Score a part's rows; the metrics of all parts with the last one.

        Raises RowError with the row's place in the whole evaluation.
        """
        own = self._of(connection, request)
        try:
            scored = await self._score(request, model, owner, before=len(own.scores))
            own.scores.add(scored)
            own.parts += 1
        except OSError as error:
            self._end(connection, request.evaluation)
            raise _no_space(error) from error
        except BaseException:
            self._end(connection, request.evaluation)
            raise
        if not request.last:
            return {"rows": len(own.scores)}
        try:
            loop = asyncio.get_running_loop()
            return {"metrics": await loop.run_in_executor(self._executor, _metrics, model, own.scores)}
        finally:
            self._end(connection, request.evaluation)

    def forget(self, connection: int) -> None:
        """The connection has ended, and its evaluations with it."""
        for one in self._parts.pop(connection, OrderedDict()).values():
            one.scores.close()

    def close(self) -> None:
        """End the thread once it has finished what it computes."""
        self._executor.shutdown(cancel_futures=True)

    def _of(self, connection: int, request: Evaluate) -> _Evaluation:
        """The evaluation so far. Raises InterruptedEvaluationError where some are missing."""
        own = self._parts.setdefault(connection, OrderedDict())
        if request.part == 0:
            own[request.evaluation] = _Evaluation()
            while len(own) > _MOST_AT_ONCE:
                own.popitem(last=False)[1].scores.close()
        found = own.get(request.evaluation)
        if found is None or found.parts != request.part:
            self._end(connection, request.evaluation)
            raise InterruptedEvaluationError(
                "the evaluation was interrupted: the service was started again meanwhile",
                hint="Run the statement again.",
            )
        return found

    async def _score(self, request: Evaluate, model: Model, owner: int, before: int) -> list[Scored]:
        try:
            scored: list[Scored] = await self._batches.predict(
                request.version, model, request.rows, SCORE, owner=owner
            )
        except RowError as error:
            raise RowError(error, before + error.row) from error
        rows, outputs = before + len(scored), len(scored[0].outputs) if scored else 0
        if rows * outputs > MOST_NUMBERS or rows > MOST_ROWS:
            most = min(MOST_ROWS, MOST_NUMBERS // max(1, outputs))
            raise TooLargeError(
                f"the relation has more rows than the {most} that one evaluation may have "
                f"of a model with {outputs} output{'' if outputs == 1 else 's'}",
                hint="Name a sample of it with relation => '...': "
                "create temporary table part as select * from the_table tablesample system (10).",
            )
        return scored

    def _end(self, connection: int, evaluation: int) -> None:
        own = self._parts.get(connection, OrderedDict())
        if (ended := own.pop(evaluation, None)) is not None:
            ended.scores.close()
        if not own:
            self._parts.pop(connection, None)


def _metrics(model: Model, scores: Scores) -> dict[str, float]:
    if not len(scores):
        raise RequestError("there are no rows to evaluate on")
    return model.metrics(*scores.arrays())


def _no_space(error: OSError) -> TooLargeError:
    return TooLargeError(
        f"the service cannot keep the scores of the evaluation: {error.strerror or error}",
        hint="Name a smaller relation with relation => '...', or give the service's TMPDIR more space.",
    )
