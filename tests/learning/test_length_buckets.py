"""Texts of like length share batches: each row once in an epoch, in an order that a seed repeats."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.errors import InvariantError, RequestError
from indb_tensile.learning.batches import shuffling
from indb_tensile.learning.batches.batch_order import batch_plan, batches, ordered_batches
from indb_tensile.learning.batches.batch_prefetch import BatchPrefetcher
from indb_tensile.learning.batches.batch_sources import TrainingSources
from indb_tensile.learning.batches.length_buckets import LengthBuckets, choose_lengths, length_buckets
from indb_tensile.learning.encoding.encoded_parts import Part
from indb_tensile.learning.models.model_predictor import ModelPredictor
from indb_tensile.learning.networks.cut_texts import CutColumn, passes_of_short_rows
from indb_tensile.learning.networks.hyperparams import TrainingSettings
from indb_tensile.learning.networks.token_networks import cut_lengths
from indb_tensile.learning.storage.row_storage import FileStorage
from indb_tensile.learning.training.preparation import assemble
from indb_tensile.learning.training.prepared_training import Prepared
from tests.learning.tables import bundle, spec, table

LONGEST = 32
BEFORE, BEHIND = 2, 3  # numbers of a row before the tokens of the column that is cut, and behind them
COLUMN = CutColumn(begin=BEFORE, end=BEFORE + LONGEST)
WORDS = ["server", "query", "index", "table", "sound", "music", "player", "codec"]
TOKENS = {"encode": {"body": "tokens", "title": "tokens"}, "vocabulary": 300, "length": {"body": 16, "title": 4}}


def settings_of(size: int, seed: int = 0) -> TrainingSettings:
    return TrainingSettings.parse({"batch_size": size, "seed": seed, "length_buckets": 4}, 100)


def part_of(lengths: Sequence[int]) -> Part:
    """Return rows with texts of these lengths; the first number of a row is its place."""
    x = torch.zeros(len(lengths), BEFORE + LONGEST + BEHIND)
    for row, length in enumerate(lengths):
        x[row, BEFORE : BEFORE + length] = 1 + torch.arange(length) + row % 7
    x[:, 0] = torch.arange(len(lengths))
    x[:, -1] = 1 + torch.arange(len(lengths))
    return Part(x=x, y=torch.arange(len(lengths)), targets=torch.arange(len(lengths)))


def buckets_of(lengths: Sequence[int], chosen: Sequence[int], size: int) -> LengthBuckets:
    of_row = np.searchsorted(chosen, np.array(lengths)).astype(np.uint8)
    return LengthBuckets(column=COLUMN, lengths=tuple(chosen), of_row=of_row, batch_rows=min(size, len(lengths)))


texts = st.lists(st.integers(0, LONGEST), min_size=2, max_size=120)


@given(texts, st.integers(1, 24), st.integers(0, 3), st.integers(0, 3))
def test_an_epoch_has_each_row_once_in_batches_of_like_length(
    lengths: list[int], size: int, epoch: int, seed: int
) -> None:
    part, settings = part_of(lengths), settings_of(size, seed)
    buckets = buckets_of(lengths, (8, 16, LONGEST), size)
    listed = list(batches(part, epoch, settings, buckets))
    plan = batch_plan(part.rows, settings)
    assert [len(batch) for batch in listed] == [plan.full_rows] * plan.full + [plan.tail_rows] * (plan.tail_rows > 0)
    seen = torch.cat(listed).tolist()
    assert len(seen) == len(set(seen)) == plan.full * plan.full_rows + plan.tail_rows

    own = [buckets.bucket_of(batch) for batch in listed]
    full = own[: plan.full]
    assert tuple(full.count(bucket) for bucket in range(3)) == buckets.full_batches
    assert all(
        max(lengths[row] for row in batch) <= buckets.lengths[at] for batch, at in zip(listed, own, strict=True)
    )
    mixed = sum(len({int(buckets.of_row[row]) for row in batch}) > 1 for batch in listed)
    assert mixed <= 3  # the last batch of each length, which has what other lengths have left
    again = batches(part, epoch, settings, buckets)
    assert all(torch.equal(first, second) for first, second in zip(listed, again, strict=True))


@given(texts, st.integers(1, 24))
def test_a_validation_pass_has_every_row_once_by_length(lengths: list[int], size: int) -> None:
    part, training = part_of(lengths), buckets_of([LONGEST] * 30, (8, 16, LONGEST), size)
    buckets = training.of_part(part)
    listed = list(ordered_batches(part, size, buckets))
    assert sorted(torch.cat(listed).tolist()) == list(range(len(lengths)))
    assert [len(batch) for batch in listed[:-1]] == [size] * (len(listed) - 1)
    longest = [max(int(buckets.of_row[row]) for row in batch) for batch in listed]
    assert longest == sorted(longest)


def test_epochs_and_seeds_put_other_rows_together() -> None:
    lengths = [1 + row % LONGEST for row in range(96)]
    buckets = buckets_of(lengths, (8, LONGEST), 8)

    def order(epoch: int, seed: int) -> tuple[int, ...]:
        return tuple(torch.cat(list(batches(part_of(lengths), epoch, settings_of(8, seed), buckets))).tolist())

    assert len({order(epoch, seed) for epoch in range(3) for seed in range(3)}) == 9


def test_lengths_alternate_within_an_epoch() -> None:
    lengths = [4 if row % 2 else LONGEST for row in range(400)]
    buckets = buckets_of(lengths, (4, LONGEST), 10)
    own = [buckets.bucket_of(batch) for batch in batches(part_of(lengths), 0, settings_of(10), buckets)]
    assert 5 < sum(own[:20]) < 15


def test_rows_of_many_windows_make_the_batches_of_rows_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = [4 if row % 9 else LONGEST for row in range(300)]
    buckets, part = buckets_of(lengths, (4, LONGEST), 16), part_of(lengths)
    monkeypatch.setattr(shuffling, "WINDOW_BYTES", 20 * part.x[:1].nbytes)
    monkeypatch.setattr(shuffling, "SHUFFLED_BLOCK_BYTES", 2 * part.x[:1].nbytes)
    listed = list(batches(part, 0, settings_of(16), buckets))
    assert sorted(torch.cat(listed).tolist()) == list(range(300))
    assert tuple(sum(buckets.bucket_of(b) == k for b in listed if len(b) == 16) for k in range(2)) == (
        buckets.full_batches
    )


@given(texts, st.integers(2, 16))
def test_a_batch_has_the_rows_without_padding_that_no_row_needs(lengths: list[int], size: int) -> None:
    part, settings = part_of(lengths), settings_of(size)
    buckets = buckets_of(lengths, (8, 16, LONGEST), size)
    sources = TrainingSources(part=part, settings=settings, buckets=buckets)
    with BatchPrefetcher() as feed:
        orders = batches(part, 0, settings, buckets)
        for rows, (x, y) in feed.batches(sources.parts_of, orders, sources.of_epoch(0)):
            length = buckets.lengths[buckets.bucket_of(rows)]
            assert torch.equal(x, COLUMN.cut(part.x[rows], length))
            assert torch.equal(y, rows)
            assert x[:, :BEFORE].equal(part.x[rows, :BEFORE])
            assert x[:, -BEHIND:].equal(part.x[rows, -BEHIND:])


def test_rows_in_a_file_make_the_batches_of_rows_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = [4 if row % 9 else LONGEST for row in range(600)]
    part, settings, buckets = part_of(lengths), settings_of(16), buckets_of(lengths, (4, LONGEST), 16)
    monkeypatch.setattr(shuffling, "WINDOW_BYTES", 20 * part.x[:1].nbytes)
    monkeypatch.setattr(shuffling, "SHUFFLED_BLOCK_BYTES", 2 * part.x[:1].nbytes)
    storage = FileStorage(tmp_path / "rows")
    stored = []
    for tensor in (part.x, part.y):
        array = storage.array(part.rows, tuple(tensor.shape[1:]), tensor.numpy().dtype)
        array.write(0, tensor.numpy())
        stored.append(torch.from_numpy(array.values))

    def fed(own: Part) -> list[bytes]:
        sources = TrainingSources(part=own, settings=settings, buckets=buckets)
        orders = batches(own, 0, settings, buckets)
        with BatchPrefetcher() as feed:
            loaded = feed.batches(sources.parts_of, orders, sources.of_epoch(0))
            return [tensor.numpy().tobytes() for _, batch in loaded for tensor in batch]

    assert fed(replace(part, x=stored[0], y=stored[1], storage=storage)) == fed(part)


def test_batches_of_different_shapes_need_sources() -> None:
    part = part_of([1, 2])
    with BatchPrefetcher() as feed, pytest.raises(InvariantError, match="need sources"):
        next(feed.batches(lambda _: (part.x, part.y), [torch.arange(2)]))


@given(st.lists(st.integers(0, 64), min_size=1, max_size=80), st.integers(1, 5), st.integers(1, 20))
def test_no_other_lengths_of_so_many_need_fewer_tokens(lengths: list[int], most: int, size: int) -> None:
    size = min(size, len(lengths))
    chosen = choose_lengths(np.array(lengths), 64, most, size)
    assert len(chosen) <= most
    assert [*sorted(set(chosen) - {64}), 64] == list(chosen)
    of_row = np.searchsorted(chosen, lengths)
    assert len(chosen) == 1 or np.bincount(of_row, minlength=len(chosen)).min() >= size
    if len(chosen) == 2:
        needed = np.array(chosen)[of_row].sum()
        for other in range(4, 64, 4):
            short = sum(length <= other for length in lengths)
            if min(short, len(lengths) - short) >= size:
                assert needed <= other * short + 64 * (len(lengths) - short)


def test_texts_of_one_length_have_one_bucket() -> None:
    assert choose_lengths(np.full(100, 60), 64, 4, 10) == (64,)


def test_lengths_that_save_little_are_not_chosen() -> None:
    two_kinds = np.array([8] * 500 + [64] * 500)
    assert choose_lengths(two_kinds, 64, 4, 10) == (8, 64)


def test_the_longest_column_is_the_one_that_short_batches_lack() -> None:
    assert cut_lengths([4, 16, 16], 36) == [4, 16, 16]
    assert cut_lengths([4, 16, 16], 28) == [4, 8, 16]


def prepared(rows: int = 200, **options: Any) -> Prepared:
    """Return a training on texts of one to sixteen words, of which most are short, beside a number."""
    drawn = np.random.default_rng(5)
    listed = []
    for row in range(rows):
        words = 16 if row % 5 == 0 else 1 + row % 4
        body = " ".join(drawn.choice(WORDS[: 4 + 4 * (row % 2)], words))
        listed.append((row, body, "a title", float(row), "ab"[row % 2]))
    columns = [("id", "bigint"), ("body", "text"), ("title", "text"), ("n", "double precision"), ("y", "text")]
    hyperparams = {"epochs": 2, "batch_size": 16, "length_buckets": 3}
    arguments: dict[str, Any] = {"preprocess": TOKENS, "hyperparams": hyperparams, **options}
    return assemble(table(columns, listed), spec("y", **arguments))


@pytest.mark.parametrize("encoder", ["pooling", "convolution", "transformer"])
@pytest.mark.parametrize("kind", ["wide_and_deep", "ft_transformer"])
def test_a_network_answers_the_same_for_rows_without_their_padding(kind: str, encoder: str) -> None:
    own = prepared(architecture={"type": kind, "text_encoder": encoder})
    assert own.buckets is not None
    short = np.flatnonzero(own.buckets.of_row == 0)
    whole = own.train.chosen(short)
    cut = own.buckets.column.cut(whole, own.buckets.lengths[0])
    module = own.module.eval()
    with torch.inference_mode():
        torch.testing.assert_close(module(cut), module(whole))
    assert cut.shape[1] < whole.shape[1]


@given(texts, st.integers(1, 20), st.sampled_from([12, LONGEST]))
def test_passes_of_predictions_have_every_row_once_and_all_of_its_tokens(
    lengths: list[int], most: int, longest: int
) -> None:
    lengths = [min(length, longest) for length in lengths]
    x, column = part_of(lengths).x[:, : BEFORE + longest].numpy(), CutColumn(begin=BEFORE, end=BEFORE + longest)
    passes = list(passes_of_short_rows(x, column, most))
    assert sorted(np.concatenate([places for places, _ in passes]).tolist()) == list(range(len(lengths)))
    for places, rows in passes:
        length = rows.shape[1] - BEFORE
        own = [lengths[place] for place in places.tolist()]
        assert len(own) <= most
        assert max(own) <= length <= max(8, min(longest, 2 * max(own)))
        assert (rows == x[places, : BEFORE + length]).all()


@pytest.mark.parametrize("encoder", ["pooling", "convolution", "transformer"])
def test_predictions_of_short_texts_are_those_with_their_padding(encoder: str) -> None:
    own = prepared(architecture={"type": "wide_and_deep", "text_encoder": encoder})
    model = ModelPredictor(bundle(own))
    x = torch.as_tensor(own.train.unpacked[:])
    with torch.inference_mode():
        whole = own.module.eval()(x).numpy()
    np.testing.assert_allclose(model.outputs(x.numpy()), whole, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(model.outputs(x[:1].numpy()), whole[:1], rtol=1e-4, atol=1e-5)
    assert model.outputs(x[:0].numpy()).shape == (0, 2)


def test_the_buckets_are_those_of_the_longest_column_of_the_training_rows() -> None:
    own = prepared()
    assert own.buckets is not None
    assert own.buckets.column.name == "body"
    body = own.train.x[:, own.buckets.column.begin : own.buckets.column.end]
    needed = (body != 0).sum(dim=1).numpy()
    assert (needed <= np.array(own.buckets.lengths)[own.buckets.of_row]).all()
    assert own.buckets.token_share < 0.7


def test_one_length_or_none_makes_no_buckets() -> None:
    own = prepared()
    for most in (None, 1):
        assert length_buckets(own.train, own.preprocessor, most, 16) is None
    few = replace(own.train, x=own.train.x[:8], y=own.train.y[:8])
    assert length_buckets(few, own.preprocessor, 3, 16) is None


def test_buckets_need_a_column_of_tokens() -> None:
    with pytest.raises(RequestError, match='"length_buckets" needs texts that are read as tokens') as caught:
        prepared(preprocess={}, architecture={"type": "wide_and_deep"})
    assert '"encode"' in (caught.value.hint or "")
