"""A model in a file, which predicts without a database."""

import datetime
import decimal
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from indb_tensile.client.frame_columns import Frame, as_frame
from indb_tensile.client.model_file import ModelFile, read_model_file
from indb_tensile.client.predicted_rows import PredictedRow, probability_columns
from indb_tensile.errors import DatabaseError, RequestError, UnsupportedError

if TYPE_CHECKING:
    from indb_tensile.client.sync_client import Tensile
    from indb_tensile.learning.models.model_predictor import ModelPredictor, Prediction

_PICKLED = (".pt", ".pth", ".pt2", ".pkl", ".bin", ".ckpt")


class Model:
    """A version of a model, loaded from a file. It needs torch, and no database."""

    def __init__(self, file: ModelFile, predictor: "ModelPredictor") -> None:
        self._recipe = file.recipe
        self._predictor = predictor

    @classmethod
    def load(cls, path: str | Path) -> "Model":
        """Read a file that `export` wrote, and check it. Raises RequestError for any other file."""
        path = Path(path)
        check_suffix_of_model(path)
        file = read_model_file(path)
        return cls(file, checked_predictor(str(path), file))

    @staticmethod
    def export(model: str, path: str | Path, *, database: "Tensile | Any" = None, version: int | None = None) -> Path:
        """Write a version of a model of the database to a file, by default the deployed version.

        `.safetensors` has weights and preprocessing, for `Model.load` and `tensile models import`. `.pt2` (for
        torch.export) and `.onnx` have the network alone: they take encoded rows (`Model.encode`), and the recipe of
        the preprocessing is in their metadata. `database` is a `Tensile`, or what `Tensile` takes. Only the owner of
        the model and roles with the privilege "weights" on it may export it.
        """
        from indb_tensile.client.sync_client import Tensile

        if isinstance(database, Tensile):
            return database.export_model(model, path, version=version)
        with Tensile(database) as client:
            return client.export_model(model, path, version=version)

    def __repr__(self) -> str:
        return f"<Model {self.name!r}, version {self.version}: {self.task} of {self.target!r}>"

    @property
    def name(self) -> str:
        """Return the name that the model had in its database."""
        return str(self._recipe["model"])

    @property
    def version(self) -> int:
        """Return the number that the version had in its database."""
        return int(self._recipe["number"])

    @property
    def task(self) -> str:
        """Return classification, regression or multilabel."""
        return str(self._recipe["task"])

    @property
    def target(self) -> str:
        """Return the column that the model predicts."""
        return str(self._recipe["target"])

    @property
    def features(self) -> tuple[str, ...]:
        """Return the columns that a row must have; a column that is computed by SQL is one of them."""
        return self._predictor.features

    @property
    def labels(self) -> tuple[str, ...]:
        """Return the labels as texts, in the order of the network's outputs; empty for a regression."""
        return self._predictor.labels

    @property
    def metrics(self) -> dict[str, float]:
        """Return the metrics on the rows that the training held out."""
        return dict(self._recipe["metrics"])

    def predict(self, rows: Any, *, probabilities: bool = False) -> Any:
        """Predict for a DataFrame or for rows as dicts.

        Returns a frame of the same library with the column `prediction`, or a list of `PredictedRow`, whose key is
        the row's place.
        """
        frame = as_frame(rows)
        answers = self._answers(rows if frame is None else _dicts(frame, self.features))
        if frame is None:
            return answers
        columns: dict[str, list[Any]] = {"prediction": [row.prediction for row in answers]}
        if probabilities:
            columns |= {f"probability_{label}": own for label, own in probability_columns(answers).items()}
        return frame.like(columns)

    def predict_proba(self, rows: Any) -> Any:
        """Return the probability of each label: a frame with a column for each, or a list of dicts."""
        if self.task == "regression":
            raise RequestError(f"model {self.name!r} is a regression, which has no probabilities")
        frame = as_frame(rows)
        answers = self._answers(rows if frame is None else _dicts(frame, self.features))
        if frame is not None:
            return frame.like(probability_columns(answers))
        return [dict(row.probabilities or {}) for row in answers]

    def encode(self, rows: Any) -> npt.NDArray[np.float32]:
        """Return the rows as the network takes them: the input of an exported `.pt2` or `.onnx` file."""
        frame = as_frame(rows)
        dicts = rows if frame is None else _dicts(frame, self.features)
        return self._predictor.transform([_json_row(row) for row in dicts])

    def outputs(self, encoded: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return what the network gives for encoded rows: logits, or standardised values."""
        return self._predictor.outputs(encoded)

    def _answers(self, rows: Iterable[Mapping[str, Any]]) -> list[PredictedRow]:
        predictions = self._predictor.predict_rows([_json_row(row) for row in rows])
        return [self._answer(place, own) for place, own in enumerate(predictions)]

    def _answer(self, place: int, own: "Prediction") -> PredictedRow:
        probabilities = dict(zip(self.labels, own.probabilities, strict=True)) if own.probabilities else None
        several = self._predictor.preprocessor.target.values
        targets = dict(zip(several, own.values, strict=True)) if several else None
        if targets is not None and not self._predictor.preprocessor.target.columns:
            targets_of_array: Any = list(own.values)
            return PredictedRow(key={"row": place}, value=None, label=None, targets=targets_of_array)
        return PredictedRow(
            key={"row": place}, value=own.value, label=own.label, probabilities=probabilities, targets=targets
        )


def check_suffix_of_model(path: Path) -> None:
    """Raise UnsupportedError for a file that is not loaded, because it may run code or lacks the preprocessing."""
    if path.suffix in _PICKLED or path.suffix == ".onnx":
        raise UnsupportedError(
            f"{path} is a {path.suffix} file, and only .safetensors files are loaded",
            detail="An ONNX file lacks the preprocessing."
            if path.suffix == ".onnx"
            else "Loading a file of torch or of pickle can run code that is in the file.",
            hint="Export the model as .safetensors, and load that.",
        )


def checked_predictor(name: str, file: ModelFile) -> "ModelPredictor":
    """Check the model of a file and build it. Raises RequestError for one that this version does not read."""
    from indb_tensile.learning.models.model_predictor import ModelPredictor
    from indb_tensile.learning.models.stored_model_check import check_stored_model

    try:
        check_stored_model(file.recipe["bundle"], file.tensors)
        return ModelPredictor.load(file.recipe["bundle"], file.weights)
    except (DatabaseError, RequestError) as error:
        raise RequestError(
            f"{name} is no model that this version reads: {error.message}", detail=error.detail, hint=error.hint
        ) from None


def _dicts(frame: Frame, names: Sequence[str]) -> list[dict[str, Any]]:
    known = [name for name in frame.names if name in names]
    columns = [frame.block(name, 0, frame.rows) for name in known]
    return [dict(zip(known, values, strict=True)) for values in zip(*columns, strict=True)]


def _json_row(row: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(row, Mapping):
        raise RequestError(f"a row is a {type(row).__name__}", hint="Give each row as a dict of columns and values.")
    return {name: _json_value(value) for name, value in row.items()}


def _json_value(value: Any) -> Any:
    """Return a value as PostgreSQL's JSON has it."""
    match value:
        case bool() | int() | str() | None:
            return value
        case float():
            return None if value != value else value
        case datetime.datetime() | datetime.date() | datetime.time():
            return value.isoformat()
        case datetime.timedelta():
            minutes, seconds = divmod(value.seconds, 60)
            return f"{value.days} days {minutes // 60:02}:{minutes % 60:02}:{seconds:02}.{value.microseconds:06}"
        case decimal.Decimal() | uuid.UUID():
            return str(value)
        case np.generic() | np.ndarray():
            return _json_value(value.tolist())
        case list() | tuple():
            return [_json_value(inner) for inner in value]
        case Mapping():
            return {str(name): _json_value(inner) for name, inner in value.items()}
        case _:
            if hasattr(value, "isoformat"):  # pandas's own times, and its missing time
                return None if value != value else value.isoformat()
            raise RequestError(
                f"a value has the type {type(value).__name__}", hint="Give texts, numbers, times, lists and dicts."
            )
