"""The stored form of a model: weights and checkpoints as safetensors, everything else as JSON. No pickle is used."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import msgspec
import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor, nn

from indb_tensile.errors import DatabaseError
from indb_tensile.job import Task
from indb_tensile.learning.encoding.preprocessor import Preprocessor
from indb_tensile.learning.forecasting.forecast_recipe import ForecastRecipe
from indb_tensile.learning.networks import architectures
from indb_tensile.learning.networks.ensemble import FIRST_MEMBER
from indb_tensile.learning.networks.registered_network import RegisteredNetwork
from indb_tensile.learning.networks.tensorstream import TensorSpec, stream

FORMAT = 1  # version of the stored form; a reader refuses any other version


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
