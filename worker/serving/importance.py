"""Computes the importance of columns in passes of the compute thread, between which other requests are served."""

import asyncio
import math
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Any

import numpy as np

from indb_tensile.errors import RequestError
from indb_tensile.learning.evaluation.permutation_importance import importance_of
from indb_tensile.learning.storage.encoded_rows import rows_of_array
from indb_tensile.learning.storage.row_sample import RowSample

from .answers import OUTPUTS
from .prediction_batches import Batches, ServedModel
from .requests import Evaluate

Row = tuple[str, float, float, str]


async def importance_rows(
    batches: Batches, request: Evaluate, model: ServedModel, sample: RowSample, executor: Executor, *, owner: int
) -> list[Row]:
    """Return each column with its importance, the deviation over the repeats, and the metric, most important first.

    Raises RequestError if the rows do not define the metric.
    """
    x, targets = sample.arrays()
    options = request.options
    metric, higher_is_better = model.judged_by(options)
    loop = asyncio.get_running_loop()

    async def judge(rows: Sequence[Any]) -> float:
        outputs = np.array(await batches.predict(request.version, model, rows, OUTPUTS, owner=owner))
        return await loop.run_in_executor(executor, model.judge, options, outputs, targets)

    base = await judge(rows_of_array(x))
    if not math.isfinite(base):
        raise RequestError(
            f"{metric} is not defined on the {len(x)} rows",
            hint="Name a relation with more rows, or of more labels, with relation => '...'.",
        )
    measured = []
    for name, permutations in model.permuted_columns(x, options.repeats, options.seed):
        values = [await judge(rows) for rows in permutations]
        measured.append((*importance_of(name, base, values, higher_is_better=higher_is_better), metric))
    return sorted(measured, key=lambda row: (-row[1], row[0]))
