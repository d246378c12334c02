"""The parameters and buffers of the best epoch so far, which early stopping publishes.

Where the device's memory is the host's, a copy in ordinary memory would take what the plan saves: the larger ones are
kept in a file without a name there, which ends with the process however it ends. Elsewhere they stay in memory.
"""

import logging
from collections.abc import Callable, Collection
from io import BufferedRandom
from pathlib import Path
from tempfile import TemporaryFile

import torch

from indb_tensile.config import MIB
from indb_tensile.learning.tensorstream import TensorSpec, tensor_bytes

log = logging.getLogger("trainer")

_IN_MEMORY_BYTES = MIB  # a smaller model's copy is less than what the file costs

Weights = dict[str, torch.Tensor]


class BestWeights:
    """Empty until something is kept. `directory` is where a large copy goes; None keeps every copy in memory."""

    def __init__(self, names: Collection[str], directory: Path | None) -> None:
        self._names = tuple(names)
        self._directory = directory
        self._in_memory: Weights = {}
        self._file: BufferedRandom | None = None
        self._written: dict[str, tuple[int, TensorSpec]] = {}  # where in the file

    def __bool__(self) -> bool:
        return bool(self._in_memory or self._written)

    def keep(self, export: Callable[[Collection[str]], Weights]) -> None:
        """Replace what is kept by what `export` gives for these names; it is asked for few at a time.

        Where the file cannot be written the copy is kept in memory, and the log says so.
        """
        if self._directory is None:
            self._hold(export(self._names))
            return
        try:
            self._write(export)
        except OSError as error:
            log.warning(
                "the best epoch's weights cannot be kept in a file in %s (%s): they stay in memory",
                self._directory,
                error.strerror or error,
            )
            self._directory = None
            self._hold(export(self._names))

    @property
    def specs(self) -> dict[str, TensorSpec]:
        """What is kept, in the order of the names."""
        known = {name: TensorSpec.of(tensor) for name, tensor in self._in_memory.items()}
        known |= {name: spec for name, (_, spec) in self._written.items()}
        return {name: known[name] for name in self._names if name in known}

    def tensor(self, name: str) -> torch.Tensor:
        """A copy of one of them. Raises OSError where the file cannot be read any more."""
        if self._file is None or name not in self._written:
            return self._in_memory[name].clone()
        start, spec = self._written[name]
        memory = torch.empty(spec.size_bytes, dtype=torch.uint8)
        self._file.seek(start)
        if self._file.readinto(memory.numpy().data) != spec.size_bytes:
            raise OSError(f"the file ends within {name}")
        return memory.view(spec.dtype).reshape(spec.shape)

    def read(self) -> Weights:
        """A copy of all. Raises OSError where the file cannot be read any more."""
        return {name: self.tensor(name) for name in self.specs}

    def close(self) -> None:
        """Keep nothing any more."""
        self._hold({})

    def _hold(self, weights: Weights) -> None:
        self._in_memory, self._written = weights, {}
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, export: Callable[[Collection[str]], Weights]) -> None:
        """To a new file, so that what was kept before stays whole until all is written."""
        file: BufferedRandom | None = None
        written: dict[str, tuple[int, TensorSpec]] = {}
        small: Weights = {}
        try:
            for name in self._names:
                small |= export((name,))
                if file is None and sum(tensor.nbytes for tensor in small.values()) < _IN_MEMORY_BYTES:
                    continue
                file = file or self._new_file()
                for own, tensor in small.items():
                    written[own] = (file.tell(), TensorSpec.of(tensor))
                    file.write(tensor_bytes(tensor))
                small.clear()
        except BaseException:
            if file is not None:
                file.close()
            raise
        if file is not None:
            file.flush()
        self._hold(small)
        self._file, self._written = file, written

    def _new_file(self) -> BufferedRandom:
        assert self._directory is not None
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        return TemporaryFile(dir=self._directory)
