"""Runs evaluations: rows are scored in parts, and the metrics are computed when the last part has arrived.

Rows are scored like predictions, in passes between which other requests are served. Their scores are stored on disk.
A separate thread computes the metrics; numpy releases the interpreter lock for most of that.
"""

import asyncio
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from indb_tensile.errors import RequestError
from indb_tensile.learning.storage.row_sample import RowSample

from .answers import ENCODED, SCORE
from .importance import importance_rows
from .prediction_batches import Batches, ServedModel
from .requests import Evaluate, Figure, RowError
from .scores import ScoreFiles

MOST_ROWS = 20_000_000  # most rows of one evaluation: computing the metrics takes about 100 bytes of memory for each
MOST_NUMBERS = 1_000_000_000  # largest product of rows and outputs of one evaluation: 4 GB on disk
_MAX_UNFINISHED = 4  # unfinished evaluations of one connection: an evaluated view may itself run an evaluation


class TooLargeError(RequestError):
    """The request is larger than one request may be."""

    sqlstate = "54000"  # program_limit_exceeded


class InterruptedEvaluationError(RequestError):
    """A part has arrived, but the parts before it are not in this service."""

    sqlstate = "57P03"


@dataclass(slots=True)
class _Evaluation:
    """One unfinished evaluation: the number of scored parts, and their rows' scores or a sample of the rows."""

    parts: int = 0
    rows: int = 0  # of all parts, with those whose images cannot be read and which have no score
    scores: ScoreFiles | RowSample = field(default_factory=ScoreFiles)


class Evaluations:
    """The unfinished evaluations by connection and number. All calls come from the event loop."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches
        self._parts: dict[int, OrderedDict[int, _Evaluation]] = {}
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="metrics")

    def __len__(self) -> int:
        """Return the number of unfinished evaluations."""
        return sum(map(len, self._parts.values()))

    async def add(self, connection: int, request: Evaluate, model: ServedModel, *, owner: int = 0) -> dict[str, Any]:
        """Score the rows of a part. With the last part, returns the figure over all parts.

        Raises RowError with the row's number in the whole evaluation, and RequestError for a figure that the model
        does not have.
        """
        if request.part == 0:
            model.check_figure(request.figure, request.options)
        evaluation = self._find_evaluation(connection, request)
        try:
            scored = await self._score(request, model, owner, earlier_rows=evaluation.rows)
            evaluation.rows += len(scored)
            evaluation.scores.add([each for each in scored if each is not None])
            evaluation.parts += 1
        except OSError as error:
            self._drop(connection, request.evaluation)
            raise _no_space(error) from error
        except BaseException:
            self._drop(connection, request.evaluation)
            raise
        if not request.last:
            return {"rows": len(evaluation.scores)}
        try:
            return await self._result(model, request, evaluation.scores, owner)
        finally:
            self._drop(connection, request.evaluation)

    async def _result(
        self, model: ServedModel, request: Evaluate, scores: ScoreFiles | RowSample, owner: int
    ) -> dict[str, Any]:
        if not len(scores):
            raise RequestError("there are no rows to evaluate on")
        if isinstance(scores, RowSample):
            return {"rows": await importance_rows(self._batches, request, model, scores, self._executor, owner=owner)}
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, _figure, model, request, scores)

    def forget(self, connection: int) -> None:
        """Drop the evaluations of a connection that has ended."""
        for evaluation in self._parts.pop(connection, OrderedDict()).values():
            evaluation.scores.close()

    def close(self) -> None:
        """End the thread after the computation that runs now."""
        self._executor.shutdown(cancel_futures=True)

    def _find_evaluation(self, connection: int, request: Evaluate) -> _Evaluation:
        """Return the evaluation that the part belongs to. Raises InterruptedEvaluationError if parts are missing."""
        evaluations = self._parts.setdefault(connection, OrderedDict())
        if request.part == 0:
            sampled = request.figure is Figure.FEATURE_IMPORTANCE
            scores = RowSample(request.options.seed) if sampled else ScoreFiles()
            evaluations[request.evaluation] = _Evaluation(scores=scores)
            while len(evaluations) > _MAX_UNFINISHED:
                evaluations.popitem(last=False)[1].scores.close()
        evaluation = evaluations.get(request.evaluation)
        if evaluation is None or evaluation.parts != request.part:
            self._drop(connection, request.evaluation)
            raise InterruptedEvaluationError(
                "the evaluation was interrupted: the service was started again meanwhile",
                hint="Run the statement again.",
            )
        return evaluation

    async def _score(self, request: Evaluate, model: ServedModel, owner: int, earlier_rows: int) -> list[Any]:
        """Return the scored rows of a part, or the encoded ones for the importance of columns."""
        kind = ENCODED if request.figure is Figure.FEATURE_IMPORTANCE else SCORE
        try:
            scored = await self._batches.predict(request.version, model, request.rows, kind, owner=owner)
        except RowError as error:
            raise RowError(error, earlier_rows + error.row) from error
        rows = earlier_rows + len(scored)
        outputs = 0 if kind != SCORE else next((len(each.outputs) for each in scored if each is not None), 0)
        if rows * outputs > MOST_NUMBERS or rows > MOST_ROWS:
            max_rows = min(MOST_ROWS, MOST_NUMBERS // max(1, outputs))
            raise TooLargeError(
                f"the relation has more rows than the {max_rows} that one evaluation may have "
                f"of a model with {outputs} output{'' if outputs == 1 else 's'}",
                hint="Name a sample of it with relation => '...': "
                "create temporary table part as select * from the_table tablesample system (10).",
            )
        return scored

    def _drop(self, connection: int, evaluation: int) -> None:
        evaluations = self._parts.get(connection, OrderedDict())
        if (dropped := evaluations.pop(evaluation, None)) is not None:
            dropped.scores.close()
        if not evaluations:
            self._parts.pop(connection, None)


def _figure(model: ServedModel, request: Evaluate, scores: ScoreFiles) -> dict[str, Any]:
    if request.figure is Figure.METRICS:
        return {"metrics": model.metrics(*scores.arrays())}
    return {"rows": model.figure(request.figure, request.options, *scores.arrays())}


def _no_space(error: OSError) -> TooLargeError:
    return TooLargeError(
        f"the service cannot keep the scores of the evaluation: {error.strerror or error}",
        hint="Name a smaller relation with relation => '...', or give the service's TMPDIR more space.",
    )
