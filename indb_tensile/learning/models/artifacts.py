"""The stored form of a model: weights and checkpoints as safetensors, everything else as JSON. No pickle is used."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from indb_tensile.errors import DatabaseError, RequestError
from indb_tensile.job import Task
from indb_tensile.learning.decoding.binary_rows import BinaryRows
from indb_tensile.learning.encoding.anomaly_scale import AnomalyScale
from indb_tensile.learning.encoding.label_texts import label_sets
from indb_tensile.learning.encoding.preprocessor import Preprocessor
from indb_tensile.learning.evaluation.model_metrics import evaluate, label_probabilities, probabilities
from indb_tensile.learning.forecasting.forecast_recipe import ForecastRecipe
from indb_tensile.learning.models.side_vectors import SideVectors
from indb_tensile.learning.networks import architectures
from indb_tensile.learning.networks.cut_texts import CutColumn, cut_column, passes_of_short_rows
from indb_tensile.learning.networks.ensemble import FIRST_MEMBER
from indb_tensile.learning.networks.hidden_rows import MOST_ROWS, HiddenRows
from indb_tensile.learning.networks.max_pooling import pooling
from indb_tensile.learning.networks.registered_network import RegisteredNetwork
from indb_tensile.learning.networks.tensorstream import TensorSpec, stream
from indb_tensile.learning.storage.columns import Columns
from indb_tensile.learning.storage.row_storage import row_blocks
from indb_tensile.request.estimator_rules import is_estimator
from indb_tensile.request.pair_sides import ITEM, SIDES

FORMAT = 1  # version of the stored form; a reader refuses any other version
_LARGEST_BATCH_ROWS = 4096  # rows per forward pass of a prediction: bounds the memory of the activations

# Tokens of a pass of a registered network: of width 768, the activations of a layer then take 200 MB.
_LARGEST_BATCH_TOKENS = 1 << 14


class SaveableCheckpoint(Protocol):
    """A checkpoint in the form in which a checkpoint store saves it."""

    @property
    def position(self) -> Mapping[str, Any]:
        """Return the point of the training at which the checkpoint was taken, as plain JSON."""
        ...

    def parts(self) -> Iterator[memoryview]:
        """Yield the checkpoint's bytes, equal at each call. A part is valid until the next one is requested."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CheckpointView:
    """A checkpoint whose tensors are read one by one while the checkpoint is saved.

    The training state is never copied as a whole, so the caller must not change the state before the checkpoint is
    saved. Tensor names have the form `part/name`, as in the file that `Checkpoint.parts` writes.
    """

    specs: Mapping[str, TensorSpec]
    read: Callable[[str], Tensor]
    position: Mapping[str, Any]

    def parts(self) -> Iterator[memoryview]:
        """Yield the checkpoint as a safetensors file with the position in its metadata."""
        return stream(self.specs, self.read, {"position": json.dumps(dict(self.position))})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Checkpoint:
    """The training state of a job at an epoch boundary.

    The caller chooses the tensor names within each part. `position` is plain JSON.
    """

    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    random: dict[str, Tensor]
    position: dict[str, Any] = field(default_factory=dict)

    def parts(self) -> Iterator[memoryview]:
        """Yield the checkpoint as a safetensors file with the position in its metadata."""
        parts = {"weights": self.weights, "optimizer": self.optimizer, "random": self.random}
        tensors = {f"{part}/{name}": tensor for part, named in parts.items() for name, tensor in named.items()}
        specs = {name: TensorSpec.of(tensor) for name, tensor in tensors.items()}
        return CheckpointView(specs=specs, read=tensors.__getitem__, position=self.position).parts()

    @classmethod
    def from_bytes(cls, stored: bytes) -> "Checkpoint":
        """Read a checkpoint back from the bytes that `parts` yielded.

        Raises DatabaseError for any other bytes.
        """
        tensors, metadata = unpack(stored)
        parts: dict[str, dict[str, Tensor]] = {"weights": {}, "optimizer": {}, "random": {}}
        for name, tensor in tensors.items():
            part, _, own = name.partition("/")
            if part not in parts:
                raise DatabaseError(f'the stored checkpoint has a tensor "{name}" of no known part')
            parts[part][own] = tensor
        if "position" not in metadata:
            raise DatabaseError("the stored checkpoint has no position")
        return cls(**parts, position=json.loads(metadata["position"]))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModelBundle:
    """One version of a model, with everything that a prediction needs.

    `baseline` is the encoded row that predictions are explained against, flat, if it was stored. `ensemble` is the
    number of networks whose mean prediction is the model's. `forecast` says how rows of series become windows.
    `network` is the registered network that the architecture begins with, whose weights are not among `weights`
    unless they were trained.
    """

    architecture: dict[str, Any]
    input_shape: tuple[int, ...]
    outputs: int
    task: Task
    preprocessor: Preprocessor
    weights: dict[str, Tensor]
    baseline: tuple[float, ...] | None = None
    ensemble: int = 1
    forecast: ForecastRecipe | None = None
    network: RegisteredNetwork | None = None

    def to_json(self) -> dict[str, Any]:
        """Return everything except the weights as plain data."""
        optional: dict[str, Any] = {} if self.baseline is None else {"baseline": list(self.baseline)}
        if self.forecast is not None:
            optional["forecast"] = self.forecast.to_json()
        return optional | {
            "format": FORMAT,
            "architecture": self.architecture,
            "input_shape": list(self.input_shape),
            "outputs": self.outputs,
            "task": self.task.value,
            "preprocessor": self.preprocessor.to_json(),
            "ensemble": self.ensemble,
        }

    def to_bytes(self) -> bytes:
        """Return the weights as a safetensors file."""
        return pack(self.weights, {})

    @classmethod
    def load(
        cls, stored: Mapping[str, Any], weights: bytes, network: RegisteredNetwork | None = None
    ) -> "ModelBundle":
        """Read a bundle that `to_json` and `to_bytes` wrote. `network` is the registered network that it needs.

        Raises DatabaseError for anything else.
        """
        try:
            model = msgspec.convert(stored, StoredModel)
        except msgspec.ValidationError as error:
            raise DatabaseError(f"the stored model cannot be read: {error}") from error
        if model.format != FORMAT:
            raise DatabaseError(f"the stored model has format {model.format}, this version reads {FORMAT}")
        return cls(
            architecture=model.architecture,
            input_shape=model.input_shape,
            outputs=model.outputs,
            task=model.task,
            preprocessor=Preprocessor.from_json(model.preprocessor, None if network is None else network.tokenizer),
            baseline=model.baseline,
            ensemble=model.ensemble,
            forecast=None if model.forecast is None else ForecastRecipe.from_json(model.forecast),
            weights=unpack(weights)[0],
            network=network,
        )

    def first_member(self) -> "ModelBundle":
        """Return the first network of an ensemble as a version of its own; any other version as it is."""
        if self.ensemble == 1:
            return self
        own = {name: tensor for name, tensor in self.weights.items() if name.startswith(FIRST_MEMBER)}
        weights = {name.removeprefix(FIRST_MEMBER): tensor for name, tensor in own.items()}
        return replace(self, ensemble=1, weights=weights)

    def module(self) -> nn.Module:
        """Build the network, load its weights and put it into evaluation mode.

        Raises DatabaseError if the weights do not fit the network.
        """
        module = architectures.build(
            self.architecture,
            self.input_shape,
            self.outputs,
            task=self.task,
            ensemble=self.ensemble,
            network=self.network,
        )
        try:
            unfit = module.load_state_dict(self.weights, strict=self.network is None)
        except RuntimeError as error:
            raise DatabaseError(f"the stored weights do not fit their architecture: {error}") from error
        needed = set(architectures.stored_names(module))
        absent = [*needed.intersection(unfit.missing_keys), *unfit.unexpected_keys]
        if absent:
            raise DatabaseError(f"the stored weights do not fit their architecture: {', '.join(sorted(absent)[:5])}")
        return module.eval().requires_grad_(requires_grad=False)


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


def pack(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """Serialize tensors of any device and layout as a safetensors file.

    Tensors that share a storage are each written in full.
    """
    specs = {name: TensorSpec.of(tensor) for name, tensor in tensors.items()}
    return b"".join(stream(specs, tensors.__getitem__, metadata))


def unpack(stored: bytes) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and the metadata of a safetensors file.

    Raises DatabaseError for bytes that are not a safetensors file.
    """
    try:
        tensors: dict[str, Tensor] = safetensors.torch.load(stored)
    except SafetensorError as error:
        raise DatabaseError(f"the stored {len(stored)} bytes of tensors cannot be read: {error}") from error
    header_bytes = int.from_bytes(stored[:8], "little")
    metadata: dict[str, str] = json.loads(stored[8 : 8 + header_bytes]).get("__metadata__", {})
    return tensors, metadata


class StoredModel(msgspec.Struct, frozen=True, kw_only=True):
    """Validates the JSON that `ModelBundle.to_json` wrote."""

    format: int
    architecture: dict[str, Any]
    input_shape: tuple[int, ...]
    outputs: int
    task: Task
    preprocessor: dict[str, Any]
    baseline: tuple[float, ...] | None = None
    ensemble: int = 1
    forecast: dict[str, Any] | None = None
