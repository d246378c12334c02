"""Remembers the fake results of calls, so that an equal call later gets equal results without running on fakes again.

A network of many equal cells calls the same operators on the same shapes many times, and a fake kernel takes
milliseconds. Torch's own cache does not help, because its results have separate storages even if a kernel returns two
outputs in one storage. Only calls whose results are all new, dense and alone in their storages are remembered.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from indb_tensile.executor.capture.aten import fake_strided, storage_key


@dataclass(frozen=True, slots=True, kw_only=True)
class _Result:
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "_Result":
        return cls(shape=tuple(tensor.shape), stride=tuple(tensor.stride()), dtype=tensor.dtype, device=tensor.device)

    def make(self, mode: FakeTensorMode) -> torch.Tensor:
        return fake_strided(mode, self.shape, self.stride, self.dtype, self.device)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Results:
    results: tuple[_Result | None, ...]
    container: Callable[[list[torch.Tensor | None]], Any] | None  # None for a single result


@dataclass(slots=True)
class FreshResults:
    """The results of calls, by a key of the operator and its arguments."""

    _known: dict[str, _Results] = field(default_factory=dict)

    def get(self, mode: FakeTensorMode, key: str) -> Any:
        """Return results like those of an earlier equal call, as fakes of the mode, or None."""
        known = self._known.get(key)
        if known is None:
            return None
        results = [None if result is None else result.make(mode) for result in known.results]
        return results[0] if known.container is None else known.container(results)

    def keep(self, key: str, arguments: list[torch.Tensor], result: Any) -> None:
        """Remember the results of a call if equal results can be made from their shapes."""
        single = isinstance(result, torch.Tensor)
        results: list[Any] = [result] if single else list(result) if isinstance(result, list | tuple) else [result]
        if not all(item is None or isinstance(item, torch.Tensor) for item in results):
            return
        tensors: list[torch.Tensor] = [item for item in results if item is not None]
        storages = [storage_key(tensor) for tensor in tensors]
        distinct = len(set(storages)) == len(storages)
        new = distinct and not {storage_key(argument) for argument in arguments}.intersection(storages)
        if new and all(map(_fills_its_storage, tensors)):
            made = tuple(None if item is None else _Result.of(item) for item in results)
            self._known[key] = _Results(results=made, container=None if single else type(result))


def _fills_its_storage(tensor: torch.Tensor) -> bool:
    """Return whether a tensor of this shape and these strides alone has a storage like the tensor's own."""
    if type(tensor).__name__ != "FakeTensor" or tensor.layout is not torch.strided or tensor.requires_grad:
        return False
    reach = (
        0 if 0 in tensor.shape else 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    )
    return tensor.storage_offset() == 0 and tensor.untyped_storage().nbytes() == reach * tensor.dtype.itemsize
