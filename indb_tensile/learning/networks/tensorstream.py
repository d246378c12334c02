"""Writes tensors as safetensors one at a time, so that at most one copy of a tensor is in memory.

The library's own writer takes all tensors at once and returns all bytes, so storing a checkpoint with it needs three
times the memory of a job's state. The format (https://github.com/huggingface/safetensors#format) is the length of a
header, the header in JSON, and the tensors' bytes in the header's order. The order is the library's: large types
first, so that all tensors are aligned.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from indb_tensile.errors import DataError

_TYPE_NAMES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int32: "I32",
    torch.float32: "F32",
    torch.complex64: "C64",
    torch.float64: "F64",
    torch.int64: "I64",
}
_HEADER_ALIGNMENT_BYTES = 8
_LENGTH_BYTES = 8


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """The type and shape of a tensor."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @classmethod
    def of(cls, tensor: Tensor) -> "TensorSpec":
        """Return the type and shape of this tensor."""
        return cls(tensor.dtype, tuple(tensor.shape))

    @property
    def size_bytes(self) -> int:
        """Return the size of the values, stored without gaps."""
        return prod(self.shape) * self.dtype.itemsize


def tensor_bytes(tensor: Tensor) -> memoryview:
    """Return a tensor's values in row-major order.

    The result shares the memory of a tensor that is on the host and has no gaps.
    """
    return tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8).numpy().data


def stream(
    specs: Mapping[str, TensorSpec], read: Callable[[str], Tensor], metadata: Mapping[str, str]
) -> Iterator[memoryview]:
    """Yield a safetensors file in parts: first the header, then the bytes of each tensor.

    `read` returns the tensor of a name. Raises DataError for a type that the format does not have, and if `read`
    returns a tensor of another type or shape than its spec.
    """
    names = sorted(specs, key=lambda name: (-_rank(name, specs[name].dtype), name))
    yield memoryview(_header(names, specs, metadata))
    for name in names:
        tensor = read(name)
        if TensorSpec.of(tensor) != specs[name]:
            raise DataError(f"tensor {name} is {TensorSpec.of(tensor)}, its specification is {specs[name]}")
        yield tensor_bytes(tensor)


def _header(names: list[str], specs: Mapping[str, TensorSpec], metadata: Mapping[str, str]) -> bytes:
    described: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name in names:
        start, end = end, end + specs[name].size_bytes
        described[name] = {
            "dtype": _TYPE_NAMES[specs[name].dtype],
            "shape": list(specs[name].shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(described, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _HEADER_ALIGNMENT_BYTES)
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text


def _rank(name: str, dtype: torch.dtype) -> int:
    """Return the position of a type in the library's order; types of higher rank are written first."""
    if dtype not in _TYPE_NAMES:
        raise DataError(f"tensor {name} is {dtype}, which safetensors cannot hold")
    return list(_TYPE_NAMES).index(dtype)
