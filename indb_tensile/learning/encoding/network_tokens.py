"""The encoder of a text column by the tokenizer of a registered network.

A version of a model stores which network and how many tokens, and not the tokenizer, which comes with the network.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from indb_tensile.errors import DatabaseError, RequestError
from indb_tensile.learning.encoding.encoders import Missing, require
from indb_tensile.learning.encoding.text_encoders import filled_blocks
from indb_tensile.learning.encoding.tokens import LONGEST_CHOSEN, TokenFacts, chosen_length
from indb_tensile.learning.storage.columns import ColumnData, ColumnRows
from indb_tensile.learning.storage.moments import Matrix

if TYPE_CHECKING:
    from tokenizers import Tokenizer

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # as in tokens.py

_BLOCK_ROWS = 4096
# Most characters of a token on average: the text after so many per token cannot be among its first tokens.
_CHARACTERS = 64


class NetworkTokenizer:
    """A tokenizer that a registered network came with. Threads may share it."""

    def __init__(self, network: str, text: str) -> None:
        self._network = network
        self._tokenizer = read_tokenizer(text, f'the tokenizer of network "{network}"')

    @cached_property
    def size(self) -> int:
        """Return how many numbers a token of an encoded row may be: its number and one more, and 0 for no token."""
        return highest_token(self._tokenizer) + 2

    def numbers(self, texts: list[str], length: int) -> list[list[int]]:
        """Return the numbers of the first `length` tokens of each text, with those of its ends, from 0 on."""
        most = _CHARACTERS * length
        cut = self._cut(length)
        return [list(own.ids) for own in cut.encode_batch_fast([text[:most] for text in texts])]

    def _cut(self, length: int) -> "Tokenizer":
        """Return a tokenizer that cuts texts to `length` tokens, and keeps the token of a text's end."""
        from tokenizers import Tokenizer

        known: dict[int, Tokenizer] = self.__dict__.setdefault("_by_length", {})
        if length not in known:
            own = Tokenizer.from_str(self._tokenizer.to_str())  # a tokenizer's own setting is not for threads
            own.enable_truncation(length)
            known[length] = own
        return known[length]


@dataclass(frozen=True, kw_only=True)
class NetworkTokens:
    """A text column as the first `length` tokens of the network's tokenizer: their numbers plus 1, and 0 behind them.

    A missing text is an empty one.
    """

    name: str
    network: str
    digest: str
    length: int
    required: bool = False

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """Return the name of each column of the result."""
        return tuple(f"{self.name} token {place + 1}" for place in range(self.length))


@dataclass(frozen=True, kw_only=True)
class BoundTokens:
    """A column's encoder with its tokenizer. It encodes as the other encoders of texts do."""

    tokens: NetworkTokens
    tokenizer: NetworkTokenizer | None

    @property
    def name(self) -> str:
        """Return the column's name."""
        return self.tokens.name

    @property
    def required(self) -> bool:
        """Return whether a missing text is refused."""
        return self.tokens.required

    @property
    def outputs(self) -> tuple[str, ...]:
        """Return the name of each column of the result."""
        return self.tokens.outputs

    def apply(self, data: ColumnData) -> Matrix:
        """Encode a column as (rows, length)."""
        if self.required:
            require(self.name, data.missing)
        if self.tokenizer is None:
            message = f'the tokens of column "{self.name}" need network "{self.tokens.network}", which is not loaded'
            raise DatabaseError(message, hint="Register its directory again with tensile models import.")
        length = self.tokens.length
        numbers = np.zeros((len(data.missing), length))
        for start in range(0, len(numbers), _BLOCK_ROWS):
            rows = slice(start, start + _BLOCK_ROWS)
            for row, own in zip(numbers[rows], self.tokenizer.numbers(_texts(data, rows), length), strict=True):
                row[: len(own)] = np.add(own, 1)
        return numbers


def fit_network_tokens(
    name: str,
    data: ColumnRows,
    length: int | None,
    missing: Missing,
    fill: str | None,
    *,
    network: str,
    digest: str,
    positions: int,
    tokenizer: NetworkTokenizer,
) -> tuple[NetworkTokens, TokenFacts]:
    """Choose the length of a column, if none is given, as that of other columns of tokens (tokens.py).

    Raises RequestError for a length that the network cannot read.
    """
    if length is not None and length > positions:
        message = (
            f'preprocess: "length" of column "{name}" is {length}, and network "{network}" reads {positions} tokens'
        )
        raise RequestError(message, hint=f'Give at most {positions}, or leave "length" out.')
    longest = length or min(LONGEST_CHOSEN, positions)
    counts = np.concatenate([np.zeros(0, np.int64), *_counts(data, fill, tokenizer, min(longest + 1, 1 << 16))])
    own = length or min(chosen_length(counts), longest)
    tokens = NetworkTokens(name=name, network=network, digest=digest, length=own, required=missing == "error")
    facts = TokenFacts(
        name=name,
        pieces=tokenizer.size - 1,
        length=own,
        known_rows=len(counts),
        whole_rows=int((counts <= own).sum()),
    )
    return tokens, facts


def _counts(
    data: ColumnRows, fill: str | None, tokenizer: NetworkTokenizer, most: int
) -> Iterator[npt.NDArray[np.int64]]:
    for block in filled_blocks(data, fill, _BLOCK_ROWS):
        numbers = tokenizer.numbers(_texts(block, slice(None)), most)
        yield np.fromiter(map(len, numbers), np.int64, len(numbers))[~block.missing]


def _texts(data: ColumnData, rows: slice) -> list[str]:
    pairs = zip(data.values[rows], data.missing[rows], strict=True)
    return ["" if is_missing else text for text, is_missing in pairs]


def read_tokenizer(text: str, subject: str) -> "Tokenizer":
    """Return the tokenizer of a tokenizer.json. Raises RequestError if the library cannot read it."""
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_str(text)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
            raise
        # The library is written in Rust. A panic there becomes an exception that does not derive from Exception.
        message = f"{subject} cannot be read: {str(error).partition(chr(10))[0][:300]}"
        raise RequestError(message, hint="Give the tokenizer.json that save_pretrained wrote.") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def highest_token(tokenizer: "Tokenizer") -> int:
    """Return the highest number of a token."""
    return max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
