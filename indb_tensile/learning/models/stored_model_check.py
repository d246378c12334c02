"""Checks a stored model of unknown origin before anything of its size is built.

A file may contain any description of a model. The description is compared with the tensors in the file, so that
reading the model takes no more memory than these tensors do.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

import msgspec

from indb_tensile.errors import DatabaseError
from indb_tensile.learning.encoding.preprocessor import Preprocessor
from indb_tensile.learning.models.artifacts import FORMAT, StoredModel
from indb_tensile.learning.networks import architectures
from indb_tensile.request.network_rules import ESTIMATORS, check_architecture

MOST_ENCODED = 10_000_000  # most numbers of one encoded row
MOST_MEMBERS = 32  # most networks of an ensemble
_TYPES = {"torch.float32": "F32", "torch.int64": "I64", "torch.float64": "F64", "torch.bool": "BOOL"}
Described = Mapping[str, tuple[str, tuple[int, ...]]]


def check_stored_model(stored: Mapping[str, Any], tensors: Described) -> None:
    """Raise DatabaseError if a stored model contradicts itself or its tensors, RequestError for a wrong network.

    `tensors` has the type and the shape of each tensor by name, as a safetensors file names types.
    """
    model = _converted(stored)
    _check_sizes(model)
    preprocessor = Preprocessor.from_json(model.preprocessor)
    _refuse_unknown(stored, "the stored model", _normal_form(model, preprocessor))
    width = len(preprocessor.outputs)
    if width != math.prod(model.input_shape) or model.input_shape != preprocessor.input_shape:
        raise DatabaseError(
            f"the stored model's rows have {width} numbers, and its input_shape is {list(model.input_shape)}"
        )
    if preprocessor.target.outputs != model.outputs or preprocessor.target.task is not model.task:
        raise DatabaseError(
            f"the stored model has {model.outputs} outputs for {model.task}, and its target has "
            f"{preprocessor.target.outputs} for {preprocessor.target.task}"
        )
    check_architecture(model.architecture)
    if model.architecture["type"] not in ESTIMATORS:
        _check_tensors(model, tensors)


def check_imported_model(stored: Mapping[str, Any], weights: bytes) -> None:
    """Raise the errors of `check_stored_model` for a model of a file, and for a kind of model that has no file.

    `weights` is a safetensors file, whose header alone is read here.
    """
    if stored.get("forecast") or stored.get("task") in ("anomaly", "pairs"):
        raise DatabaseError("a forecast and a model of anomalies or of pairs cannot be imported")
    if (stored.get("architecture") or {}).get("type") == "pretrained":
        raise DatabaseError("a model that needs a registered network cannot be imported")
    check_stored_model(stored, _described(weights))


def _described(weights: bytes) -> Described:
    try:
        header = json.loads(weights[8 : 8 + int.from_bytes(weights[:8], "little")])
        return {
            name: (str(own["dtype"]), tuple(own["shape"])) for name, own in header.items() if name != "__metadata__"
        }
    except (ValueError, RecursionError, AttributeError, KeyError, TypeError) as error:
        raise DatabaseError(f"the header of the weights cannot be read: {error}") from None


def _converted(stored: Mapping[str, Any]) -> StoredModel:
    try:
        model = msgspec.convert(stored, StoredModel)
    except (msgspec.ValidationError, RecursionError) as error:
        raise DatabaseError(f"the stored model cannot be read: {error}") from None
    if model.format != FORMAT:
        raise DatabaseError(f"the stored model has format {model.format}, this version reads {FORMAT}")
    return model


def _check_sizes(model: StoredModel) -> None:
    if not 1 <= model.ensemble <= MOST_MEMBERS:
        raise DatabaseError(f"the stored model has an ensemble of {model.ensemble}, and {MOST_MEMBERS} are the most")
    if not all(0 < side <= MOST_ENCODED for side in model.input_shape) or not 0 < model.outputs <= MOST_ENCODED:
        raise DatabaseError(f"the stored model has the input_shape {list(model.input_shape)[:10]}")
    others = {name: value for name, value in model.preprocessor.items() if name != "target"}
    total = _integers(others)
    if total > MOST_ENCODED:
        raise DatabaseError(
            f"the stored preprocessing makes {total} numbers of a row, and {MOST_ENCODED} are the most"
        )


def _integers(value: Any) -> int:
    """Return the sum of all whole numbers of a document, with a shape counted as the numbers that it holds."""
    if isinstance(value, bool) or value is None:
        return 0
    if isinstance(value, int):
        return abs(value)
    if isinstance(value, Mapping):
        shape = value.get("shape")
        own = math.prod(abs(side) for side in shape if isinstance(side, int)) if isinstance(shape, list) else 0
        return own + sum(_integers(inner) for inner in value.values())
    if isinstance(value, list):
        return sum(_integers(inner) for inner in value)
    return 0


def _normal_form(model: StoredModel, preprocessor: Preprocessor) -> dict[str, Any]:
    normal: dict[str, Any] = msgspec.to_builtins(model)
    return normal | {"preprocessor": preprocessor.to_json()}


def _refuse_unknown(stored: Any, where: str, normal: Any) -> None:
    """Raise DatabaseError for a member of an object that reading it would leave out."""
    if isinstance(stored, Mapping) and isinstance(normal, Mapping):
        for name, value in stored.items():
            if name not in normal:
                raise DatabaseError(f'{where} has the unknown member "{str(name)[:100]}"')
            _refuse_unknown(value, f"{where}: {name}", normal[name])
    elif isinstance(stored, list) and isinstance(normal, list):
        for value, own in zip(stored, normal, strict=False):
            _refuse_unknown(value, where, own)


def _check_tensors(model: StoredModel, tensors: Described) -> None:
    module = architectures.build_without_memory(
        model.architecture, model.input_shape, model.outputs, task=model.task, ensemble=model.ensemble
    )
    needed = {name: (_TYPES.get(str(own.dtype), ""), tuple(own.shape)) for name, own in module.state_dict().items()}
    for name in sorted({*needed, *tensors}):
        if name not in needed:
            raise DatabaseError(f'the weights have a tensor "{name[:200]}", which the network does not have')
        if name not in tensors:
            raise DatabaseError(f'the weights lack the tensor "{name}" of the network')
        if tensors[name] != needed[name]:
            raise DatabaseError(
                f'tensor "{name}" of the weights is {tensors[name][0]} {list(tensors[name][1])}, '
                f"and the network needs {needed[name][0]} {list(needed[name][1])}"
            )
