"""The stored form of captured steps, and the key under which equal captures are stored.

Capturing a network takes seconds, mostly inside torch, and gives the same steps each time. The numbers of
`step_numbers.py`, such as a weight decay, do not count: a stored step is given those of the training. The stored form
is a pickle in which torch's operators are names. It is read by an unpickler that makes nothing but the records of
this package and torch's types of numbers and devices, so a damaged or foreign file is refused, and runs no code.
"""

import hashlib
import io
import json
import pickle
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from torch import nn

import indb_tensile
from indb_tensile.errors import DataError
from indb_tensile.executor.capture.allocation_script import Allocation, AllocationScript
from indb_tensile.executor.capture.optimizer import OptimizerSettings
from indb_tensile.executor.capture.passes import Passes
from indb_tensile.executor.capture.record import Call, Ref, Runtime, Shape
from indb_tensile.executor.capture.step_capture import CapturedStep, Step, StepKind
from indb_tensile.executor.capture.step_numbers import StepNumbers, is_changeable
from indb_tensile.executor.capture.storage_layout import StoredTensor, Value
from indb_tensile.scheduler.graph import Operator, Role, Stage, StepGraph, Tensor
from indb_tensile.scheduler.timing.operator_features import Description, Layout

_RECORDS = (
    Allocation,
    AllocationScript,
    Call,
    CapturedStep,
    Description,
    Layout,
    Operator,
    Ref,
    Role,
    Runtime,
    Shape,
    Stage,
    Step,
    StepGraph,
    StepKind,
    StoredTensor,
    Tensor,
    Value,
)
_CLASSES = {(record.__module__, record.__qualname__): record for record in _RECORDS}
_RATE_OPTIONS = ("dropout", "text_dropout", "p")  # the options of an architecture that are probabilities of dropouts
_OPTIONS = (bool, int, float, str, tuple, list)  # the types of a layer's options
_OPERATOR, _TORCH_VALUE, _DEVICE = "operator", "torch", "device"


def capture_key(
    architecture: Mapping[str, object],
    module: nn.Module,
    loss: nn.Module,
    kind: StepKind,
    batch: tuple[torch.Tensor, torch.Tensor],
    numbers: StepNumbers,
    passes: Passes,
    place: Mapping[str, object],
) -> str:
    """Return the digest of everything that the capture of a step depends on, but for the `numbers`.

    Of the `batch` only shapes and types count. `place` is the device with its number of threads. The values of
    parameters do not count: a capture never reads them.
    """
    with _without_rates(module, numbers.rates):
        layers = _layers(module)
    described = {
        "code": _CODE,
        "architecture": _without_options(dict(architecture), numbers.rates),
        "module": layers,
        "loss": _layers(loss),
        "state": [[name, str(v.dtype), list(v.shape), list(v.stride())] for name, v in _state(module, loss).items()],
        "trained": [name for name, parameter in module.named_parameters() if parameter.requires_grad],
        "kind": kind.value,
        "batch": [[str(t.dtype), list(t.shape), list(t.stride())] for t in batch],
        "optimizer": _structure(numbers.optimizer),
        "passes": asdict(passes),
        "place": dict(place),
    }
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()


def is_storable(steps: tuple[CapturedStep, ...]) -> bool:
    """Return whether the key says all that the steps depend on. Constants are values that it does not contain."""
    return all(not step.constants and is_changeable(step) for step in steps)


def encode(steps: tuple[CapturedStep, ...]) -> bytes:
    """Return the stored form. Raises DataError for a step that holds anything else than records and torch's types."""
    content = io.BytesIO()
    try:
        _Writer(content, protocol=pickle.HIGHEST_PROTOCOL).dump(steps)
    except (pickle.PicklingError, AttributeError, RuntimeError, TypeError) as error:
        raise DataError(f"the captured steps cannot be stored: {error}") from error
    return content.getvalue()


def decode(content: bytes) -> tuple[CapturedStep, ...]:
    """Return the steps of a stored form. Raises DataError if the content is damaged or holds anything else."""
    try:
        steps = _Reader(io.BytesIO(content)).load()
    except Exception as error:
        raise DataError(f"the stored capture cannot be read: {type(error).__name__}: {error}") from error
    if not isinstance(steps, tuple) or not steps or not all(isinstance(step, CapturedStep) for step in steps):
        raise DataError("the stored capture holds no captured steps")
    return steps


class _Writer(pickle.Pickler):
    def persistent_id(self, value: Any) -> tuple[str, ...] | None:
        if isinstance(value, torch._ops.OpOverload):  # noqa: SLF001 - torch has no public name for it
            described: Any = value  # torch gives its methods no types
            return _OPERATOR, *described.name().split("::", 1), described._overloadname  # noqa: SLF001
        if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
            return _TORCH_VALUE, str(value).removeprefix("torch.")
        if isinstance(value, torch.device):
            return _DEVICE, str(value)
        return None

    def reducer_override(self, value: Any) -> Any:
        if value in _RECORDS if isinstance(value, type) else isinstance(value, _RECORDS):
            # Some versions of Python 3.11 would store getattr to make a member of an enumeration.
            return (type(value), (value.value,)) if isinstance(value, Enum) else NotImplemented
        raise pickle.PicklingError(f"a value of type {type(value).__name__}")


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        item = _CLASSES.get((module, name))
        if item is None:
            raise pickle.UnpicklingError(f"{module}.{name} is no part of a capture")
        return item

    def persistent_load(self, stored: Any) -> Any:
        match stored:
            case (kind, str(namespace), str(name), str(overload)) if kind == _OPERATOR:
                packet = getattr(getattr(torch.ops, namespace), name.partition(".")[0])
                item = getattr(packet, overload)
                if isinstance(item, torch._ops.OpOverload):  # noqa: SLF001
                    return item
            case (kind, str(name)) if kind == _TORCH_VALUE:
                item = getattr(torch, name, None)
                if isinstance(item, torch.dtype | torch.layout | torch.memory_format):
                    return item
            case (kind, str(name)) if kind == _DEVICE:
                return torch.device(name)
        raise pickle.UnpicklingError(f"unknown reference {stored!r}")


def _layers(module: nn.Module) -> list[object]:
    """Return each layer with its class and its options, some of which torch leaves out of a module's text."""
    return [
        [name, repr(layer), sorted((key, str(v)) for key, v in vars(layer).items() if isinstance(v, _OPTIONS))]
        for name, layer in module.named_modules()
    ]


@contextmanager
def _without_rates(module: nn.Module, rates: tuple[float, ...]) -> Iterator[None]:
    """Show the places of these probabilities in the descriptions of dropout layers, instead of the probabilities."""
    layers = [layer for layer in module.modules() if type(layer) is nn.Dropout and layer.p in rates]
    saved = [layer.p for layer in layers]
    try:
        for layer, rate in zip(layers, saved, strict=True):
            vars(layer)["p"] = f"rate {rates.index(rate)}"
        yield
    finally:
        for layer, rate in zip(layers, saved, strict=True):
            layer.p = rate


def _without_options(item: Any, rates: tuple[float, ...], name: str = "") -> Any:
    """Return the part of an architecture with the places of these probabilities instead of the probabilities."""
    if isinstance(item, Mapping):
        return {key: _without_options(part, rates, key) for key, part in item.items()}
    if isinstance(item, list | tuple):
        return [_without_options(part, rates) for part in item]
    return f"rate {rates.index(item)}" if name in _RATE_OPTIONS and item in rates else item


def _structure(optimizer: OptimizerSettings) -> dict[str, object]:
    """Return the settings without the values of those that change no graph: of them only counts which are 0."""
    changeable = {name: bool(getattr(optimizer, name)) for name in ("momentum", "weight_decay", "alpha", "eps")}
    betas = {"betas": [bool(beta) for beta in optimizer.betas], "average_decay": _zero(optimizer.average_decay)}
    return asdict(optimizer) | changeable | betas


def _zero(value: float | None) -> bool | None:
    return None if value is None else bool(value)


def _state(module: nn.Module, loss: nn.Module) -> dict[str, torch.Tensor]:
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return tensors | {f"loss {name}": value for name, value in loss.state_dict().items()}


def _code() -> list[object]:
    """Return the versions, sizes and times of the code that captures: other code may capture other steps."""
    package = Path(indb_tensile.__file__).parent
    files = sorted(package.rglob("*.py"))
    digest = hashlib.sha256()
    for path in files:
        state = path.stat()
        digest.update(f"{path.relative_to(package)} {state.st_size} {state.st_mtime_ns}\n".encode())
    return [torch.__version__, platform.python_version(), digest.hexdigest()]


# Of the code that this process has imported. A trainer is forked with it, and looks at none of the files again.
_CODE = _code()
