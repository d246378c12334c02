"""Estimators for scikit-learn whose fits are jobs of the database.

The parameters of an estimator are only what `clone` can copy: texts, numbers and dicts. A connection is none of them.
"""

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import Tags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_sample_weight,
    assert_all_finite,
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
    validate_data,
)
from sqlalchemy import BigInteger, Boolean, Double, Engine, Float, Numeric, Table
from sqlalchemy.sql import Select

from indb_tensile.client import catalog_requests as requests
from indb_tensile.client.estimator_engine import checked_dsn, scoped_engine, without_password
from indb_tensile.client.estimator_rows import PART, TARGET, WEIGHT, ArrayFrame, RowsToFit
from indb_tensile.client.frame_columns import Frame, as_frame
from indb_tensile.client.predicted_rows import PredictedRow, in_frame_order
from indb_tensile.client.sync_client import Tensile
from indb_tensile.errors import DataError, RequestError

_LARGEST_SEED = 2**31 - 1


class FitError(DataError, ValueError):
    """The database refuses the data of a fit or a prediction."""


class _TensileEstimator(BaseEstimator):  # type: ignore[misc]  # scikit-learn ships no types
    """The common part of both estimators: parameters, the engine, and the transfer of rows."""

    _task = ""
    _metric = ""

    def __init__(
        self,
        dsn: str | None = None,
        *,
        model: str | None = None,
        architecture: str | dict[str, Any] = "auto",
        hyperparams: dict[str, Any] | None = None,
        preprocess: dict[str, Any] | None = None,
        early_stop: dict[str, Any] | None = None,
        validation_fraction: float = 0.0,
        memory_limit: str | None = None,
        priority: int = 0,
        deploy: str = "always",
        random_state: int | None = None,
    ) -> None:
        self.dsn = dsn
        self.model = model
        self.architecture = architecture
        self.hyperparams = hyperparams
        self.preprocess = preprocess
        self.early_stop = early_stop
        self.validation_fraction = validation_fraction
        self.memory_limit = memory_limit
        self.priority = priority
        self.deploy = deploy
        self.random_state = random_state

    def set_engine(self, engine: Engine | None) -> Self:
        """Use this engine in place of `dsn`. Clones use it too; a pickle does not hold it."""
        self._engine = engine
        return self

    def drop_model(self) -> None:
        """Drop the model that the fit trained, with all its versions."""
        check_is_fitted(self)
        with self._client() as client:
            client.drop(self.model_)

    def predict(self, X: Any) -> npt.NDArray[Any]:  # noqa: N803 - scikit-learn's name
        """Predict for an array, a frame, or all rows of a relation, in the order in which it is read."""
        return self._answers(self._predicted(X, probabilities=False))

    def __sklearn_clone__(self) -> Self:
        cloned: Self = super().__sklearn_clone__()
        engine = getattr(self, "_engine", None)
        return cloned if engine is None else cloned.set_engine(engine)

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        state = {name: value for name, value in state.items() if name != "_engine"}
        if state.get("dsn") is not None:
            state["dsn"] = without_password(state["dsn"])
        return state

    def __sklearn_tags__(self) -> Tags:
        tags: Tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True  # a missing value is encoded as such
        tags.input_tags.sparse = False
        return tags

    @contextmanager
    def _client(self) -> Iterator[Tensile]:
        dsn = checked_dsn(self.dsn)
        engine = getattr(self, "_engine", None) or (scoped_engine() if dsn is None else None)
        with Tensile(dsn if engine is None else engine) as client:
            yield client

    def _fit_rows(self, features: Frame, targets: npt.NDArray[Any], weights: npt.NDArray[np.float64] | None) -> Self:
        rows = RowsToFit(features, targets, weights)
        options = {"weight": WEIGHT} if weights is not None else {}
        split = {"column": PART, "valid_size": self.validation_fraction}
        self._train(rows, TARGET, list(features.names), options, split=split)
        return self

    def _fit_relation(self, relation: object, target: str) -> Self:
        """Train on a relation, which stays where it is, with the features that the database chooses."""
        features = self._train(relation, target, None, {})
        self.n_features_in_, self.feature_names_in_ = len(features), np.array(features, object)
        return self

    def _train(
        self, relation: object, target: str, features: list[str] | None, hyperparams: Mapping[str, Any], **own: Any
    ) -> list[str]:
        """Train, keep the number of the version, and return its features. Every argument is given, because a training
        would otherwise inherit it from the last training of the model.
        """
        seed = {} if self.random_state is None else {"seed": self._seed()}
        name = self.model or f"{type(self).__name__} {uuid.uuid4().hex}"
        options: dict[str, Any] = {
            "target": target,
            "task": self._task,
            "features": features,
            "architecture": self.architecture,
            "hyperparams": {**seed, **(self.hyperparams or {}), **hyperparams},
            "preprocess": self.preprocess or {},
            "metric": self._metric,
            "early_stop": self.early_stop,
            "memory_limit": self.memory_limit,
            "priority": self.priority,
            "deploy": self.deploy,
        }
        with self._client() as client, _as_value_errors():
            job = client.train(name, relation, **{**options, **own})
            job.wait()
            self.version_ = int(job.version or 0)
            trained = next(row for row in client.versions(name) if row["version"] == self.version_)
        self.model_, self.job_ = name, job.number
        return list(trained["features"])

    def _predicted(self, X: Any, *, probabilities: bool, target: str | None = None) -> list[PredictedRow]:  # noqa: N803
        check_is_fitted(self)
        relation = _relation(X)
        features = X if relation else self._features(X, reset=False)
        keys = None if target is None else [target]
        with self._client() as client, _as_value_errors():
            rows = client.predict_rows(
                self.model_, features, keys=keys, version=self.version_, probabilities=probabilities
            )
            return list(rows) if relation else in_frame_order(rows, features.rows)

    def _answers(self, rows: list[PredictedRow]) -> npt.NDArray[Any]:
        raise NotImplementedError

    def _features(self, X: Any, *, reset: bool) -> Frame:  # noqa: N803
        """Return the features as a frame, checked as scikit-learn checks them."""
        frame = as_frame(X)
        if frame is not None and not _numeric(frame):
            validate_data(self, X, reset=reset, skip_check_array=True)
            if not frame.rows:
                raise ValueError("Found array with 0 sample(s) while a minimum of 1 is required.")
            return frame
        own = validate_data(
            self,
            X,
            reset=reset,
            dtype=np.float64,
            ensure_all_finite="allow-nan",
            ensure_min_samples=2 if reset else 1,
        )
        named = frame is not None and all(isinstance(name, str) for name in frame.names)
        return frame if frame is not None and named else ArrayFrame(own)

    def _seed(self) -> int:
        if isinstance(self.random_state, int | np.integer):
            return int(self.random_state) % (_LARGEST_SEED + 1)
        if isinstance(self.random_state, np.random.RandomState):
            return int(self.random_state.randint(_LARGEST_SEED))
        raise ValueError(f"random_state is {self.random_state!r}, and must be an integer or a RandomState")


class TensileClassifier(ClassifierMixin, _TensileEstimator):  # type: ignore[misc]
    """A classification that the database trains.

    `dsn` is a connection string without a password, or None: then the engine of `set_engine` or `engine_scope`, the
    database of TENSILE_DSN or libpq's variables, or the embedded one. `model` names the model, of which each fit
    trains a version; without it each fit trains a new model with a name of its own. `validation_fraction` is the
    share of the rows that stops the training early; all other rows train. The other parameters are arguments
    of `tensile_train`.
    """

    _task, _metric = "classification", "accuracy"

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:  # noqa: N803 - scikit-learn's name
        """Fit to an array or a frame X with labels y; or to a relation X, of which y is the target's column."""
        if _relation(X):
            self._fit_relation(X, _column(y))
            with self._client() as client:
                known = client.run(requests.labels(self.model_, self.version_))
            self.classes_, self._label_texts = np.array(list(known.values())), list(known)
            return self
        features = self._features(X, reset=True)
        labels = _checked_y(y, features.rows)
        check_classification_targets(labels)
        self.classes_, codes = np.unique(labels, return_inverse=True)
        self._label_texts = [str(place) for place in range(len(self.classes_))]
        if len(self.classes_) < 2:
            raise ValueError(
                f"y has one class, {self.classes_[:1].tolist()[0]!r}: a classifier needs two or more classes"
            )
        weights = None if sample_weight is None else _weights(sample_weight, features.rows)
        return self._fit_rows(features, codes.astype(np.int64), weights)

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:  # noqa: N803 - scikit-learn's name
        """Return the probability of each label of `classes_` for each row."""
        rows = self._predicted(X, probabilities=True)
        places = {text: place for place, text in enumerate(self._label_texts)}
        shares = np.zeros((len(rows), len(self.classes_)))
        for share, row in zip(shares, rows, strict=True):
            for label, probability in (row.probabilities or {}).items():
                share[places[label]] = probability
        shares /= shares.sum(axis=1, keepdims=True)
        return shares

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:  # noqa: N803 - scikit-learn's name
        """Return the accuracy. For a relation y is the target's column."""
        if not _relation(X):
            return float(super().score(X, y, sample_weight))
        rows = self._predicted(X, probabilities=False, target=_column(y))
        return float(accuracy_score([row.key[y] for row in rows], self._answers(rows)))

    def _answers(self, rows: list[PredictedRow]) -> npt.NDArray[Any]:
        places = {text: place for place, text in enumerate(self._label_texts)}
        return self.classes_[[places[str(row.label)] for row in rows]]


class TensileRegressor(RegressorMixin, _TensileEstimator):  # type: ignore[misc]
    """A regression that the database trains; its parameters are those of `TensileClassifier`."""

    _task, _metric = "regression", "r2"

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:  # noqa: N803 - scikit-learn's name
        """Fit to an array or a frame X with values y; or to a relation X, of which y is the target's column."""
        if _relation(X):
            return self._fit_relation(X, _column(y))
        features = self._features(X, reset=True)
        targets = _checked_y(y, features.rows)
        if targets.dtype.kind in "OUS":
            targets = targets.astype(np.float64)
        weights = None if sample_weight is None else _weights(sample_weight, features.rows)
        return self._fit_rows(features, targets.astype(np.float64), weights)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:  # noqa: N803 - scikit-learn's name
        """Return the coefficient of determination. For a relation y is the target's column."""
        if not _relation(X):
            return float(super().score(X, y, sample_weight))
        rows = self._predicted(X, probabilities=False, target=_column(y))
        return float(r2_score([row.key[y] for row in rows], self._answers(rows)))

    def _answers(self, rows: list[PredictedRow]) -> npt.NDArray[Any]:
        return np.array([row.value for row in rows], np.float64)


@contextmanager
def _as_value_errors() -> Iterator[None]:
    """Raise a ValueError, which scikit-learn expects, where the data are at fault."""
    try:
        yield
    except DataError as error:
        raise FitError(error.message, detail=error.detail, hint=error.hint) from None


def _relation(rows: Any) -> bool:
    return isinstance(rows, str | Table | Select)


def _column(y: Any) -> str:
    if not isinstance(y, str):
        raise RequestError(
            f"X is a relation, and y is a {type(y).__name__}", hint="Give the name of the target's column as y."
        )
    return y


def _checked_y(y: Any, rows: int) -> npt.NDArray[Any]:
    if y is None:
        raise ValueError("requires y to be passed, but the target y is None")
    labels: npt.NDArray[Any] = column_or_1d(y, warn=True)
    if labels.dtype.kind == "f":
        assert_all_finite(labels, input_name="y")
    check_consistent_length(labels, range(rows))
    return labels


def _weights(sample_weight: Any, rows: int) -> npt.NDArray[np.float64]:
    weights: npt.NDArray[np.float64] = _check_sample_weight(
        sample_weight, np.empty((rows, 1)), dtype=np.float64, ensure_non_negative=True
    )
    return weights


def _numeric(frame: Frame) -> bool:
    """Return whether scikit-learn can check the frame as a matrix of numbers."""
    kinds = (BigInteger, Double, Float, Numeric, Boolean)
    return all(isinstance(frame.declared(name), kinds) for name in frame.names)
