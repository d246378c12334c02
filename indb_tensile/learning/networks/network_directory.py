"""Reads the directory of a pretrained network, as transformers' save_pretrained writes it, for its registration.

The directory is input of unknown origin: nothing of it is run, and everything in it is checked and bounded. Files are
opened beneath the directory without following links, so that no name leads elsewhere. Of the weights only the tensors
of the encoder are taken, which are written again in one order: equal networks have equal digests.
"""

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors import SafetensorError
from torch import Tensor

from indb_tensile.errors import MissingError, RequestError
from indb_tensile.learning.encoding.network_tokens import highest_token, read_tokenizer
from indb_tensile.learning.encoding.vocabulary_files import VOCABULARY_FILES, tokenizer_of_vocabulary
from indb_tensile.learning.networks.registered_network import NetworkSizes, meta_encoder, network_digest
from indb_tensile.learning.networks.tensorstream import TensorSpec, stream
from indb_tensile.request.network_rules import MOST_PARAMETERS
from indb_tensile.request.pretrained_rules import FAMILIES

_WEIGHTS, _INDEX, _CONFIG, _TOKENIZER = (
    "model.safetensors",
    "model.safetensors.index.json",
    "config.json",
    "tokenizer.json",
)
# Files that are refused: code, and pickled weights, which run code when they are read.
_REFUSED_ENDINGS = (
    ".bin",
    ".pt",
    ".pth",
    ".pkl",
    ".pickle",
    ".ckpt",
    ".joblib",
    ".npy",
    ".npz",
    ".py",
    ".pyc",
    ".so",
)
_MOST_CONFIG_BYTES = 1 << 20
_MOST_TOKENIZER_BYTES = 32 << 20
_MOST_FILES = 1000
_MOST_SHARDS = 200
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}\.safetensors")
_TYPES = (torch.float32, torch.float16, torch.bfloat16)
# Names of LayerNorm's weights in files of 2018, and their present names.
_OLD_NAMES = ((".gamma", ".weight"), (".beta", ".bias"))
_MOST_NAMED = 3
_COPY = "Copy the files themselves into a directory of their own: config.json, tokenizer.json, model.safetensors."


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoredTensor:
    """Where a tensor of the encoder is: its file and its name there."""

    file: str
    name: str
    dtype: torch.dtype


class NetworkDirectory:
    """The checked contents of a directory. Use it as a context: the files stay open until it ends.

    Raises RequestError and MissingError, which name the file and the fault.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files = ExitStack()
        self._open_weights: dict[str, Any] = {}

    def __enter__(self) -> "NetworkDirectory":
        try:
            self._directory = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            message = f"{self._path} cannot be opened as a directory: {error.strerror}"
            raise MissingError(message, hint="Give the directory that save_pretrained wrote.") from error
        self._files.callback(os.close, self._directory)
        try:
            self._refuse_files()
            self.sizes = NetworkSizes.of_config(self._json(_CONFIG, _MOST_CONFIG_BYTES))
            self.tokenizer = self._read_tokenizer()
            self._stored_tensors, self.left_out = self._locate_tensors()
        except BaseException:
            self._files.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._open_weights.clear()
        self._files.close()

    @property
    def parameters(self) -> int:
        """Return the number of weights of the encoder."""
        return sum(parameter.numel() for parameter in self._encoder.parameters())

    def weights(self) -> Iterator[memoryview]:
        """Yield the encoder's weights as one safetensors file, one tensor at a time and equal at each call.

        Raises RequestError for a weight that is no finite number.
        """
        return stream(self._specs, self._tensor, {})

    @cached_property
    def weights_digest(self) -> tuple[str, int]:
        """The SHA-256 of the bytes that `weights` yields, and their number."""
        digest, size_bytes = hashlib.sha256(), 0
        for part in self.weights():
            digest.update(part)
            size_bytes += len(part)
        return digest.hexdigest(), size_bytes

    @property
    def digest(self) -> str:
        """Return the digest of the network."""
        return network_digest(self.sizes, self.tokenizer, self.weights_digest[0])

    @cached_property
    def _encoder(self) -> torch.nn.Module:
        return meta_encoder(self.sizes)

    @cached_property
    def _specs(self) -> dict[str, TensorSpec]:
        return {
            name: TensorSpec(self._stored_tensors[name].dtype, tuple(own.shape))
            for name, own in self._expected().items()
        }

    def _expected(self) -> dict[str, Tensor]:
        return dict(self._encoder.named_parameters())

    def _refuse_files(self) -> None:
        names = sorted(os.listdir(self._directory))  # noqa: PTH208 - of the opened directory, whatever its path is by now
        if len(names) > _MOST_FILES:
            raise RequestError(f"{self._path} has {len(names)} files, more than {_MOST_FILES}", hint=_COPY)
        for name in names:
            if name.lower().endswith(_REFUSED_ENDINGS):
                raise RequestError(
                    f"{self._path} has the file {name!r}: files of code and pickled weights are refused",
                    detail="They run code when they are loaded. Only safetensors, JSON and vocabularies are read.",
                    hint=_COPY + " Weights in another format: load and save them with "
                    "save_pretrained(directory, safe_serialization=True) where you trust them.",
                )

    def _open(self, name: str, most_bytes: int | None = None) -> int:
        """Open a regular file of the directory, and return its descriptor."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            descriptor = os.open(name, flags, dir_fd=self._directory)
        except OSError as error:
            linked = (self._path / name).is_symlink()
            fault = "is a symbolic link, which is not followed" if linked else f"cannot be opened: {error.strerror}"
            kind = MissingError if isinstance(error, FileNotFoundError) else RequestError
            raise kind(f"{name} of {self._path} {fault}", hint=_COPY) from error
        self._files.callback(os.close, descriptor)
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode):
            raise RequestError(f"{name} of {self._path} is no regular file", hint=_COPY)
        if most_bytes is not None and state.st_size > most_bytes:
            message = f"{name} of {self._path} has {state.st_size} bytes, more than {most_bytes}"
            raise RequestError(message, hint="Give the directory that save_pretrained wrote.")
        return descriptor

    def _text(self, name: str, most_bytes: int) -> str:
        with open(self._open(name, most_bytes), "rb", closefd=False) as file:
            data = file.read(most_bytes + 1)
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise RequestError(f"{name} of {self._path} is no UTF-8 text: {error}", hint=_COPY) from error

    def _json(self, name: str, most_bytes: int) -> Any:
        try:
            return json.loads(self._text(name, most_bytes))
        except (ValueError, RecursionError) as error:
            raise RequestError(f"{name} of {self._path} is no valid JSON: {error}", hint=_COPY) from error

    def _exists(self, name: str) -> bool:
        return os.path.lexists(self._path / name)

    def _read_tokenizer(self) -> str:
        """Return the tokenizer as the text of a tokenizer.json, without the setting of a length."""
        if self._exists(_TOKENIZER):
            text = self._text(_TOKENIZER, _MOST_TOKENIZER_BYTES)
            tokenizer = read_tokenizer(text, f"{_TOKENIZER} of {self._path}")
        else:
            names = VOCABULARY_FILES[self.sizes.family]
            if not all(map(self._exists, names)):
                message = f"{self._path} has neither {_TOKENIZER} nor {' and '.join(names)}"
                raise MissingError(
                    message, hint="Save the tokenizer beside the network: tokenizer.save_pretrained(...)."
                )
            options = (
                self._json("tokenizer_config.json", _MOST_CONFIG_BYTES)
                if self._exists("tokenizer_config.json")
                else {}
            )
            texts = [self._text(name, _MOST_TOKENIZER_BYTES) for name in names]
            tokenizer = tokenizer_of_vocabulary(self.sizes.family, texts, options, str(self._path))
        highest, known = highest_token(tokenizer), self.sizes.vocabulary
        if not 0 <= highest < known:
            raise RequestError(
                f"the tokenizer of {self._path} has tokens up to {highest}, and the network those below {known}",
                hint="Give network and tokenizer of one model.",
            )
        stored: str = tokenizer.to_str()
        if len(stored.encode()) > _MOST_TOKENIZER_BYTES:
            raise RequestError(
                f"the tokenizer of {self._path} has more than {_MOST_TOKENIZER_BYTES} bytes", hint=_COPY
            )
        return stored

    def _weight_files(self) -> list[str]:
        if not self._exists(_INDEX):
            return [_WEIGHTS]
        index = self._json(_INDEX, _MOST_TOKENIZER_BYTES)
        named = index.get("weight_map") if isinstance(index, dict) else None
        files = sorted({str(own) for own in named.values()}) if isinstance(named, dict) else []
        if not 1 <= len(files) <= _MOST_SHARDS:
            raise RequestError(f'{_INDEX} of {self._path} has no usable "weight_map"', hint=_COPY)
        for name in files:
            if not _PLAIN_NAME.fullmatch(name):
                message = f"{_INDEX} of {self._path} names the file {name[:200]!r}, which is no plain name of a file"
                raise RequestError(message, hint="Its files must be named such as model-00001-of-00002.safetensors.")
        return files

    def _locate_tensors(self) -> tuple[dict[str, _StoredTensor], tuple[str, ...]]:
        """Return where each tensor of the encoder is, and the names of tensors that are not needed."""
        present = {name: tensor for file in self._weight_files() for name, tensor in self._tensors_of(file)}
        expected = self._expected()
        count = sum(tensor.numel() for tensor in expected.values())
        if count > MOST_PARAMETERS:
            raise RequestError(
                f"the network has {count} weights, more than {MOST_PARAMETERS}", hint="Register a smaller one."
            )
        prefixes = ("", *FAMILIES[self.sizes.family].prefixes)
        prefix = max(prefixes, key=lambda own: sum(own + name in present for name in expected))
        absent = [prefix + name for name in expected if prefix + name not in present]
        if absent:
            raise RequestError(
                f"the weights of {self._path} lack {len(absent)} of {len(expected)} tensors: {_shortened(absent)}",
                detail=f"They have {len(present)} tensors: {_shortened(list(present))}.",
                hint="Give weights and config.json of one network.",
            )
        tensors = {name: present[prefix + name][0] for name in expected}
        for name, tensor in expected.items():
            shape = present[prefix + name][1]
            if shape != tuple(tensor.shape):
                raise RequestError(
                    f"tensor {prefix + name} of {tensors[name].file} has shape {list(shape)}, "
                    f"and by config.json {list(tensor.shape)}",
                    hint="Give weights and config.json of one network.",
                )
            if tensors[name].dtype not in _TYPES:
                raise RequestError(
                    f"tensor {prefix + name} of {tensors[name].file} is of type {tensors[name].dtype}",
                    hint="Save the network in float32, float16 or bfloat16.",
                )
        needed = {prefix + name for name in expected}
        return tensors, tuple(name for name in present if name not in needed)

    def _tensors_of(self, file: str) -> Iterator[tuple[str, tuple[_StoredTensor, tuple[int, ...]]]]:
        """Yield the tensors of a file. The library checks the header: its size, and that no tensors overlap."""
        descriptor = self._open(file)
        try:
            opened = self._files.enter_context(safetensors.safe_open(f"/proc/self/fd/{descriptor}", framework="pt"))
            self._open_weights[file] = opened
            for name in opened.keys():  # noqa: SIM118 - a file, and not a dictionary
                part = opened.get_slice(name)
                dtype = _DTYPES.get(part.get_dtype(), torch.uint8)
                yield _new_name(name), (_StoredTensor(file=file, name=name, dtype=dtype), tuple(part.get_shape()))
        except (SafetensorError, OSError, ValueError) as error:
            message = f"{file} of {self._path} is no valid safetensors file: {str(error)[:300]}"
            raise RequestError(message, hint="Save the network again with safe_serialization=True.") from error

    def _tensor(self, name: str) -> Tensor:
        stored = self._stored_tensors[name]
        tensor: Tensor = self._open_weights[stored.file].get_tensor(stored.name)
        if not bool(torch.isfinite(tensor).all()):
            message = f"tensor {stored.name} of {stored.file} has a value that is no finite number"
            raise RequestError(message, hint="Give a network whose training has not diverged.")
        return tensor


_DTYPES = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F64": torch.float64,
    "I64": torch.int64,
}


def _new_name(name: str) -> str:
    for old, new in _OLD_NAMES:
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name


def _shortened(names: list[str]) -> str:
    shown = ", ".join(name[:100] for name in names[:_MOST_NAMED])
    return f"{shown} and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else shown
