"""A version of a model as one file in the safetensors format, with the recipe of its preprocessing in the metadata.

The tensors of the file are those of the catalog, byte for byte. No torch is needed to write or to check a file. A
file holds no code.
"""

import json
import math
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from indb_tensile.errors import RequestError, StorageError
from indb_tensile.sizes import size

KEY = "indb_tensile"  # the key of the recipe in the metadata of the file
FORMAT = 1
SUFFIX = ".safetensors"
MOST_RECIPE_BYTES = 64 * 1024 * 1024
_LENGTH_BYTES = 8
_ALIGNED_BYTES = 8
_MOST_NAME = 1000
_ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
_MEMBERS: dict[str, tuple[type, ...]] = {
    "format": (int,),
    "model": (str,),
    "number": (int,),
    "task": (str,),
    "target": (str,),
    "architecture": (dict,),
    "bundle": (dict,),
    "parameters": (int,),
    "metric_name": (str, type(None)),
    "metric": (int, float, type(None)),
    "higher_is_better": (bool, type(None)),
    "metrics": (dict,),
    "transform": (dict, type(None)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFile:
    """A checked file: its recipe, its tensors by name with their types and shapes, and the bytes of its weights.

    `weights` is a safetensors file of its own, without the recipe.
    """

    recipe: dict[str, Any]
    tensors: dict[str, tuple[str, tuple[int, ...]]]
    weights: bytes


def write_model_file(path: Path, recipe: Mapping[str, Any], weights: Iterable[bytes]) -> None:
    """Write a version's recipe and weights. The file is complete, or it does not exist.

    `weights` are the bytes of a safetensors file, in parts of any size.
    """
    header, rest = _split_header(iter(weights))
    del header["__metadata__"]
    text = json.dumps({"__metadata__": {KEY: json.dumps(recipe, ensure_ascii=False)}} | header, ensure_ascii=False)
    encoded = text.encode()
    encoded += b" " * (-len(encoded) % _ALIGNED_BYTES)
    with written_file(path) as file:
        file.write(len(encoded).to_bytes(_LENGTH_BYTES, "little"))
        file.write(encoded)
        for part in rest:
            file.write(part)


def read_model_file(path: Path, *, most_bytes: int | None = None) -> ModelFile:
    """Read and check a file. Raises RequestError that names what is wrong with it."""
    try:
        with path.open("rb") as file:
            length = os.fstat(file.fileno()).st_size
            if most_bytes is not None and length > most_bytes:
                raise RequestError(f"{path} has {size(length)}, and {size(most_bytes)} are the most")
            return _read(str(path), file, length)
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror}", hint="Name a file that exists.") from None


@contextmanager
def written_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a file that gets its name when the block ends without an error."""
    # Somebody else may write into the directory too: an unforeseeable name, and no link is followed.
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        with draft.open("xb") as file:
            yield file
        draft.replace(path)
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}", hint="Name another file.") from None
    finally:
        draft.unlink(missing_ok=True)


def _split_header(parts: Iterator[bytes]) -> tuple[dict[str, Any], Iterator[bytes]]:
    """Return the header of a safetensors file, and its remaining bytes."""
    begun = b""
    needed = _LENGTH_BYTES
    for part in parts:
        begun += part
        if len(begun) >= _LENGTH_BYTES:
            needed = _LENGTH_BYTES + int.from_bytes(begun[:_LENGTH_BYTES], "little")
            if len(begun) >= needed:
                break
    header = json.loads(begun[_LENGTH_BYTES:needed])
    header.setdefault("__metadata__", {})

    def rest() -> Iterator[bytes]:
        yield begun[needed:]
        yield from parts

    return header, rest()


def _read(name: str, file: BinaryIO, length: int) -> ModelFile:
    prefix = file.read(_LENGTH_BYTES)
    header_bytes = int.from_bytes(prefix, "little")
    if len(prefix) < _LENGTH_BYTES or header_bytes > length - _LENGTH_BYTES:
        raise _no_model(name, "it is shorter than its header says")
    if header_bytes > MOST_RECIPE_BYTES:
        raise _no_model(name, f"its header has {size(header_bytes)}, and {size(MOST_RECIPE_BYTES)} are the most")
    header = _json_object(name, "its header", file.read(header_bytes))
    metadata = header.pop("__metadata__", None)
    if not isinstance(metadata, dict) or not isinstance(metadata.get(KEY), str):
        raise _no_model(name, f'its metadata has no text "{KEY}"')
    recipe = _json_object(name, "its recipe", metadata[KEY])
    _check_recipe(name, recipe)
    tensors = _checked_tensors(name, header, length - _LENGTH_BYTES - header_bytes)
    encoded = json.dumps(header, ensure_ascii=False).encode()
    encoded += b" " * (-len(encoded) % _ALIGNED_BYTES)
    weights = len(encoded).to_bytes(_LENGTH_BYTES, "little") + encoded + file.read()
    return ModelFile(recipe=recipe, tensors=tensors, weights=weights)


def _json_object(name: str, part: str, text: bytes | str) -> dict[str, Any]:
    try:
        value = json.loads(text, object_pairs_hook=_distinct)
        json.dumps(value, ensure_ascii=False).encode()  # JSON can name half of a character, which no text can hold
    except (ValueError, RecursionError) as error:
        raise _no_model(name, f"{part} is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise _no_model(name, f"{part} is no JSON object")
    return value


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [key for key, _ in pairs]
    if len(set(names)) < len(names):
        raise ValueError(f"{next(key for key in names if names.count(key) > 1)!r} is there twice")
    return dict(pairs)


def _check_recipe(name: str, recipe: Mapping[str, Any]) -> None:
    unknown = [key for key in recipe if key not in _MEMBERS]
    if unknown:
        raise _no_model(name, f"its recipe has the unknown member {unknown[0][:_MOST_NAME]!r}")
    for key, kinds in _MEMBERS.items():
        if key not in recipe:
            raise _no_model(name, f'its recipe lacks "{key}"')
        value = recipe[key]
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise _no_model(name, f'"{key}" of its recipe is a {type(value).__name__}')
    if recipe["format"] != FORMAT:
        raise _no_model(name, f"it has format {recipe['format']}, and this version reads {FORMAT}")


def _checked_tensors(name: str, header: Mapping[str, Any], data_bytes: int) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return types and shapes of the tensors. They cover the data without gaps, each with the bytes of its shape."""
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {}
    ranges = []
    for tensor, described in header.items():
        fault = _tensor_fault(described)
        if fault:
            raise _no_model(name, f"tensor {tensor[:_MOST_NAME]!r} {fault}")
        begin, end = described["data_offsets"]
        ranges.append((begin, end))
        tensors[tensor] = described["dtype"], tuple(described["shape"])
    place = 0
    for begin, end in sorted(ranges):
        if begin != place:
            raise _no_model(name, f"its tensors overlap or leave a gap at byte {place}")
        place = end
    if place != data_bytes:
        raise _no_model(name, f"its tensors have {place} bytes, and the file has {data_bytes}")
    return tensors


def _tensor_fault(described: Any) -> str:
    if not isinstance(described, dict) or set(described) != {"dtype", "shape", "data_offsets"}:
        return "is not described by dtype, shape and data_offsets"
    dtype, shape, offsets = described["dtype"], described["shape"], described["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _ITEM_BYTES:
        return f"has the unknown type {dtype!r:.50}"
    if not isinstance(shape, list) or not all(type(side) is int and 0 <= side < 1 << 40 for side in shape):
        return "has no shape of whole numbers"
    if len(shape) > 16 or not isinstance(offsets, list) or len(offsets) != 2:
        return "has no place in the file"
    if not all(type(offset) is int and offset >= 0 for offset in offsets):
        return "has no place in the file"
    own, needed = offsets[1] - offsets[0], math.prod(shape) * _ITEM_BYTES[dtype]
    return f"has {own} bytes, and its shape {shape} needs {needed}" if own != needed else ""


def _no_model(name: str, fault: str) -> RequestError:
    return RequestError(
        f"{name} is no model of indb-tensile: {fault}", hint="Write one with: tensile models export NAME FILE."
    )
