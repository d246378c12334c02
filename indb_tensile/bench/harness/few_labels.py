"""Pretrains a small BERT on texts without labels, here and within minutes, and fine-tunes it on few labels.

The network learns two tasks at once, as in DeCLUTR (Giorgi et al. 2021): to tell masked tokens from the others of a
text (Devlin et al. 2019), and to tell by mean vectors which half of a text belongs to which other half among those of
a batch. Masks alone teach a network of this size little within minutes. It is then registered as any network is:
written as a directory, read back and checked.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional

from indb_tensile.bench.harness.debian_descriptions import section_table
from indb_tensile.bench.harness.sample_tables import SampleTable
from indb_tensile.bench.harness.table_trainings import specify, train
from indb_tensile.bench.harness.tiny_networks import SPECIAL, of_parts, sizes_of, write_directory
from indb_tensile.learning.artifacts import ModelBundle, ModelPredictor, pack
from indb_tensile.learning.network_directory import NetworkDirectory
from indb_tensile.learning.preparation import Prepared, assemble
from indb_tensile.learning.registered_network import NetworkSizes, RegisteredNetwork

TOKENS = 20  # of a description: 95 of 100 have 15 or fewer
_VOCABULARY = 6000
_WIDTH, _LAYERS, _HEADS = 128, 3, 4
_BATCH = 64
_MASKED, _EXCHANGED = 0.15, 0.1  # tokens to tell, and the share of them that another token stands for
_TEMPERATURE = 0.05  # of similarities of halves
_FEWEST_TOKENS = 4  # of a text that has halves
_LARGEST_GRADIENT = 1.0
_RATE = 1e-3
_READ = {"encode": {"description": "tokens"}, "length": TOKENS}
_PADDING, _BEGIN, _END, _MASK = 0, 2, 3, 4

Tokens = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainedHere:
    """The registered network, and how its loss fell."""

    network: RegisteredNetwork
    first_loss: float
    last_loss: float
    steps: int


def pretrain(texts: Sequence[str], steps: int, seed: int = 0) -> PretrainedHere:
    """Train a masked language model for `steps` batches, and return its encoder as a registered network."""
    tokenizer = _word_pieces(texts)
    sizes = sizes_of(
        "bert", vocabulary=tokenizer.get_vocab_size(), width=_WIDTH, layers=_LAYERS, heads=_HEADS, positions=TOKENS
    )
    listed = [np.array(own.ids[1:-1], np.int64) for own in tokenizer.encode_batch_fast(list(texts))]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoder, losses = _train_unlabelled(sizes, [own for own in listed if len(own) >= _FEWEST_TOKENS], steps, seed)
    network = of_parts("here", sizes, tokenizer.to_str(), pack(encoder.state_dict(), {}))
    tenth = max(1, steps // 10)
    return PretrainedHere(
        network=_registered(network),
        first_loss=float(np.mean(losses[:tenth])),
        last_loss=float(np.mean(losses[-tenth:])),
        steps=steps,
    )


def fine_tune(
    table: SampleTable,
    labels: int,
    seed: int,
    network: RegisteredNetwork,
    part: str,
    hyperparams: Mapping[str, Any] = MappingProxyType({}),
) -> tuple[float, Prepared]:
    """Train this part on `labels` rows, by default with default settings, and return the accuracy on other rows."""
    few, rest = _few_rows(table, labels, seed)
    architecture: dict[str, Any] = {"type": "pretrained", "from": "here", "train": part, "pooling": "mean"}
    spec = replace(specify(few, seed, hyperparams, architecture), preprocess=_READ)
    prepared = assemble(few.table, replace(spec, split={"seed": seed, "test_size": 0.1}), network=network)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        train(prepared)
    bundle = ModelBundle(
        architecture=prepared.architecture,
        input_shape=prepared.input_shape,
        outputs=prepared.outputs,
        task=prepared.task,
        preprocessor=prepared.preprocessor,
        weights=dict(prepared.module.state_dict()),
        network=network,
    )
    predicted = [own.label for own in ModelPredictor(bundle).predict_columns(rest.table.columns)]
    expected = rest.table.columns["section"].values
    return float(np.mean([own == other for own, other in zip(predicted, expected, strict=True)])), prepared


def untrained(network: RegisteredNetwork) -> RegisteredNetwork:
    """Return a network of the same sizes and tokens that has learned nothing."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        weights = pack(network.sizes.encoder().state_dict(), {})
    return of_parts("here", network.sizes, network.tokenizer_text, weights)


def _few_rows(table: SampleTable, labels: int, seed: int) -> tuple[SampleTable, SampleTable]:
    """Return `labels` rows, and up to 4,000 others."""
    descriptions, sections = (table.table.columns[name].values for name in ("description", "section"))
    order = np.random.default_rng(seed).permutation(len(sections))
    parts = (order[:labels], order[labels : labels + 4000])
    few, rest = (section_table(zip(descriptions[own], sections[own], strict=True)) for own in parts)
    return few, rest


def _word_pieces(texts: Sequence[str]) -> Any:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.WordPiece(unk_token=SPECIAL[1]))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=_VOCABULARY, special_tokens=list(SPECIAL), show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer


def _train_unlabelled(
    sizes: NetworkSizes, texts: Sequence[Tokens], steps: int, seed: int
) -> tuple[nn.Module, list[float]]:
    """Train an encoder for `steps` batches, and return it with the losses of masked tokens."""
    encoder = sizes.encoder().train()
    head = nn.Sequential(nn.Linear(sizes.width, sizes.width), nn.GELU(), nn.LayerNorm(sizes.width))
    words = encoder.get_parameter("embeddings.word_embeddings.weight")
    bias = nn.Parameter(torch.zeros(len(words)))
    learned = [*encoder.parameters(), *head.parameters(), bias]
    optimizer = torch.optim.AdamW(learned, lr=_RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, _RATE, total_steps=steps, pct_start=0.1, cycle_momentum=False
    )
    random = np.random.default_rng(seed)
    losses = []
    for _ in range(steps):
        chosen = [texts[row] for row in random.integers(len(texts), size=_BATCH)]
        whole, one, other = _halved(chosen, random)
        masked, read = _masked(whole, len(words))
        hidden, vectors = _encoded(encoder, torch.cat([read, one, other]))
        loss = functional.cross_entropy(head(hidden[:_BATCH][masked]) @ words.T + bias, whole[masked])
        losses.append(float(loss.detach()))
        loss = loss + _contrast(vectors[_BATCH:])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(learned, _LARGEST_GRADIENT)
        optimizer.step()
        schedule.step()
    return encoder.eval(), losses


def _halved(texts: Sequence[Tokens], random: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the tokens of each text, and those of two parts that together are the text, in its order."""
    parts: tuple[list[Tokens], ...] = ([], [], [])
    for text in texts:
        own = text[: TOKENS - 2]
        side = random.random(len(own)) < 0.5
        if side.all() or not side.any():
            side[random.integers(len(own))] ^= True
        for part, tokens in zip(parts, (own, own[side], own[~side]), strict=True):
            part.append(tokens)
    whole, one, other = map(_padded, parts)
    return whole, one, other


def _padded(texts: Sequence[Tokens]) -> torch.Tensor:
    """Return texts between the tokens of their begin and end, with padding behind them."""
    numbers = np.full((len(texts), TOKENS), _PADDING, np.int64)
    for row, tokens in enumerate(texts):
        numbers[row, : len(tokens) + 2] = (_BEGIN, *tokens, _END)
    return torch.from_numpy(numbers)


def _masked(whole: torch.Tensor, words: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return which tokens are to be told, and what is read: a mask, another token or the token itself for these."""
    masked = (torch.rand(whole.shape) < _MASKED) & (whole >= len(SPECIAL))
    kind = torch.rand(whole.shape)
    read = torch.where(masked & (kind < 1 - 2 * _EXCHANGED), _MASK, whole)
    others = torch.randint(len(SPECIAL), words, whole.shape)
    return masked, torch.where(masked & (kind > 1 - _EXCHANGED), others, read)


def _encoded(encoder: nn.Module, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the vectors of tokens, and the mean vector of each text."""
    known = (tokens != _PADDING).float()
    seen = known[:, None, None, :].expand(-1, -1, TOKENS, -1)
    hidden = encoder(
        input_ids=tokens,
        attention_mask=(seen - 1.0) * 1e9,
        position_ids=torch.arange(TOKENS).unsqueeze(0),
        token_type_ids=torch.zeros_like(tokens),
    ).last_hidden_state
    return hidden, (hidden * known.unsqueeze(-1)).sum(dim=1) / known.sum(dim=1, keepdim=True)


def _contrast(vectors: torch.Tensor) -> torch.Tensor:
    """Return the loss of telling the other half of each text among all halves (van den Oord et al. 2018)."""
    unit = functional.normalize(vectors, dim=1)
    alike = (unit @ unit.T / _TEMPERATURE).masked_fill(torch.eye(len(unit), dtype=torch.bool), -1e9)
    return functional.cross_entropy(alike, torch.arange(len(unit)).roll(len(unit) // 2))


def _registered(network: RegisteredNetwork) -> RegisteredNetwork:
    """Write the network as a directory, and return what is registered of it."""
    with TemporaryDirectory() as place, NetworkDirectory(write_directory(network, Path(place) / "here")) as found:
        config = {**found.sizes.stored(), "family": found.sizes.family}
        weights = b"".join(found.weights())
        return RegisteredNetwork.of_stored("here", found.digest, config, found.tokenizer, weights)
