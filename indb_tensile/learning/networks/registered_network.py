"""A registered network as trainers and the service use it: its encoder, its weights and its tokenizer.

The encoder is a class of transformers, built from checked sizes alone (request/pretrained_rules.py): no name of a
class and no code comes from the catalog. transformers and peft are imported where a network is built, since they are
an extra of the package and take seconds.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import ModuleType
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from indb_tensile.errors import DatabaseError, RequestError, UnsupportedError
from indb_tensile.learning.encoding.network_tokens import NetworkTokenizer
from indb_tensile.learning.networks.torchvision_operators import declare_missing_operators
from indb_tensile.request.pretrained_rules import (
    FAMILIES,
    first_position,
    read_config,
    stored_config,
    usable_positions,
)

_INSTALL = "pip install 'indb-tensile[pretrained]'"
_CLASSES = {"bert": "Bert", "distilbert": "DistilBert", "roberta": "Roberta", "gpt2": "GPT2"}
_POOLED = ("bert", "roberta")  # their classes have a layer behind the encoder, which masks were not learned through


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSizes:
    """The family and the checked configuration of a network."""

    family: str
    values: dict[str, Any]

    @classmethod
    def of_config(cls, config: Any) -> "NetworkSizes":
        """Check a configuration. Raises RequestError."""
        family, values = read_config(config)
        return cls(family=family, values=values)

    @property
    def width(self) -> int:
        """Return the length of a token's vector."""
        return int(self.values[FAMILIES[self.family].width])

    @property
    def positions(self) -> int:
        """Return how many tokens of a text the network reads at most."""
        return usable_positions(self.family, self.values)

    @property
    def first_position(self) -> int:
        """Return the number of a text's first position."""
        return first_position(self.family, self.values)

    @property
    def causal(self) -> bool:
        """Return whether a token sees only those before it."""
        return FAMILIES[self.family].causal

    @property
    def padding(self) -> int:
        """Return the number of the token that stands behind a text."""
        return int(self.values.get("pad_token_id", 0))

    @property
    def vocabulary(self) -> int:
        """Return how many tokens the network knows."""
        return int(self.values["vocab_size"])

    def stored(self) -> dict[str, Any]:
        """Return what the catalog stores of the configuration."""
        return stored_config(self.family, self.values)

    def encoder(self) -> nn.Module:
        """Build the encoder on the present device of torch, with arbitrary weights and without buffers.

        Positions and kinds of tokens are arguments of each call, so the buffers of transformers are not needed.
        """
        transformers = _import("transformers")
        name = _CLASSES[self.family]
        values = dict(self.values)
        if self.family == "gpt2":
            values |= {"bos_token_id": None, "eos_token_id": None}
        # Only eager attention is captured as operators that have the same bits under every plan.
        config = getattr(transformers, f"{name}Config")(**values, attn_implementation="eager", use_cache=False)
        pooled = {"add_pooling_layer": False} if self.family in _POOLED else {}
        encoder: nn.Module = getattr(transformers, f"{name}Model")(config, **pooled)
        for part in encoder.modules():
            for buffer in [own for own, _ in part.named_buffers(recurse=False)]:
                delattr(part, buffer)
        return encoder.float()


@dataclass(frozen=True, kw_only=True, eq=False)
class RegisteredNetwork:
    """A registered network. `weights` is a safetensors file; it is empty where only sizes are needed."""

    name: str
    digest: str
    sizes: NetworkSizes
    tokenizer_text: str
    weights: bytes = field(default=b"", repr=False)

    @classmethod
    def of_stored(
        cls, name: str, digest: str, config: Mapping[str, Any], tokenizer: str, weights: bytes
    ) -> "RegisteredNetwork":
        """Check what the catalog has of a network. Raises DatabaseError if it is not what was registered."""
        try:
            sizes = NetworkSizes.of_config({**config["values"], "model_type": config["family"]})
        except (RequestError, KeyError, TypeError) as error:
            raise DatabaseError(f'the stored network "{name}" cannot be read: {error}', hint=_RESTORE) from error
        network = cls(name=name, digest=digest, sizes=sizes, tokenizer_text=tokenizer, weights=weights)
        if weights and (own := network_digest(sizes, tokenizer, hashlib.sha256(weights).hexdigest())) != digest:
            message = f'the stored network "{name}" is not the one that was registered'
            raise DatabaseError(message, detail=f"Its SHA-256 is {own}, not {digest}.", hint=_RESTORE)
        return network

    @cached_property
    def tokenizer(self) -> NetworkTokenizer:
        """The tokenizer of its texts."""
        return NetworkTokenizer(self.name, self.tokenizer_text)

    def tensors(self) -> dict[str, Tensor]:
        """Return the weights by their names in the encoder, in single precision."""
        try:
            stored = safetensors.torch.load(self.weights)
        except SafetensorError as error:
            raise DatabaseError(f'the weights of network "{self.name}" cannot be read: {error}') from error
        return {name: tensor.float() for name, tensor in stored.items()}


def network_digest(sizes: NetworkSizes, tokenizer: str, weights_digest: str) -> str:
    """Return the digest of a network from its parts."""
    described = {
        "family": sizes.family,
        "values": sizes.values,
        "tokenizer": hashlib.sha256(tokenizer.encode()).hexdigest(),
        "weights": weights_digest,
    }
    return hashlib.sha256(json.dumps(described, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def with_lora(encoder: nn.Module, sizes: NetworkSizes, options: Mapping[str, Any], targets: tuple[str, ...]) -> None:
    """Add LoRA (Hu et al. 2021) to the layers of an encoder that `targets` name, and freeze all other weights."""
    peft = _import("peft")
    config = peft.LoraConfig(
        r=options["r"],
        lora_alpha=options["alpha"],
        lora_dropout=options["dropout"],
        target_modules=list(targets),
        fan_in_fan_out=sizes.family == "gpt2",  # its layers store their weights transposed
    )
    peft.inject_adapter_in_model(config, encoder)


def draw_lora(encoder: nn.Module) -> None:
    """Draw the first weights of LoRA: random ones and zeros, so that the network computes what it did before."""
    layers = _import("peft.tuners.lora").LoraLayer
    for part in encoder.modules():
        if isinstance(part, layers):
            part.reset_lora_parameters("default", True)


def require_pretrained_libraries() -> None:
    """Raise UnsupportedError if transformers or peft is not installed."""
    _import("transformers")
    _import("peft")


def _import(name: str) -> ModuleType:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing of ours downloads, and nothing that it calls should
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    declare_missing_operators()  # transformers imports torchvision if that is installed
    try:
        module = __import__(name, fromlist=["_"])
    except ImportError as error:
        raise UnsupportedError(
            f"architecture pretrained needs the package {name.partition('.')[0]}, which is not installed here",
            detail=f"{type(error).__name__}: {error}",
            hint=f"On the machines of controllers, services and administrators: {_INSTALL}",
        ) from error
    return module


def meta_encoder(sizes: NetworkSizes) -> nn.Module:
    """Return the encoder without memory, for the names and shapes of its weights."""
    with torch.device("meta"):
        return sizes.encoder()


_RESTORE = "Rows of tensile.networks were changed: drop the network, and register its directory again."
