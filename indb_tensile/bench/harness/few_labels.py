"""Pretrains a small BERT on texts without labels, within minutes on this machine, and fine-tunes it on few labels.

The network learns to tell masked tokens from the others of a text (Devlin et al. 2019). It is then registered as any
network is: written as a directory, read back and checked.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
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

TOKENS = 48
_VOCABULARY = 6000
_WIDTH, _LAYERS, _HEADS = 128, 3, 4
_BATCH = 64
_MASKED = 0.15
_RATE = 1e-3
_READ = {"encode": {"description": "tokens"}, "length": TOKENS}
_PADDING, _MASK = 0, 4


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
    tokenizer.enable_truncation(TOKENS)
    tokenizer.enable_padding(length=TOKENS, pad_id=_PADDING, pad_token=SPECIAL[_PADDING])
    numbers = torch.tensor([own.ids for own in tokenizer.encode_batch_fast(list(texts))])
    tokenizer.no_padding()
    tokenizer.no_truncation()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoder, losses = _train_masked(sizes, numbers, steps)
    network = of_parts("here", sizes, tokenizer.to_str(), pack(encoder.state_dict(), {}))
    tenth = max(1, steps // 10)
    return PretrainedHere(
        network=_registered(network),
        first_loss=float(np.mean(losses[:tenth])),
        last_loss=float(np.mean(losses[-tenth:])),
        steps=steps,
    )


def fine_tune(
    table: SampleTable, labels: int, seed: int, network: RegisteredNetwork, part: str
) -> tuple[float, Prepared]:
    """Train this part on `labels` rows, and return the accuracy on other rows, with the training."""
    few, rest = _few_rows(table, labels, seed)
    architecture: dict[str, Any] = {"type": "pretrained", "from": "here", "train": part, "pooling": "mean"}
    hyperparams: Mapping[str, Any] = {"epochs": 40, "batch_size": 16}
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


def _train_masked(sizes: NetworkSizes, numbers: torch.Tensor, steps: int) -> tuple[nn.Module, list[float]]:
    encoder = sizes.encoder().train()
    head = nn.Sequential(nn.Linear(sizes.width, sizes.width), nn.GELU(), nn.LayerNorm(sizes.width))
    words = encoder.get_parameter("embeddings.word_embeddings.weight")
    bias = nn.Parameter(torch.zeros(len(words)))
    learned = [*encoder.parameters(), *head.parameters(), bias]
    optimizer = torch.optim.AdamW(learned, lr=_RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _RATE, total_steps=steps, pct_start=0.1)
    positions = torch.arange(TOKENS).unsqueeze(0)
    losses = []
    for _ in range(steps):
        batch = numbers[torch.randint(len(numbers), (_BATCH,))]
        known = batch >= len(SPECIAL)
        masked = (torch.rand(batch.shape) < _MASKED) & known
        read = torch.where(masked, _MASK, batch)
        seen = ((batch != _PADDING).float()[:, None, None, :].expand(-1, -1, TOKENS, -1) - 1.0) * 1e9
        hidden = encoder(
            input_ids=read,
            attention_mask=seen,
            position_ids=positions,
            token_type_ids=torch.zeros_like(read),
        ).last_hidden_state
        loss = functional.cross_entropy(head(hidden[masked]) @ words.T + bias, batch[masked])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        losses.append(float(loss.detach()))
    return encoder.eval(), losses


def _registered(network: RegisteredNetwork) -> RegisteredNetwork:
    """Write the network as a directory, and return what is registered of it."""
    with TemporaryDirectory() as place, NetworkDirectory(write_directory(network, Path(place) / "here")) as directory:
        config = {**directory.sizes.stored(), "family": directory.sizes.family}
        weights = b"".join(directory.weights())
        return RegisteredNetwork.of_stored("here", directory.digest, config, directory.tokenizer, weights)
