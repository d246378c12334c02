"""The encoder that turns texts into sequences of tokens: pieces of words that are frequent in the training rows.

The pieces are found by byte pair encoding (Sennrich, Haddow and Birch 2016) of the bytes of the texts, so every text
has tokens, and none is unknown. The pieces depend on the texts alone: not on the order of the rows, since the trainer
counts words first and breaks ties by the pieces' numbers, and not on threads. Only the list of merges is stored, from
which the tokenizer is built again.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from indb_tensile.learning.encoding.encoders import Missing, require
from indb_tensile.learning.encoding.text_encoders import filled_blocks
from indb_tensile.learning.storage.columns import ColumnData, ColumnRows
from indb_tensile.learning.storage.moments import Matrix

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# Blocks of rows are tokenised on threads of this package (block_encoding.py), and a process that has used the
# library's own threads must not fork. The library reads this variable at each call.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

PADDING, MISSING = 0, 1  # the numbers of no token, and of a missing text
_SPECIAL = ("(padding)", "(missing)")
LONGEST_CHOSEN = 128  # tokens: the longest length that is chosen by the column's texts
_SHORTEST_CHOSEN = 8
_WHOLE_SHARE = 0.95  # share of the training texts that fit into the chosen length as a whole
_TOKEN_CHARACTERS = 32  # tokens are shorter, so that a text's first tokens lie in this many characters for each
_LEARNED_CHARACTERS = 1 << 24  # characters of the texts that the pieces are learned from; they take a few seconds
_BLOCK_ROWS = 4096  # tokenised at a time: the library's results take ten times the memory of the numbers


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """The encoder of a text column as the numbers of its first `length` tokens, 0 behind the last one.

    `merges` are the pairs of pieces, separated by a blank, that become one piece, in their order.
    """

    name: str
    merges: tuple[str, ...]
    length: int
    required: bool = False

    @classmethod
    def fit(
        cls,
        name: str,
        data: ColumnRows,
        vocabulary: int,
        length: int | None,
        missing: Missing,
        fill: str | None = None,
    ) -> tuple["Tokens", "TokenFacts"]:
        """Learn the pieces from the training rows, at most `vocabulary`; `fill` replaces missing texts.

        Without a `length` it is the power of two that holds 95 % of the texts, at most 128.
        """
        merges = _learn_merges(data, vocabulary, fill)
        encoder = cls(name=name, merges=merges, length=length or LONGEST_CHOSEN, required=missing == "error")
        counts = encoder.token_counts(data, fill)
        if length is None:
            encoder = cls(name=name, merges=merges, length=chosen_length(counts), required=encoder.required)
        whole = int((counts <= encoder.length).sum())
        facts = TokenFacts(
            name=name, pieces=encoder.size, length=encoder.length, known_rows=len(counts), whole_rows=whole
        )
        return encoder, facts

    def apply(self, data: ColumnData) -> Matrix:
        """Encode a column as (rows, length)."""
        if self.required:
            require(self.name, data.missing)
        numbers = np.zeros((len(data.missing), self.length))
        for start in range(0, len(numbers), _BLOCK_ROWS):
            block = slice(start, start + _BLOCK_ROWS)
            tokens = self._tokens(self._texts(data, block), self.length)
            for row, own in zip(numbers[block], tokens, strict=True):
                row[: len(own)] = own
        numbers[data.missing, 0] = MISSING
        return numbers

    def token_counts(self, data: ColumnRows, fill: str | None) -> npt.NDArray[np.int64]:
        """Return the number of tokens of each text that is not missing, at most one more than the length."""
        counts = [np.zeros(0, np.int64)]
        for block in filled_blocks(data, fill, _BLOCK_ROWS):
            tokens = self._tokens(self._texts(block, slice(None)), self.length + 1)
            own = np.fromiter(map(len, tokens), np.int64, len(block.missing))
            counts.append(own[~block.missing])
        return np.concatenate(counts)

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """Return the name of each column of the result."""
        return tuple(f"{self.name} token {place + 1}" for place in range(self.length))

    @cached_property
    def size(self) -> int:
        """Return how many numbers of tokens there are, with those of padding and of a missing text."""
        return len(_vocabulary(self.merges))

    def _texts(self, data: ColumnData, rows: slice) -> list[str]:
        most = _TOKEN_CHARACTERS * (self.length + 1)
        pairs = zip(data.values[rows], data.missing[rows], strict=True)
        return ["" if is_missing else text[:most] for text, is_missing in pairs]

    def _tokens(self, texts: list[str], most: int) -> Iterator[list[int]]:
        return (own.ids[:most] for own in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False))

    @cached_property
    def _tokenizer(self) -> "Tokenizer":
        return _tokenizer(self.merges)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenFacts:
    """How many pieces a text column has, and how many of the rows with a text `length` tokens hold as a whole."""

    name: str
    pieces: int
    length: int
    known_rows: int
    whole_rows: int


def _tokenizer(merges: tuple[str, ...]) -> "Tokenizer":
    """Return a tokenizer of lower-case texts whose pieces begin at words."""
    # Imported here because models without texts need no tokenizer.
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    tokenizer = Tokenizer(models.BPE(vocab=_vocabulary(merges), merges=pairs))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    return tokenizer


def _vocabulary(merges: tuple[str, ...]) -> dict[str, int]:
    """Return the number of each piece: the special ones, the 256 bytes, then the results of the merges."""
    from tokenizers import pre_tokenizers

    pieces = dict.fromkeys((*_SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())))
    pieces |= dict.fromkeys(merge.replace(" ", "") for merge in merges)
    return {piece: number for number, piece in enumerate(pieces)}


def _learn_merges(data: ColumnRows, vocabulary: int, fill: str | None) -> tuple[str, ...]:
    from tokenizers import pre_tokenizers, trainers

    tokenizer = _tokenizer(())
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        min_frequency=2,
        max_token_length=_TOKEN_CHARACTERS,
        special_tokens=list(_SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_learned_texts(data, fill), trainer)
    return tuple(" ".join(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"])


def _learned_texts(data: ColumnRows, fill: str | None) -> Iterator[list[str]]:
    """Yield blocks of the texts that the pieces are learned from: all, or those with the smallest hashes.

    So the choice does not depend on the order of the rows.
    """
    characters = sum(map(len, _known_texts(data, fill)))
    share = _LEARNED_CHARACTERS / max(1, characters)
    for block in filled_blocks(data, fill, _BLOCK_ROWS):
        texts = block.values[~block.missing].tolist()
        yield texts if share >= 1 else [text for text in texts if _drawn(text) < share]


def _known_texts(data: ColumnRows, fill: str | None) -> Iterator[str]:
    for block in filled_blocks(data, fill, _BLOCK_ROWS):
        yield from block.values[~block.missing]


def _drawn(text: str) -> float:
    """Return a number from 0 to 1 that depends on the text alone."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") / 2**64


def chosen_length(counts: npt.NDArray[np.int64]) -> int:
    """Return the shortest power of two, within bounds, that holds most texts as a whole."""
    length = _SHORTEST_CHOSEN
    while length < LONGEST_CHOSEN and (counts <= length).sum() < _WHOLE_SHARE * len(counts):
        length *= 2
    return length
