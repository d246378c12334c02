"""The lengths of a training's batches of texts are foretold from a sample of the texts."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from indb_tensile.bench.harness.networks.tiny_networks import tiny_network
from indb_tensile.learning.encoding.feature_options import FeatureOptions
from indb_tensile.learning.storage.columns import ColumnKind
from tests.learning.test_length_buckets import TOKENS, WORDS, prepared
from worker.serving.foretold_lengths import ForetoldLengths, SampledTexts
from worker.serving.requests import ColumnSummary


def summary(name: str, texts: tuple[str | None, ...]) -> ColumnSummary:
    return ColumnSummary(name=name, kind=ColumnKind.TEXT.value, texts=texts)


def sampled(preprocess: dict[str, Any], *columns: ColumnSummary) -> SampledTexts:
    return SampledTexts(columns, FeatureOptions.parse(preprocess), None)


def test_lengths_and_batches_are_those_of_the_training_on_such_texts() -> None:
    drawn = np.random.default_rng(3)  # the texts are drawn as those of the training, and are others
    bodies = [
        " ".join(drawn.choice(WORDS[: 4 + 4 * (row % 2)], 16 if row % 5 == 0 else 1 + row % 4)) for row in range(200)
    ]
    trained = prepared()
    assert trained.buckets is not None
    own = sampled(TOKENS, summary("body", tuple(bodies)), summary("title", ("a title",) * 200))
    foretold = own.lengths(3, trained.train.rows, 16)
    assert foretold is not None
    assert (foretold.column, foretold.longest) == ("body", 16)
    assert len(foretold.lengths) == len(trained.buckets.lengths)
    assert abs(sum(foretold.batches) - sum(trained.buckets.full_batches)) <= 1
    assert abs(foretold.mean(foretold.lengths) / foretold.longest - trained.buckets.token_share) < 0.1


def test_a_length_that_no_request_gives_is_chosen_by_the_sample() -> None:
    own = sampled({"encode": "tokens"}, summary("body", ("a b c d e f g h i j",) * 20 + (None,)))
    assert own.options.token_length("body") == 16
    assert sampled({"encode": "tokens"}, summary("body", ())).options.token_length("body") is None


def test_texts_of_one_length_and_requests_for_one_have_none() -> None:
    own = sampled({"encode": "tokens", "length": 8}, summary("body", ("a b c d e f g h",) * 40))
    assert own.lengths(4, 1000, 16) is None
    several = sampled(TOKENS, summary("body", ("a",) * 40 + ("a b c d e f g h i j k l m n o p",) * 40))
    assert several.lengths(None, 1000, 16) is None
    assert several.lengths(1, 1000, 16) is None
    lengths = several.lengths(4, 1000, 16)
    assert lengths is not None
    assert (lengths.lengths, lengths.missing) == ((4, 16), (12,))
    assert lengths.batches == (31, 31)


def test_a_mean_counts_batches() -> None:
    texts = ForetoldLengths(column="body", lengths=(4, 8), batches=(3, 1))
    assert texts.mean([1.0, 5.0]) == 2.0
    assert replace(texts, batches=(0, 0)).mean([1.0, 5.0]) == 5.0


@pytest.mark.nightly  # transformers takes seconds to be imported
def test_the_lengths_of_a_registered_network_are_those_of_its_tokenizer() -> None:
    network = tiny_network("bert", WORDS, positions=16)
    texts = ("server query",) * 40 + ("server " * 12,) * 40 + (None,)
    own = SampledTexts([summary("body", texts)], FeatureOptions.parse({"encode": "tokens"}), network)
    assert own.options.token_length("body") == 16
    lengths = own.lengths(4, 1000, 16)
    assert lengths is not None
    assert lengths.lengths == (4, 16)  # with the tokens that begin and end a text
