"""Pretrains a small BERT on texts without labels, here and within minutes, and registers it.

The network learns to tell the latent semantic vector of a text (Deerwester et al. 1990: a truncated singular value
decomposition of TF-IDF) from the text with some tokens masked. Its first vectors of tokens are those of the same
decomposition. To tell masked tokens alone (Devlin et al. 2019) teaches a network of this size little within minutes.
The decomposition takes seconds, and has what the tokens of all texts tell about each other. The network is then
registered as any network is: written as a directory, read back and checked.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.sparse import csr_matrix
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfTransformer
from torch import nn
from torch.nn import functional

from indb_tensile.bench.harness.networks.tiny_networks import SPECIAL, of_parts, sizes_of, write_directory
from indb_tensile.learning.models.artifacts import pack
from indb_tensile.learning.networks.network_directory import NetworkDirectory
from indb_tensile.learning.networks.registered_network import NetworkSizes, RegisteredNetwork

NAME = "here"
TOKENS = 20  # of a description: 95 of 100 have 15 or fewer
_VOCABULARY = 6000
_WIDTH, _LAYERS, _HEADS = 128, 2, 4
_BATCH = 64
_MASKED = 0.15  # of the tokens that a step reads
_LARGEST_GRADIENT = 1.0
_RATE = 1e-3
# Root mean squares of the numbers: a mean of vectors of length 1 is shorter, and first vectors outweigh positions.
_OF_TEXTS, _OF_TOKENS = 0.5, 0.3
_PADDING, _BEGIN, _END, _MASK = 0, 2, 3, 4

Tokens = npt.NDArray[np.int64]
Vectors = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainedHere:
    """The registered network, and how its loss fell: the share of the vectors' variance that it does not tell."""

    network: RegisteredNetwork
    first_loss: float
    last_loss: float


def pretrain(texts: Sequence[str], steps: int, seed: int = 0) -> PretrainedHere:
    """Train an encoder for `steps` batches, and return it as a registered network."""
    tokenizer = _word_pieces(texts)
    sizes = sizes_of(
        "bert", vocabulary=tokenizer.get_vocab_size(), width=_WIDTH, layers=_LAYERS, heads=_HEADS, positions=TOKENS
    )
    listed = [np.array(own.ids[1:-1], np.int64) for own in tokenizer.encode_batch_fast(list(texts))]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoder, losses = _train_unlabelled(sizes, [own for own in listed if len(own)], steps, seed)
    network = of_parts(NAME, sizes, tokenizer.to_str(), pack(encoder.state_dict(), {}))
    tenth = max(1, steps // 10)
    return PretrainedHere(
        network=_registered(network),
        first_loss=float(np.mean(losses[:tenth])),
        last_loss=float(np.mean(losses[-tenth:])),
    )


def _word_pieces(texts: Sequence[str]) -> Any:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.WordPiece(unk_token=SPECIAL[1]))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=_VOCABULARY, special_tokens=list(SPECIAL), show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer


def _latent_vectors(texts: Sequence[Tokens], vocabulary: int, seed: int) -> tuple[Vectors, Vectors]:
    """Return the latent semantic vector of each text and of each token, of `_WIDTH` numbers."""
    rows = np.repeat(np.arange(len(texts)), [len(own) for own in texts])
    counts = csr_matrix((np.ones(len(rows)), (rows, np.concatenate(texts))), shape=(len(texts), vocabulary))
    weights = TfidfTransformer(sublinear_tf=True).fit(counts)
    factors = TruncatedSVD(min(_WIDTH, *counts.shape), random_state=seed)
    of_texts = factors.fit_transform(weights.transform(counts))
    of_tokens = factors.components_.T * weights.idf_[:, None]
    return _scaled(of_texts - of_texts.mean(axis=0), _OF_TEXTS), _scaled(of_tokens, _OF_TOKENS)


def _scaled(vectors: npt.NDArray[np.float64], size: float) -> Vectors:
    """Return vectors of `_WIDTH` numbers whose root mean square is `size`, with zeros behind shorter ones."""
    padded = np.pad(vectors, ((0, 0), (0, _WIDTH - vectors.shape[1])))
    scaled: Vectors = (size * padded / np.sqrt(np.square(padded).mean())).astype(np.float32)
    return scaled


def _train_unlabelled(
    sizes: NetworkSizes, texts: Sequence[Tokens], steps: int, seed: int
) -> tuple[nn.Module, list[float]]:
    """Train an encoder for `steps` batches, and return it with its losses."""
    of_texts, of_tokens = _latent_vectors(texts, sizes.vocabulary, seed)
    encoder = sizes.encoder().train()
    with torch.no_grad():
        encoder.get_parameter("embeddings.word_embeddings.weight").copy_(torch.from_numpy(of_tokens))
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=_RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, _RATE, total_steps=steps, pct_start=0.1, cycle_momentum=False
    )
    random = np.random.default_rng(seed)
    losses = []
    for _ in range(steps):
        chosen = random.integers(len(texts), size=_BATCH)
        read = _masked(_padded([texts[row] for row in chosen]))
        loss = functional.mse_loss(_encoded(encoder, read), torch.from_numpy(of_texts[chosen])) / _OF_TEXTS**2
        losses.append(float(loss.detach()))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(encoder.parameters(), _LARGEST_GRADIENT)
        optimizer.step()
        schedule.step()
    return encoder.eval(), losses


def _padded(texts: Sequence[Tokens]) -> torch.Tensor:
    """Return the first tokens of texts between those of begin and end, with padding behind them."""
    numbers = np.full((len(texts), TOKENS), _PADDING, np.int64)
    for row, text in enumerate(texts):
        own = text[: TOKENS - 2]
        numbers[row, : len(own) + 2] = (_BEGIN, *own, _END)
    return torch.from_numpy(numbers)


def _masked(tokens: torch.Tensor) -> torch.Tensor:
    """Return the tokens with the mask in the place of some."""
    masked = (torch.rand(tokens.shape) < _MASKED) & (tokens >= len(SPECIAL))
    return torch.where(masked, _MASK, tokens)


def _encoded(encoder: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Return the mean vector of each text."""
    known = (tokens != _PADDING).float()
    seen = known[:, None, None, :].expand(-1, -1, TOKENS, -1)
    hidden = encoder(
        input_ids=tokens,
        attention_mask=(seen - 1.0) * 1e9,
        position_ids=torch.arange(TOKENS).unsqueeze(0),
        token_type_ids=torch.zeros_like(tokens),
    ).last_hidden_state
    mean: torch.Tensor = (hidden * known.unsqueeze(-1)).sum(dim=1) / known.sum(dim=1, keepdim=True)
    return mean


def _registered(network: RegisteredNetwork) -> RegisteredNetwork:
    """Write the network as a directory, and return what is registered of it."""
    with TemporaryDirectory() as place, NetworkDirectory(write_directory(network, Path(place) / NAME)) as directory:
        config = {**directory.sizes.stored(), "family": directory.sizes.family}
        weights = b"".join(directory.weights())
        return RegisteredNetwork.of_stored(NAME, directory.digest, config, directory.tokenizer, weights)
