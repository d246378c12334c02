"""What is stored of a model: weights and checkpoints as safetensors, everything else as JSON. No pickle."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
from indb_tensile.learning import architectures
from indb_tensile.learning.columns import Columns
from indb_tensile.learning.evaluation import evaluate, probabilities
from indb_tensile.learning.features import Preprocessor
from indb_tensile.learning.tensorstream import TensorSpec, stream

FORMAT = 1  # of the stored model; a reader refuses a newer one
_LARGEST_BATCH_ROWS = 4096  # of a prediction: bounds what its activations take


class Saving(Protocol):
    """A checkpoint that can be saved: what a store of checkpoints needs."""

    @property
    def position(self) -> Mapping[str, Any]:
        """Where in the training the checkpoint was taken, as plain JSON."""
        ...

    def parts(self) -> Iterator[memoryview]:
        """Yield the checkpoint's bytes, equal at each call. A part is valid until the next is requested."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CheckpointView:
    """A checkpoint of a state that is read tensor by tensor while it is saved: the state is not copied as a whole.

    Names are `part/name` as in `Checkpoint`. Nothing may change the state before it is saved.
    """

    specs: Mapping[str, TensorSpec]
    read: Callable[[str], Tensor]
    position: Mapping[str, Any]

    def parts(self) -> Iterator[memoryview]:
        """As safetensors, the position in its metadata."""
        return stream(self.specs, self.read, {"position": json.dumps(dict(self.position))})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Checkpoint:
    """A job between two epochs. Names in each part are the caller's; `position` is plain JSON."""

    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    random: dict[str, Tensor]
    position: dict[str, Any] = field(default_factory=dict)

    def parts(self) -> Iterator[memoryview]:
        """As safetensors, the position in its metadata."""
        parts = {"weights": self.weights, "optimizer": self.optimizer, "random": self.random}
        tensors = {f"{part}/{name}": tensor for part, named in parts.items() for name, tensor in named.items()}
        specs = {name: TensorSpec.of(tensor) for name, tensor in tensors.items()}
        return CheckpointView(specs=specs, read=tensors.__getitem__, position=self.position).parts()

    @classmethod
    def from_bytes(cls, stored: bytes) -> "Checkpoint":
        """Raises DatabaseError for bytes that `parts` did not yield."""
        tensors, metadata = unpack(stored)
        parts: dict[str, dict[str, Tensor]] = {"weights": {}, "optimizer": {}, "random": {}}
        for name, tensor in tensors.items():
            part, _, own = name.partition("/")
            if part not in parts:
                raise DatabaseError(f'the stored checkpoint has a tensor "{name}" of no known part')
            parts[part][own] = tensor
        if "position" not in metadata:
            raise DatabaseError("the stored checkpoint does not say where it was taken")
        return cls(**parts, position=json.loads(metadata["position"]))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModelBundle:
    """One version of a model: all that a prediction needs."""

    architecture: dict[str, Any]
    input_shape: tuple[int, ...]
    outputs: int
    task: Task
    preprocessor: Preprocessor
    weights: dict[str, Tensor]

    def to_json(self) -> dict[str, Any]:
        """Everything but the weights, as plain data."""
        return {
            "format": FORMAT,
            "architecture": self.architecture,
            "input_shape": list(self.input_shape),
            "outputs": self.outputs,
            "task": self.task.value,
            "preprocessor": self.preprocessor.to_json(),
        }

    def to_bytes(self) -> bytes:
        """The weights."""
        return pack(self.weights, {})

    @classmethod
    def load(cls, stored: Mapping[str, Any], weights: bytes) -> "ModelBundle":
        """Raises DatabaseError for anything that `to_json` and `to_bytes` did not write."""
        try:
            read = msgspec.convert(stored, _StoredModel)
        except msgspec.ValidationError as error:
            raise DatabaseError(f"the stored model cannot be read: {error}") from error
        if read.format != FORMAT:
            raise DatabaseError(f"the stored model has format {read.format}, this version reads {FORMAT}")
        return cls(
            architecture=read.architecture,
            input_shape=read.input_shape,
            outputs=read.outputs,
            task=read.task,
            preprocessor=Preprocessor.from_json(read.preprocessor),
            weights=unpack(weights)[0],
        )

    def module(self) -> nn.Module:
        """The network in evaluation mode. Raises DatabaseError where the weights are not this network's."""
        module = architectures.build(self.architecture, self.input_shape, self.outputs)
        try:
            module.load_state_dict(self.weights)
        except RuntimeError as error:
            raise DatabaseError(f"the stored weights do not fit their architecture: {error}") from error
        return module.eval().requires_grad_(requires_grad=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """One row's answer.

    `value` is what `tensile_predict` returns: the regression value, or the label as a number (None for text
    labels). `label` is the label as text (None for regression). `probabilities` follow the labels' order.
    `vector` is the network's own output.
    """

    value: float | None
    label: str | None
    probabilities: tuple[float, ...]
    vector: tuple[float, ...]


class Predictor:
    """A model ready to answer. Give it rows from SQL or columns of a table."""

    def __init__(self, bundle: ModelBundle) -> None:
        self.bundle = bundle
        self.preprocessor = bundle.preprocessor
        self.task = bundle.task
        self._module = bundle.module()

    @classmethod
    def load(cls, stored: Mapping[str, Any], weights: bytes) -> "Predictor":
        """From what `ModelBundle` stored."""
        return cls(ModelBundle.load(stored, weights))

    @property
    def features(self) -> tuple[str, ...]:
        """The columns that a row must have, in the order of positional values."""
        return self.preprocessor.recipe.features

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels as text, in the order of probabilities; empty for regression."""
        return self.preprocessor.target.names

    def predict_rows(self, rows: Sequence[Any]) -> list[Prediction]:
        """One prediction per row: an object, an array in the features' order, or the single feature's value.

        Raises RequestError and DataError, as `Preprocessor.transform_rows` does.
        """
        return self._answers(self.outputs(self.preprocessor.transform_rows(rows))) if rows else []

    def predict_columns(self, columns: Columns) -> list[Prediction]:
        """One prediction per row of a table."""
        return self._answers(self.outputs(self.preprocessor.transform(columns)))

    def evaluate_rows(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """The metrics on objects that hold the target too. Raises RequestError for no rows."""
        if not rows:
            raise RequestError("there are no rows to evaluate on")
        targets = self.preprocessor.targets_of(rows)
        return evaluate(self.task, self.outputs(self.preprocessor.transform_rows(rows)), targets, self.preprocessor)

    def evaluate_columns(self, columns: Columns) -> dict[str, float]:
        """The metrics on rows of a table, such as another version's `held_out`."""
        target = self.preprocessor.target
        outputs = self.outputs(self.preprocessor.transform(columns))
        return evaluate(self.task, outputs, target.encode(columns[target.name]), self.preprocessor)

    def outputs(self, x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """What the network gives for transformed rows, (rows, outputs)."""
        given, size = torch.from_numpy(x), _LARGEST_BATCH_ROWS
        with torch.inference_mode():
            parts = [self._module(given[at : at + size]).numpy() for at in range(0, len(given), size)]
        return np.concatenate(parts) if len(parts) > 1 else parts[0]

    def _answers(self, outputs: npt.NDArray[np.float32]) -> list[Prediction]:
        target = self.preprocessor.target
        vectors = outputs.tolist()
        if self.task is Task.REGRESSION:
            values = target.restore(outputs).tolist()
            return [
                Prediction(value=value, label=None, probabilities=(), vector=tuple(vector))
                for value, vector in zip(values, vectors, strict=True)
            ]
        chances, best = probabilities(outputs).tolist(), outputs.argmax(axis=1).tolist()
        return [
            Prediction(
                value=None if target.numbers is None else target.numbers[place],
                label=target.names[place],
                probabilities=tuple(chance),
                vector=tuple(vector),
            )
            for place, chance, vector in zip(best, chances, vectors, strict=True)
        ]


def pack(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """Tensors of any device and layout as safetensors; those that share a storage are written twice."""
    specs = {name: TensorSpec.of(tensor) for name, tensor in tensors.items()}
    return b"".join(stream(specs, tensors.__getitem__, metadata))


def unpack(stored: bytes) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the metadata. Raises DatabaseError for bytes that are not safetensors."""
    try:
        tensors: dict[str, Tensor] = safetensors.torch.load(stored)
    except SafetensorError as error:
        raise DatabaseError(f"the stored {len(stored)} bytes of tensors cannot be read: {error}") from error
    header_bytes = int.from_bytes(stored[:8], "little")
    metadata: dict[str, str] = json.loads(stored[8 : 8 + header_bytes]).get("__metadata__", {})
    return tensors, metadata


class _StoredModel(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    architecture: dict[str, Any]
    input_shape: tuple[int, ...]
    outputs: int
    task: Task
    preprocessor: dict[str, Any]
