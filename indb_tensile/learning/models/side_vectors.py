"""Embeds the rows of one side of pairs, which have the columns of that side alone."""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from indb_tensile.errors import RequestError
from indb_tensile.learning.decoding.binary_rows import BinaryRows
from indb_tensile.learning.encoding.preprocessor import Preprocessor
from indb_tensile.learning.encoding.side_recipe import of_features
from indb_tensile.learning.networks.two_towers import TwoTowers
from indb_tensile.learning.storage.columns import ColumnKind
from indb_tensile.request.abbreviation import shown
from indb_tensile.request.pair_sides import SIDES, check_side

_MOST_ROWS = 4096  # of one pass: bounds the memory of the activations


class SideVectors:
    """The vectors of rows of one side. Thread-safe, since nothing changes.

    `module` are the two towers in evaluation mode. Raises RequestError for a model without sides.
    """

    def __init__(self, preprocessor: Preprocessor, module: nn.Module, side: str) -> None:
        check_side(side)
        target = preprocessor.target
        if target.pair is None:
            raise RequestError(
                f"side is {shown(side)}, and a model of task {target.task} has no sides",
                hint=f"Leave side out: models of task => 'pairs' have the sides {' and '.join(SIDES)}.",
            )
        self.preprocessor = of_features(preprocessor, target.pair.features(side, preprocessor.recipe.features))
        self._side = side
        self._towers = cast(TwoTowers, module)

    @property
    def feature_kinds(self) -> dict[str, ColumnKind]:
        """Return the columns that rows need, and their kinds."""
        return self.preprocessor.feature_kinds

    def __call__(self, rows: Sequence[Any]) -> npt.NDArray[np.float32]:
        """Return the vectors of rows from SQL (rows, numbers). A row whose image cannot be read has NaN."""
        own = self.preprocessor
        x = own.transform(rows.columns) if isinstance(rows, BinaryRows) else own.transform_rows(rows)
        parts = [self._pass(x[start : start + _MOST_ROWS]) for start in range(0, len(x), _MOST_ROWS)]
        vectors = np.concatenate(parts)
        vectors[np.isnan(x).any(axis=1)] = np.nan
        return vectors

    def _pass(self, x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        with torch.inference_mode():
            own: npt.NDArray[np.float32] = self._towers.vectors(self._side, torch.from_numpy(x)).numpy()
        return own
