"""Foretells the lengths of the batches of a training on texts, before its rows are read, from a sample of the texts.

A training learns its tokens from all training rows, and chooses the lengths by them
(learning/batches/length_buckets.py). Here both are done with the sample alone, so the lengths and the shares of
batches are estimates.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from indb_tensile.learning.batches.length_buckets import batches_by_length, choose_lengths
from indb_tensile.learning.decoding.jsonrows import column_of
from indb_tensile.learning.encoding.feature_options import TOKENS, FeatureOptions
from indb_tensile.learning.encoding.network_tokens import BoundTokens, fit_network_tokens
from indb_tensile.learning.encoding.text_encoders import filled
from indb_tensile.learning.encoding.tokens import Tokens
from indb_tensile.learning.networks.registered_network import RegisteredNetwork
from indb_tensile.learning.networks.token_networks import longest_column
from indb_tensile.learning.storage.columns import ColumnKind, ColumnRows
from indb_tensile.learning.training.preprocessor_fitting import fill_of

from .requests import ColumnSummary

Counts = npt.NDArray[np.int64]

_NO_ERROR = "indicator"  # the rule for missing texts of the sample, which a training may refuse


@dataclass(frozen=True, slots=True, kw_only=True)
class ForetoldLengths:
    """The lengths of a column's texts in batches, in ascending order, and how many full batches an epoch has of each.

    A row has `longest` tokens of the column, which is the last of the lengths.
    """

    column: str
    lengths: tuple[int, ...]
    batches: tuple[int, ...]

    @property
    def longest(self) -> int:
        """Return the tokens of a row that is not cut."""
        return self.lengths[-1]

    @property
    def missing(self) -> tuple[int, ...]:
        """Return how many tokens a row of each length but the longest lacks."""
        return tuple(self.longest - length for length in self.lengths[:-1])

    def mean(self, values: Sequence[float]) -> float:
        """Return the mean over an epoch's full batches of a value that each length has."""
        return float(np.average(values, weights=self.batches)) if any(self.batches) else float(values[-1])


class SampledTexts:
    """The columns of texts that are read as tokens, with the tokens of a sample of their texts.

    A column without a sample, which only a training with several lengths needs, takes no part.
    """

    def __init__(
        self, columns: Sequence[ColumnSummary], options: FeatureOptions, network: RegisteredNetwork | None
    ) -> None:
        self._options = options
        read = [column for column in columns if column.kind == ColumnKind.TEXT]
        read = [column for column in read if options.encoding(column.name) == TOKENS and column.texts]
        self._names = [column.name for column in read]
        self._tokens = [_tokens(column, options, network) for column in read]

    @property
    def options(self) -> FeatureOptions:
        """Return the options with the length of each of the columns."""
        if not self._names:
            return self._options
        chosen = {name: length for name, (length, _) in zip(self._names, self._tokens, strict=True)}
        stated = self._options.length if isinstance(self._options.length, dict) else {}
        return replace(self._options, length={**stated, **chosen})

    def lengths(self, most: int | None, train_rows: int, batch_rows: int) -> ForetoldLengths | None:
        """Return at most `most` lengths of the batches, or None for one length."""
        if not self._names or most is None or most == 1:
            return None
        place = longest_column([length for length, _ in self._tokens])
        longest, counts = self._tokens[place]
        share = train_rows / len(counts)
        chosen = choose_lengths(counts, longest, most, max(1, round(batch_rows / share)))
        if len(chosen) == 1:
            return None
        sampled = np.bincount(np.searchsorted(chosen, counts), minlength=len(chosen))
        rows = np.diff(np.rint(np.cumsum(sampled) * share).astype(np.int64), prepend=0)
        batches = batches_by_length(rows.tolist(), batch_rows)
        return ForetoldLengths(column=self._names[place], lengths=chosen, batches=batches)


def _tokens(column: ColumnSummary, options: FeatureOptions, network: RegisteredNetwork | None) -> tuple[int, Counts]:
    """Return the length that a training would choose by the sample, and how many tokens each text then has."""
    name, length = column.name, options.token_length(column.name)
    data = column_of(name, ColumnKind.TEXT, list(column.texts))
    rows = ColumnRows(data, np.arange(len(data.missing)))
    fill = fill_of(rows, options.missing_rule(name, ColumnKind.TEXT))
    encoder: Tokens | BoundTokens
    if network is None:
        encoder, _ = Tokens.fit(name, rows, options.most_tokens(name), length, _NO_ERROR, fill)
        own = encoder.length
    else:
        tokens, _ = fit_network_tokens(
            name,
            rows,
            length,
            _NO_ERROR,
            fill,
            network=network.name,
            digest=network.digest,
            positions=network.sizes.positions,
            tokenizer=network.tokenizer,
        )
        encoder, own = BoundTokens(tokens=tokens, tokenizer=network.tokenizer), tokens.length
    encoded = encoder.apply(data if fill is None else filled(data, fill))
    return own, np.count_nonzero(encoded, axis=1)
