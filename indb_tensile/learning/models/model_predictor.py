"""Predicts with a loaded model: rows from SQL, or columns of a table."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from indb_tensile.errors import RequestError
from indb_tensile.job import Task
from indb_tensile.learning.decoding.binary_rows import BinaryRows
from indb_tensile.learning.encoding.anomaly_scale import AnomalyScale
from indb_tensile.learning.encoding.label_texts import label_sets
from indb_tensile.learning.evaluation.model_metrics import evaluate, label_probabilities, probabilities
from indb_tensile.learning.models.artifacts import ModelBundle
from indb_tensile.learning.models.side_vectors import SideVectors
from indb_tensile.learning.networks.cut_texts import CutColumn, cut_column, passes_of_short_rows
from indb_tensile.learning.networks.hidden_rows import MOST_ROWS, HiddenRows
from indb_tensile.learning.networks.max_pooling import pooling
from indb_tensile.learning.networks.registered_network import RegisteredNetwork
from indb_tensile.learning.storage.columns import Columns
from indb_tensile.learning.storage.row_storage import row_blocks
from indb_tensile.request.estimator_rules import is_estimator
from indb_tensile.request.pair_sides import ITEM, SIDES

_LARGEST_BATCH_ROWS = 4096  # rows per forward pass of a prediction: bounds the memory of the activations

# Tokens of a pass of a registered network: of width 768, the activations of a layer then take 200 MB.
_LARGEST_BATCH_TOKENS = 1 << 14


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The prediction for one row.

    `value` is the number that `tensile_predict` returns: the regression value, or the label as a number (None for
    text labels and several values). `values` are those of a regression, one or several. `label` is the label as text
    (None for regression), for sets of labels the text of an array, and `labels` has one label or those of the set.
    `probabilities` follow the order of the model's labels. `vector` is the output of the network itself.
    """

    value: float | None
    label: str | None
    probabilities: tuple[float, ...]
    vector: tuple[float, ...]
    values: tuple[float, ...] = ()
    labels: tuple[str, ...] = ()


class ModelPredictor:
    """A loaded model that predicts rows from SQL or columns of a table."""

    def __init__(self, bundle: ModelBundle) -> None:
        self.bundle = bundle
        self.preprocessor = bundle.preprocessor
        self.task = bundle.task
        self._forwards = tuple(_forwards(bundle.module()))
        self._hidden: HiddenRows | None = None
        self._sides: dict[str, SideVectors] = {}

    @classmethod
    def load(
        cls, stored: Mapping[str, Any], weights: bytes, network: RegisteredNetwork | None = None
    ) -> "ModelPredictor":
        """Build a predictor from the stored form of a `ModelBundle`."""
        return cls(ModelBundle.load(stored, weights, network))

    @property
    def features(self) -> tuple[str, ...]:
        """Return the columns that a row must have, in the order of positional values."""
        return self.preprocessor.recipe.features

    @property
    def labels(self) -> tuple[str, ...]:
        """Return the labels as text, in the order of the probabilities; empty for regression."""
        return self.preprocessor.target.names

    def predict_rows(self, rows: Sequence[Any]) -> list[Prediction]:
        """Return one prediction per row.

        A row is an object, an array of values in the order of the features, or the value of the only feature. Raises
        RequestError and DataError as `Preprocessor.transform_rows` does.
        """
        return self._predictions(self.outputs(self.preprocessor.transform_rows(rows))) if rows else []

    def transform(self, rows: Sequence[Any]) -> npt.NDArray[np.float32]:
        """Return the tensors of rows of a prediction in either form."""
        if isinstance(rows, BinaryRows):
            return self.preprocessor.transform(rows.columns)
        return self.preprocessor.transform_rows(rows)

    def predict_columns(self, columns: Columns) -> list[Prediction]:
        """Return one prediction per row of a table."""
        return self._predictions(self.outputs(self.preprocessor.transform(columns)))

    def evaluate_rows(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """Compute the metrics on objects that also contain the target.

        Raises RequestError if there are no rows.
        """
        if not rows:
            raise RequestError("there are no rows to evaluate on")
        targets = self.preprocessor.targets_of(rows)
        outputs = self.outputs(self.preprocessor.transform_rows(rows))
        return evaluate(self.task, outputs, targets, self.preprocessor, each=True)

    def evaluate_columns(self, columns: Columns) -> dict[str, float]:
        """Compute the metrics on rows of a table that includes the target.

        The rows may be another version's `held_out`, so that two versions can be compared.
        """
        return evaluate(self.task, *self.score_columns(columns), self.preprocessor)

    def score_columns(self, columns: Columns) -> tuple[npt.NDArray[np.float32], npt.NDArray[Any]]:
        """Return the network's outputs for rows of a table, and their encoded targets."""
        data = columns[self.preprocessor.target.column]
        rows = len(data.missing)
        outputs, targets = [], []
        for start, end in row_blocks(rows, self.preprocessor.block_rows or rows) if rows else [(0, 0)]:
            block = {name: column.part(start, end) for name, column in columns.items()}
            outputs.append(self.outputs(self.preprocessor.transform(block)))
            targets.append(self.preprocessor.target.encode(data.part(start, end)))
        return np.concatenate(outputs), np.concatenate(targets)

    def outputs(self, x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Run the network on transformed rows and return its outputs, shape (rows, outputs)."""
        size = self._batch_rows
        with torch.inference_mode():
            if self._cut_column is not None and len(x):
                return self._outputs_by_length(x, self._cut_column)
            inputs = torch.from_numpy(x)
            if len(inputs) <= size:
                return self._run(inputs)
            return np.concatenate([self._run(inputs[start : start + size]) for start in range(0, len(inputs), size)])

    def _outputs_by_length(self, x: npt.NDArray[np.float32], column: CutColumn) -> npt.NDArray[np.float32]:
        """Return the outputs for rows of which short texts are computed without their padding."""
        outputs = None
        for places, rows in passes_of_short_rows(x, column, self._batch_rows):
            own = self._run(torch.from_numpy(rows))
            if outputs is None:
                outputs = np.empty((len(x), *own.shape[1:]), own.dtype)
            outputs[places] = own
        assert outputs is not None  # there is a row
        return outputs

    @cached_property
    def _cut_column(self) -> CutColumn | None:
        """Return the column of tokens whose padding need not be computed, if there is one."""
        recipe = self.preprocessor.recipe
        reads = bool(recipe.tokens or recipe.network_tokens) and not recipe.images
        return cut_column(self.preprocessor) if reads and self.preprocessor.target.pair is None else None

    @property
    def _batch_rows(self) -> int:
        """Return how many rows a forward pass takes: fewer where a registered network reads many tokens of each."""
        tokens = sum(part.length for part in self.preprocessor.recipe.network_tokens)
        return min(_LARGEST_BATCH_ROWS, max(1, _LARGEST_BATCH_TOKENS // tokens)) if tokens else _LARGEST_BATCH_ROWS

    def embeddings(self, x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return the last hidden representation of transformed rows. Raises RequestError for a model without one."""
        if self.preprocessor.target.pair is not None:
            raise RequestError(
                "the model embeds a query and an item each by itself, and side is left out",
                hint=f"Give one of {', '.join(SIDES)}, such as side => '{ITEM}'.",
            )
        if is_estimator(self.bundle.architecture):
            raise RequestError(
                f"architecture {self.bundle.architecture['type']} has no hidden layer, and so no embeddings",
                hint="Train a network, such as architecture => 'mlp'.",
            )
        if self._hidden is None:  # a second network, since a layer of it has a hook
            rows = min(MOST_ROWS, self._batch_rows)
            self._hidden = HiddenRows(self.bundle.module(), self.bundle.input_shape, rows)
        return self._hidden(x)

    def side(self, side: str) -> SideVectors:
        """Return what embeds the rows of one side of pairs. Raises RequestError for a model without sides."""
        if side not in self._sides:
            self._sides[side] = SideVectors(self.preprocessor, self._own_module, side)
        return self._sides[side]

    @cached_property
    def _own_module(self) -> nn.Module:
        """A second network, whose parts are called by themselves."""
        return self.bundle.module()

    def _run(self, inputs: Tensor) -> npt.NDArray[np.float32]:
        for forward in self._forwards:
            inputs = forward(inputs)
        outputs: npt.NDArray[np.float32] = inputs.numpy()
        return outputs

    def _predictions(self, outputs: npt.NDArray[np.float32]) -> list[Prediction]:
        """Convert the network's outputs to one prediction per row."""
        target = self.preprocessor.target
        vectors = outputs.tolist()
        if self.task in (Task.REGRESSION, Task.PAIRS):
            values = target.restore(outputs).reshape(len(outputs), -1).tolist()
            return [
                Prediction(
                    value=None if target.values else own[0],
                    label=None,
                    probabilities=(),
                    vector=tuple(vector),
                    values=tuple(own),
                )
                for own, vector in zip(values, vectors, strict=True)
            ]
        if target.anomaly is not None:
            return _anomalies(target.anomaly, target.names, outputs)
        if self.task is Task.MULTILABEL:
            chances, texts = label_probabilities(outputs).tolist(), label_sets(target.names, outputs)
            return [
                Prediction(
                    value=None,
                    label=label,
                    probabilities=tuple(own),
                    vector=tuple(vector),
                    labels=tuple(name for name, output in zip(target.names, vector, strict=True) if output >= 0),
                )
                for label, own, vector in zip(texts, chances, vectors, strict=True)
            ]
        class_probabilities, best_classes = probabilities(outputs).tolist(), outputs.argmax(axis=1).tolist()
        return [
            Prediction(
                value=None if target.numbers is None else target.numbers[class_number],
                label=target.names[class_number],
                probabilities=tuple(row_probabilities),
                vector=tuple(vector),
                labels=(target.names[class_number],),
            )
            for class_number, row_probabilities, vector in zip(
                best_classes, class_probabilities, vectors, strict=True
            )
        ]


def _anomalies(scale: AnomalyScale, names: tuple[str, ...], outputs: npt.NDArray[np.float32]) -> list[Prediction]:
    """Return each row's score as its value, whether it is an anomaly, and what each column adds as its vector."""
    scores = scale.scores(outputs)
    labels = [names[int(flag)] for flag in scale.flags(scores)]
    return [
        Prediction(value=score, label=label, probabilities=(), vector=tuple(added), labels=(label,))
        for score, label, added in zip(scores.tolist(), labels, scale.contributions(outputs)[1].tolist(), strict=True)
    ]


def _forwards(module: nn.Module) -> Iterator[Callable[[Tensor], Tensor]]:
    """Yield the functions of a network's layers in their order.

    The network has no hooks and is in evaluation mode, where a dropout changes nothing. To call the functions takes
    half the time that a call of the module takes for one row.
    """
    if type(module) is nn.Sequential:
        for layer in module:
            yield from _forwards(layer)
    elif isinstance(module, nn.MaxPool2d):
        yield pooling(module)
    elif not isinstance(module, nn.Dropout):
        yield module.forward
