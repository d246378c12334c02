"""Stores the parameters and buffers of the best epoch so far, which early stopping publishes.

If the device's memory is host memory, a copy in ordinary memory would take the memory that the plan saves. There a
large copy is stored in an unnamed file, which the kernel removes when the process ends. On other devices the copy
stays in memory.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from io import BufferedRandom
from pathlib import Path
from tempfile import TemporaryFile

import torch

from indb_tensile.config import MIB
from indb_tensile.learning.networks.tensorstream import TensorSpec, tensor_bytes

log = logging.getLogger("trainer")

_IN_MEMORY_BYTES = MIB  # below this size a copy takes less memory than a file

Weights = dict[str, torch.Tensor]


class BestWeights:
    """A copy of weights, empty at first. `directory` is for large copies; None keeps every copy in memory.

    `sizes_bytes` has the names of the weights, and about how many bytes each has.
    """

    def __init__(self, sizes_bytes: Mapping[str, int], directory: Path | None) -> None:
        self._names = tuple(sizes_bytes)
        self._groups = _groups(sizes_bytes)
        self._directory = directory
        self._in_memory: Weights = {}
        self._file: BufferedRandom | None = None
        self._written: dict[str, tuple[int, TensorSpec]] = {}  # offset in the file, type and shape of each tensor

    def __bool__(self) -> bool:
        return bool(self._in_memory or self._written)

    def keep(self, export: Callable[[Collection[str]], Weights]) -> None:
        """Replace the copy by the tensors that `export` returns for the names.

        `export` is called for one large tensor at a time, or for several small ones together, since each call takes
        a tenth of a millisecond.
        If the file cannot be written, the copy stays in memory, and the log says so.
        """
        if self._directory is None:
            self._set_in_memory(export(self._names))
            return
        try:
            self._write(export)
        except OSError as error:
            log.warning(
                "the best epoch's weights cannot be stored in a file in %s (%s): they stay in memory",
                self._directory,
                error.strerror or error,
            )
            self._directory = None
            self._set_in_memory(export(self._names))

    @property
    def specs(self) -> dict[str, TensorSpec]:
        """Types and shapes of the stored tensors, in the order of the names."""
        known = {name: TensorSpec.of(tensor) for name, tensor in self._in_memory.items()}
        known |= {name: spec for name, (_, spec) in self._written.items()}
        return {name: known[name] for name in self._names if name in known}

    def tensor(self, name: str) -> torch.Tensor:
        """Return a copy of one tensor. Raises OSError if the file can no longer be read."""
        if self._file is None or name not in self._written:
            return self._in_memory[name].clone()
        start, spec = self._written[name]
        memory = torch.empty(spec.size_bytes, dtype=torch.uint8)
        self._file.seek(start)
        if self._file.readinto(memory.numpy().data) != spec.size_bytes:
            raise OSError(f"the file ends within {name}")
        return memory.view(spec.dtype).reshape(spec.shape)

    def read(self) -> Weights:
        """Return copies of all tensors. Raises OSError if the file can no longer be read."""
        return {name: self.tensor(name) for name in self.specs}

    def close(self) -> None:
        """Drop the copy."""
        self._set_in_memory({})

    def _set_in_memory(self, weights: Weights) -> None:
        self._in_memory, self._written = weights, {}
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, export: Callable[[Collection[str]], Weights]) -> None:
        """Write to a new file, so that the previous copy stays complete until the new one is."""
        file: BufferedRandom | None = None
        written: dict[str, tuple[int, TensorSpec]] = {}
        small: Weights = {}
        try:
            for names in self._groups:
                small |= export(names)
                if file is None and sum(tensor.nbytes for tensor in small.values()) < _IN_MEMORY_BYTES:
                    continue
                file = file or self._new_file()
                for small_name, tensor in small.items():
                    written[small_name] = (file.tell(), TensorSpec.of(tensor))
                    file.write(tensor_bytes(tensor))
                small.clear()
        except BaseException:
            if file is not None:
                file.close()
            raise
        if file is not None:
            file.flush()
        self._set_in_memory(small)
        self._file, self._written = file, written

    def _new_file(self) -> BufferedRandom:
        assert self._directory is not None
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        return TemporaryFile(dir=self._directory)


def _groups(sizes_bytes: Mapping[str, int]) -> list[list[str]]:
    """Return the names in their order, in groups of small tensors together and of large ones alone."""
    groups: list[list[str]] = []
    room_bytes = 0
    for name, size_bytes in sizes_bytes.items():
        room_bytes -= size_bytes
        if room_bytes < 0 or not groups:
            groups.append([])
            room_bytes = _IN_MEMORY_BYTES - size_bytes
        groups[-1].append(name)
    return groups
