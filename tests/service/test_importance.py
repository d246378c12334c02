"""The importance of columns is computed in passes, between which other requests are served."""

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from indb_tensile.errors import RequestError
from indb_tensile.job import ModelVersionId
from indb_tensile.learning.evaluation.permutation_importance import permuted_rows
from indb_tensile.learning.storage.encoded_rows import EncodedRows
from indb_tensile.learning.storage.row_sample import RowSample
from worker.serving.importance import importance_rows
from worker.serving.prediction_batches import Batches
from worker.serving.requests import Evaluate, Figure, FigureOptions

from .fakes import Echo, Unevaluated

COLUMNS = 5
REQUEST = Evaluate(
    version=ModelVersionId(1),
    rows=[],
    figure=Figure.FEATURE_IMPORTANCE,
    options=FigureOptions(metric="rmse", repeats=2),
)


class SumModel(Unevaluated):
    """A model whose output is the sum of a row, which is also the target. `served` are the rows of each pass."""

    def __init__(self, defined: bool = True) -> None:
        self.served: list[int] = []
        self._defined = defined

    def predict_rows(self, rows: Sequence[Any], kind: str) -> list[Any]:
        assert isinstance(rows, EncodedRows)
        self.served.append(len(rows))
        return list(rows.array().sum(axis=1, keepdims=True))

    def table_answer(self, entries: Sequence[Any], kind: str) -> dict[str, str | None]:
        return {}

    def features(self, side: str | None = None) -> Sequence[tuple[str, str]]:
        return []

    def forecast(self) -> None:
        return None

    def own_kind(self) -> str:
        return "value"

    def several(self) -> bool:
        return False

    def permuted_columns(self, x: Any, repeats: int, seed: int) -> Iterator[tuple[str, list[EncodedRows]]]:
        for place in range(COLUMNS):
            order = np.roll(np.arange(len(x)), 1)
            yield f"c{place}", [permuted_rows(x, np.array([place]), order)] * repeats

    def judged_by(self, options: Any) -> tuple[str, bool]:
        return "rmse", False

    def judge(self, options: Any, outputs: Any, targets: Any) -> float:
        return float(np.abs(outputs[:, 0] - targets).mean()) if self._defined else float("nan")


def sample() -> RowSample:
    rows = RowSample(seed=0)
    x = np.arange(40 * COLUMNS, dtype=np.float32).reshape(40, COLUMNS) * np.arange(COLUMNS, dtype=np.float32)
    rows.add(list(zip(x, x.sum(axis=1), strict=True)))
    return rows


def test_columns_are_ranked_and_other_requests_are_served_between_the_passes() -> None:
    async def run() -> tuple[list[Any], list[Any], int]:
        batches, model = Batches(), SumModel()
        try:
            with ThreadPoolExecutor(1) as executor:
                work = asyncio.ensure_future(importance_rows(batches, REQUEST, model, sample(), executor, owner=1))
                while not model.served:
                    await asyncio.sleep(0)
                other = await batches.predict(ModelVersionId(2), Echo(), ["a"], "value", owner=2)
                passes = len(model.served)
                return await work, other, passes
        finally:
            batches.close()

    rows, other, passes = asyncio.run(run())
    assert other == ["a"]
    assert passes < 1 + 2 * COLUMNS, "the other request did not wait for all passes"
    assert [row[0] for row in rows] == ["c4", "c3", "c2", "c1", "c0"]
    assert [row[1] for row in rows] == sorted((row[1] for row in rows), reverse=True)
    assert rows[-1][1] == pytest.approx(0.0), "the values of c0 are all equal"
    assert {row[3] for row in rows} == {"rmse"}


def test_a_metric_that_the_rows_do_not_define_is_refused() -> None:
    async def run() -> None:
        batches = Batches()
        try:
            with ThreadPoolExecutor(1) as executor:
                await importance_rows(batches, REQUEST, SumModel(defined=False), sample(), executor, owner=1)
        finally:
            batches.close()

    with pytest.raises(RequestError, match="rmse is not defined on the 40 rows"):
        asyncio.run(run())
