"""Remembers what calls on fakes make, so that an equal call later makes the same without running on fakes again.

A network of many equal cells calls the same operators on the same shapes again and again, and a fake kernel takes
milliseconds: torch's own memory of them is of no use here, as its results have storages of their own where a kernel
gives two outputs one. Only calls all of whose results are new, dense and alone in their storages are remembered.
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
    """The results of calls, by what was called and with what."""

    _known: dict[str, _Results] = field(default_factory=dict)

    def get(self, mode: FakeTensorMode, called: str) -> Any:
        """Results like those of an equal call before, fakes of the mode; or None."""
        known = self._known.get(called)
        if known is None:
            return None
        made = [None if one is None else one.make(mode) for one in known.results]
        return made[0] if known.container is None else known.container(made)

    def keep(self, called: str, given: list[torch.Tensor], result: Any) -> None:
        """Remember the results of a call, where they are such that equal ones can be made."""
        single = isinstance(result, torch.Tensor)
        made: list[Any] = [result] if single else list(result) if isinstance(result, list | tuple) else [result]
        if not all(one is None or isinstance(one, torch.Tensor) for one in made):
            return
        tensors: list[torch.Tensor] = [one for one in made if one is not None]
        storages = [storage_key(one) for one in tensors]
        new = len(set(storages)) == len(storages) and not {storage_key(one) for one in given}.intersection(storages)
        if new and all(map(_fills_its_storage, tensors)):
            results = tuple(None if one is None else _Result.of(one) for one in made)
            self._known[called] = _Results(results=results, container=None if single else type(result))


def _fills_its_storage(tensor: torch.Tensor) -> bool:
    """Whether a tensor of its shape and strides alone has a storage like its own."""
    if type(tensor).__name__ != "FakeTensor" or tensor.layout is not torch.strided or tensor.requires_grad:
        return False
    reach = (
        0 if 0 in tensor.shape else 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    )
    return tensor.storage_offset() == 0 and tensor.untyped_storage().nbytes() == reach * tensor.dtype.itemsize
