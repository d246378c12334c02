"""The vectors of texts by a registered network: one encoder reads all columns of texts of a row.

Attention is eager, and its mask is added to the weights as numbers (batch, 1, tokens, tokens): masks of other forms
lead transformers to operators that depend on the values of the mask, which no step graph can hold.

The vectors of a pretrained network have a large mean and an arbitrary length, with which the layers behind it learn
slowly. So the mean over the training rows is subtracted, and all vectors are divided by one number. The numbers of a
vector keep their ratios: dividing each by its own deviation, as for columns of numbers, would make noise as large as
what the network learned (docs/results/models.md has the accuracy of both).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from indb_tensile.errors import DatabaseError, RequestError
from indb_tensile.learning.encoding.narrow_rows import token_numbers
from indb_tensile.learning.networks.registered_network import RegisteredNetwork, draw_lora, with_lora
from indb_tensile.learning.networks.token_networks import TextColumn, cut_lengths
from indb_tensile.request.pretrained_rules import lora_options, lora_targets

_FAR = -1e9  # added to the weight of padding in attention, as in token_networks.py
_WRAPPED = ".base_layer."  # peft's name for a layer that LoRA changes
_LENGTH = 16.0  # root mean square length of a vector behind its mean: numbers near 1 at a width of 256
_FITTED_ROWS = 256  # give means to a sixteenth of a deviation, as they are rounded
_FITTED_WORK = 1 << 39  # weights by tokens: half a minute of a processor at most, unless the fewest rows take more
_FEWEST_FITTED_ROWS = 8  # of a large network: rough centers and scales still help
_FITTED_AT_ONCE = 16  # rows
_ROUNDED = 16  # parts of a number's mean deviation, and of the doubling of a scale


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainedOptions:
    """Which network reads the texts, and what of it is trained."""

    network: RegisteredNetwork
    train: str
    pooling: str
    lora: dict[str, Any]
    targets: tuple[str, ...]
    text_dropout: float

    @classmethod
    def of(cls, values: Mapping[str, Any], network: RegisteredNetwork | None) -> "PretrainedOptions":
        """Return the options from the parameters of an architecture.

        Raises RequestError without the network, and for layers that it does not have.
        """
        if network is None:
            raise RequestError(
                f'architecture pretrained: network "{values["from"]}" is not loaded',
                hint="See the networks that you may use: select * from tensile.network_list;",
            )
        family = network.sizes.family
        return cls(
            network=network,
            train=values["train"],
            pooling=values["pooling"] or ("last" if network.sizes.causal else "mean"),
            lora=lora_options(values),
            targets=lora_targets(family, values),
            text_dropout=values["text_dropout"],
        )

    @property
    def width(self) -> int:
        """Return the length of a text's vector."""
        return self.network.sizes.width


class PretrainedVectors(nn.Module):
    """Turns the tokens of several columns into one vector for each column.

    With `train` head the encoder stays as it is, without dropout; with lora only the adapters learn; with all
    everything does. `centers` (columns, width) and `scales` (columns, 1) are buffers, which `fit` sets.
    """

    centers: Tensor
    scales: Tensor

    def __init__(self, columns: tuple[TextColumn, ...], options: PretrainedOptions) -> None:
        super().__init__()
        sizes = options.network.sizes
        self.lengths = [column.length for column in columns]
        if max(self.lengths) > sizes.positions:
            message = f"architecture pretrained: a text has {max(self.lengths)} tokens, and network"
            raise RequestError(
                f'{message} "{options.network.name}" reads {sizes.positions}', hint='Give a smaller "length".'
            )
        self.options = options
        self.encoder = sizes.encoder()
        if options.train == "lora":
            with_lora(self.encoder, sizes, options.lora, options.targets)
        self.encoder.requires_grad_(options.train == "all")
        for name, parameter in self.encoder.named_parameters():
            parameter.requires_grad = options.train == "all" or "lora_" in name
        self.register_buffer("centers", torch.empty(len(columns), options.width))
        self.register_buffer("scales", torch.empty(len(columns), 1))
        self.dropout = nn.Dropout(options.text_dropout)

    def reset_parameters(self) -> None:
        """Let vectors be those of the network."""
        nn.init.zeros_(self.centers)
        nn.init.ones_(self.scales)

    def train(self, mode: bool = True) -> "PretrainedVectors":
        """Change the mode, except that of an encoder that does not learn."""
        super().train(mode)
        if self.options.train == "head":
            self.encoder.eval()
        return self

    @property
    def base_names(self) -> tuple[str, ...]:
        """Return the names of the weights that are those of the registered network, and stay so."""
        if self.options.train == "all":
            return ()
        return tuple(f"encoder.{name}" for name, own in self.encoder.named_parameters() if not own.requires_grad)

    def load_network(self) -> None:
        """Copy the weights of the registered network into the encoder, and draw those of LoRA.

        Raises DatabaseError if the stored weights are not those of the encoder.
        """
        stored = self.options.network.tensors()
        with torch.no_grad():
            for name, parameter in self.encoder.named_parameters():
                if "lora_" in name:
                    continue
                source = stored.get(name.replace(_WRAPPED, "."))
                if source is None or source.shape != parameter.shape:
                    title = f'network "{self.options.network.name}"'
                    raise DatabaseError(
                        f"the weights of {title} do not fit its configuration at {name}",
                        hint="Drop the network, and register its directory again.",
                    )
                parameter.copy_(source)
        if self.options.train == "lora":
            draw_lora(self.encoder)

    def fitted_step(self, rows: int) -> int:
        """Return which of `rows` training rows `fit` takes: every n-th one."""
        work = sum(self.lengths) * sum(own.numel() for own in self.encoder.parameters())
        return -(-rows // max(_FEWEST_FITTED_ROWS, min(_FITTED_ROWS, _FITTED_WORK // work)))

    def fit(self, tokens: Tensor) -> None:
        """Set centers and scales from the tokens of some training rows (rows, sum of lengths).

        Both are rounded, so that machines whose last bits of the vectors differ begin with the same numbers.
        """
        learning = self.training
        self.eval()
        with torch.no_grad():
            parts = [self._vectors(own).double() for own in torch.split(tokens, _FITTED_AT_ONCE)]
            vectors = torch.cat(parts)
            centers = vectors.mean(dim=0)
            lengths = (vectors - centers).square().sum(dim=2).mean(dim=0).sqrt()
            scales = _LENGTH / torch.where(lengths > 0, lengths, _LENGTH)
            scales = torch.exp2((scales.log2() * _ROUNDED).round() / _ROUNDED).unsqueeze(1)
            unit = _LENGTH / math.sqrt(centers.shape[1]) / scales / _ROUNDED
            self.scales.copy_(scales)
            self.centers.copy_((centers / unit).round() * unit)
        self.train(learning)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map the tokens (batch, sum of lengths), 0 for none, to (batch, columns, width).

        Rows may be cut (`cut_lengths`).
        """
        return cast(Tensor, self.dropout((self._vectors(tokens) - self.centers) * self.scales))

    def _vectors(self, tokens: Tensor) -> Tensor:
        """Return the vectors of the network itself."""
        lengths = cut_lengths(self.lengths, tokens.shape[1])
        return torch.stack([self._vector(part) for part in torch.split(tokens, lengths, dim=1)], dim=1)

    def _vector(self, tokens: Tensor) -> Tensor:
        sizes, length = self.options.network.sizes, tokens.shape[1]
        numbers = token_numbers(tokens, [self.options.network.tokenizer.size])
        known = numbers > 0
        places = torch.arange(length, device=tokens.device)
        inputs = {
            "input_ids": torch.where(known, numbers - 1, sizes.padding),
            "attention_mask": _mask(known.float(), places if sizes.causal else None),
            "position_ids": (places + sizes.first_position).unsqueeze(0),
        }
        if sizes.family in ("bert", "roberta"):
            inputs["token_type_ids"] = torch.zeros_like(numbers)
        hidden = self.encoder(**inputs).last_hidden_state
        return _pooled(hidden, known.float().unsqueeze(-1), self.options.pooling)


def _mask(known: Tensor, places: Tensor | None) -> Tensor:
    """Return what is added to the weights of attention, (batch, 1, tokens, tokens); with `places` it is causal."""
    seen = known[:, None, None, :]
    if places is not None:
        seen = seen * (places[None, :] <= places[:, None]).float()
    else:
        seen = seen.expand(-1, -1, known.shape[1], -1)
    return (1.0 - seen) * _FAR


def _pooled(hidden: Tensor, known: Tensor, pooling: str) -> Tensor:
    """Return one vector (batch, width) of the tokens' (batch, tokens, width); that of no token is zero."""
    match pooling:
        case "first":
            return hidden[:, 0] * known[:, 0]
        case "last":
            following = torch.cat([known[:, 1:], torch.zeros_like(known[:, :1])], dim=1)
            return (hidden * (known * (1.0 - following))).sum(dim=1)
        case _:
            return (hidden * known).sum(dim=1) / known.sum(dim=1).clamp(min=1.0)
