"""Models of scikit-learn beside the networks: gradient boosting, and linear models.

An estimator is a module without parameters, so that everything that predicts with a network, or stores it, handles
an estimator in the same way. Its state is one tensor with the bytes that skops writes: skops stores no code, and
stored_estimator.py reads it back.

HistGradientBoosting follows LightGBM (Ke and others, NeurIPS 2017).
"""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge
from threadpoolctl import ThreadpoolController
from torch import Tensor, nn

from indb_tensile.errors import DatabaseError, DataError
from indb_tensile.job import Task
from indb_tensile.learning.encoding.encoded_parts import Part
from indb_tensile.learning.networks.stored_estimator import read_estimator
from indb_tensile.learning.networks.training_length import FEWEST_VALID_ROWS
from indb_tensile.sizes import size

Array = npt.NDArray[Any]

_MOST_CATEGORIES = 255  # most categories of a column that HistGradientBoosting splits by sets of categories
_ITERATIONS = 100  # iterations without validation rows: the default of HistGradientBoosting
_STOPPED_ITERATIONS = 500  # most iterations if the validation loss decides
_FIT_BYTES = {"boosting": 8 + 1, "linear": 8}  # of each encoded number: scikit-learn's copy, and its bins


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """The result of a fit: its iterations, and the losses of training and validation rows after each, if known."""

    iterations: int
    best_iteration: int
    losses: tuple[float, ...] = ()
    valid_losses: tuple[float, ...] = ()


class Estimator(nn.Module):
    """A model of scikit-learn as a module. It is fitted by `fit`, or gets its state from a stored version.

    `values` are the parameters of the architecture, with defaults. `outputs` are the classes, or 1.
    """

    def __init__(self, kind: str, values: Mapping[str, Any], outputs: int) -> None:
        super().__init__()
        self.kind = kind
        self.values = dict(values)
        self.outputs = outputs
        self.fitted: Any = None

    def forward(self, x: Tensor) -> Tensor:
        """Map encoded rows (batch, width) to logarithms of probabilities (batch, classes) or values (batch, 1)."""
        if x.is_meta:
            return x.new_empty((len(x), self.outputs))
        if self.fitted is None:
            raise DatabaseError(f"the {self.kind} model has no state")
        rows = x.flatten(1).numpy()
        if not len(rows):
            return torch.empty((0, self.outputs))
        with _threads(1):
            if not hasattr(self.fitted, "classes_"):
                return torch.from_numpy(self.fitted.predict(rows).astype(np.float32).reshape(-1, 1))
            known = self.fitted.predict_proba(rows)
        chances = np.zeros((len(rows), self.outputs))
        chances[:, self.fitted.classes_.astype(np.int64)] = known  # a class may have no training row
        return torch.from_numpy(np.log(np.maximum(chances, np.finfo(np.float32).tiny)).astype(np.float32))

    def get_extra_state(self) -> Tensor:
        """Return the bytes of the fitted model as a tensor of bytes (length,)."""
        if self.fitted is None:
            return torch.empty(0, dtype=torch.uint8)
        from skops import io as skops  # its import takes a second of a processor

        return torch.frombuffer(bytearray(skops.dumps(self.fitted)), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        """Take over a stored state. Raises DatabaseError for bytes that are no model of this package."""
        stored = state.numpy().tobytes()
        if stored:
            self.fitted = read_estimator(self.kind, stored)

    @property
    def numbers(self) -> int:
        """Return how many numbers the fitted model consists of: nodes of trees, or weights."""
        if self.fitted is None:
            return 0
        if self.kind == "boosting":
            return sum(len(tree.nodes) for trees in self.fitted._predictors for tree in trees)  # noqa: SLF001
        return int(self.fitted.coef_.size + np.size(self.fitted.intercept_))

    def fit(self, train: Part, valid: Part, task: Task, *, seed: int, threads: int) -> Fitted:
        """Fit the model to encoded rows, with the rows' weights. Validation rows decide when boosting stops."""
        x, y, weights = _numbers_of(train)
        if task is Task.CLASSIFICATION and len(np.unique(y)) < 2:
            hint = "Add rows of another class, or train a network."
            raise DataError(
                f"all {len(y)} training rows are of one class, which a {self.kind} model refuses", hint=hint
            )
        with _threads(threads), warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            if self.kind == "linear":
                return self._fit_linear(x, y, weights, task, seed)
            return self._fit_boosting(x, y, weights, _numbers_of(valid), task, seed)

    def _fit_linear(self, x: Array, y: Array, weights: Array | None, task: Task, seed: int) -> Fitted:
        l2, iterations = self.values["l2"], self.values["iterations"]
        if task is Task.REGRESSION:
            self.fitted = Ridge(alpha=l2).fit(x, y, sample_weight=weights)
            return Fitted(iterations=1, best_iteration=1)
        model = LogisticRegression(C=1.0 / l2, max_iter=iterations, random_state=seed)
        self.fitted = model.fit(x, y, sample_weight=weights)
        taken = int(np.max(self.fitted.n_iter_))
        return Fitted(iterations=taken, best_iteration=taken)

    def _fit_boosting(
        self,
        x: Array,
        y: Array,
        weights: Array | None,
        valid: tuple[Array, Array, Array | None],
        task: Task,
        seed: int,
    ) -> Fitted:
        values = self.values
        x_valid, y_valid, valid_weights = valid
        if task is Task.CLASSIFICATION:  # a class that has no training row cannot be validated
            known = np.isin(y_valid, y)
            x_valid, y_valid = x_valid[known], y_valid[known]
            valid_weights = None if valid_weights is None else valid_weights[known]
        stops = len(y_valid) >= FEWEST_VALID_ROWS
        kind = HistGradientBoostingClassifier if task is Task.CLASSIFICATION else HistGradientBoostingRegressor
        categories = values["categories"] or ()
        first = x.shape[1] - len(categories)  # the categories are the last values of a row
        model = kind(
            max_iter=values["iterations"] or (_STOPPED_ITERATIONS if stops else _ITERATIONS),
            learning_rate=values["learning_rate"],
            max_leaf_nodes=values["leaves"],
            max_depth=values["max_depth"],
            min_samples_leaf=values["leaf_rows"],
            l2_regularization=values["l2"],
            categorical_features=[
                first + place for place, count in enumerate(categories) if count <= _MOST_CATEGORIES
            ]
            or None,
            early_stopping=stops,
            n_iter_no_change=values["patience"],
            random_state=seed,
        )
        held_out = {"X_val": x_valid, "y_val": y_valid, "sample_weight_val": valid_weights} if stops else {}
        self.fitted = model.fit(x, y, sample_weight=weights, **held_out)
        losses = tuple((-np.asarray(self.fitted.train_score_)[1:]).tolist()) if stops else ()
        valid_losses = tuple((-np.asarray(self.fitted.validation_score_)[1:]).tolist()) if stops else ()
        best = 1 + int(np.argmin(valid_losses)) if valid_losses else int(self.fitted.n_iter_)
        return Fitted(
            iterations=int(self.fitted.n_iter_), best_iteration=best, losses=losses, valid_losses=valid_losses
        )


def require_memory(kind: str, parts: tuple[Part, ...], free_bytes: int) -> None:
    """Raise DataError if scikit-learn's copies of the rows would not fit into memory."""
    needed_bytes = sum(part.x.numel() for part in parts) * _FIT_BYTES[kind]
    if needed_bytes > free_bytes:
        raise DataError(
            f"a {kind} model needs about {size(needed_bytes)} for its copy of the rows, {size(free_bytes)} are free",
            hint="Train a network, which reads large tables from a file, or train on a sample with "
            "tensile_train_query.",
        )


def _numbers_of(part: Part) -> tuple[Array, Array, Array | None]:
    """Return rows, targets and weights of a part for scikit-learn."""
    weighted = part.y.shape != part.targets.shape
    weights = part.y[:, -1].numpy().astype(np.float64) if weighted else None
    return part.x.flatten(1).numpy(), part.targets.reshape(-1).numpy(), weights


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Limit the threads of the libraries that scikit-learn uses, because their idle threads use processor time."""
    with cast(Any, _controller()).limit(limits=count):
        yield
