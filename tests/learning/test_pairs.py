"""Pairs: two towers, a loss over the items of a batch, ranks beside popularity, and each side embedded by itself."""

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from indb_tensile.errors import MissingError, RequestError
from indb_tensile.job import JobSpec, Relation, Task
from indb_tensile.learning.encoding.pair_encoding import (
    PairEncoding,
    item_numbers_of_rows,
    item_ranges,
    loss_targets,
    popularity_metrics,
)
from indb_tensile.learning.encoding.side_recipe import of_features
from indb_tensile.learning.models.artifacts import ModelBundle
from indb_tensile.learning.models.model_predictor import ModelPredictor
from indb_tensile.learning.networks.two_towers import InBatchSoftmax, TwoTowers
from indb_tensile.learning.storage.columns import TableData
from indb_tensile.learning.training.preparation import assemble
from indb_tensile.learning.training.prepared_training import Prepared
from tests.learning import pictures
from tests.learning.tables import table
from worker.training.publication import judge

DESCRIBED = [
    ("id", "int"),
    ("wants", "text"),
    ("age", "double precision"),
    ("product", "text"),
    ("size", "int"),
    ("note", "text"),
]
ITEMS = ("product", "size", "note")


def rows(count: int = 240) -> TableData:
    """Return rows whose product follows from what is wanted; some values on both sides are missing."""

    def row(n: int) -> tuple[Any, ...]:
        item = n % 6
        note = None if item == 2 else f"a note about {item} and {item // 2}"
        return n, f"w{item}", None if n % 5 == 0 else float(n % 7), f"p{item}", item // 2, note

    return table(DESCRIBED, [row(n) for n in range(count)])


def prepared(read: TableData, **options: Any) -> Prepared:
    spec = JobSpec(
        model="m",
        relation=Relation(oid=1, schema="public", name="t"),
        task=Task.PAIRS,
        **{
            "target": '["product", "size", "note"]',
            "targets": ITEMS,
            "architecture": {"type": "two_towers", "width": 4, "hidden": [8]},
            "exclude": ("id",),
            "preprocess": {"encode": {"note": "tokens"}, "missing": {"age": "indicator"}},
            "hyperparams": {"batch_size": 32},
        }
        | options,
    )
    return assemble(read, spec)


def test_the_towers_read_the_columns_of_their_side_alone() -> None:
    made = prepared(rows())
    assert isinstance(made.module, TwoTowers)
    ranges = made.architecture["item_ranges"]
    names = {part.feature: part for part in made.preprocessor.parts}
    item = {place for begin, end in zip(ranges[::2], ranges[1::2], strict=True) for place in range(begin, end)}
    for feature, part in names.items():
        assert (part.begin in item) == (feature in ITEMS)
    module = made.module.eval()
    x = made.train.x[:8].clone()
    before = module(x)
    assert before.shape == (8, 8)
    x[:, sorted(item)] = x[:1, sorted(item)]
    after = module(x)
    assert torch.equal(before[:, :4], after[:, :4])
    assert not torch.equal(before[:, 4:], after[:, 4:])
    assert torch.allclose(after[:, 4:].norm(dim=1), torch.ones(8))
    assert torch.allclose(after[:, :4].norm(dim=1), torch.full((8,), 1 / 0.07))
    fixed = prepared(rows(), architecture={"type": "two_towers", "width": 4, "temperature": 0.5}).module.eval()
    assert torch.allclose(fixed(x)[:, :4].norm(dim=1), torch.full((8,), 2.0))


def test_rows_have_the_same_item_if_its_columns_are_equal() -> None:
    made = prepared(rows())
    numbers = made.train.targets.numpy()
    assert len(np.unique(numbers)) == 6
    by_product = made.train.x[:, int(made.preprocessor.positions["product"][0])].numpy()
    assert all(len(np.unique(by_product[numbers == number])) == 1 for number in numbers)
    counts = {int(number): int((numbers == number).sum()) for number in numbers}
    for number, (code, logarithm) in zip(numbers.tolist(), made.train.y.tolist(), strict=True):
        assert code < 6
        assert logarithm == pytest.approx(math.log(counts[number] / len(numbers)), abs=1e-6)


def test_the_loss_is_the_cross_entropy_among_other_items_corrected_for_their_frequency() -> None:
    torch.manual_seed(0)
    outputs, logarithms = torch.randn(6, 10), -torch.rand(6)
    numbers = torch.tensor([0.0, 1, 2, 0, 3, 3])
    targets = torch.stack([numbers, logarithms], dim=1)
    logits = outputs[:, :5] @ outputs[:, 5:].T - logarithms
    kept = (numbers[:, None] != numbers) | torch.eye(6, dtype=torch.bool)
    expected = functional.cross_entropy(logits.masked_fill(~kept, -torch.inf), torch.arange(6))
    assert torch.allclose(InBatchSoftmax(6)(outputs, targets), expected, atol=1e-5)
    halves = [InBatchSoftmax(4)(outputs[own], targets[own]) for own in (slice(0, 4), slice(4, 6))]
    together = InBatchSoftmax(4)(outputs, targets)
    assert torch.allclose(together, (4 * halves[0] + 2 * halves[1]) / 6)
    alone = InBatchSoftmax(4)(outputs[:1].requires_grad_(), targets[:1])
    alone.backward()
    assert float(alone.detach()) == 0.0


def test_frequencies_are_those_of_the_training_rows() -> None:
    train, valid = np.array([7, 7, -3, 9]), np.array([9, 100])
    ours, theirs = loss_targets([train, valid])
    assert ours.tolist() == [
        [1.0, pytest.approx(math.log(0.5))],
        [1.0, pytest.approx(math.log(0.5))],
        [0.0, pytest.approx(math.log(0.25))],
        [2.0, pytest.approx(math.log(0.25))],
    ]
    assert theirs.tolist() == [[2.0, pytest.approx(math.log(0.25))], [3.0, pytest.approx(math.log(0.25))]]


def test_items_are_ranked_by_similarity_and_beside_them_by_popularity() -> None:
    pair = PairEncoding(items=("i",), width=2)
    angles = np.array([0.0, 0.1, 1.5, 0.3])
    items = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    queries = np.array([[3.0, 0], [3.0, 0], [0, 1.0], [1.0, 0]])
    outputs = np.hstack([queries, items]).astype(np.float32)
    numbers = np.array([4, 5, 6, 7])
    assert pair.metrics(outputs, numbers) == {
        "mrr": pytest.approx((1 + 1 / 2 + 1 + 1 / 3) / 4),
        "recall_at_1": 0.5,
        "recall_at_10": 1.0,
    }
    assert pair.metrics(np.full_like(outputs, np.nan), numbers)["mrr"] == 0.25
    assert pair.similarities(outputs)[:1] == pytest.approx([1.0])
    # Item 5 is the most frequent one, 4 and 6 share the next two ranks, and 7 has not been seen.
    popular = popularity_metrics(np.array([5, 5, 4, 6, 8, 8, 8]), np.array([4, 5, 6, 7, 5]))
    assert popular["mrr"] == pytest.approx((1 / 2.5 + 1 + 1 / 2.5 + 1 / 4 + 1) / 5)
    assert popular["recall_at_1"] == pytest.approx(2 / 5)


def test_adjacent_numbers_of_an_item_are_one_range() -> None:
    parts = [("a", 0, 1), ("b", 1, 2), ("c", 2, 5), ("d", 5, 5), ("e", 5, 6), ("c", 6, 7)]
    assert item_ranges(parts, ("b", "c", "d")) == (1, 5, 6, 7)


def test_a_version_embeds_each_side_as_it_does_the_pair_and_is_restored() -> None:
    made = prepared(rows())
    judged = judge(made, {name: own.detach() for name, own in made.module.state_dict().items()})
    assert set(judged.metrics) == {"mrr", "recall_at_1", "recall_at_10"}
    assert judged.figures["baseline"]["name"] == "popularity"
    bundle = ModelBundle.load(judged.bundle.to_json(), judged.bundle.to_bytes())
    model = ModelPredictor(bundle)
    whole: list[dict[str, Any]] = [
        {"wants": "w1", "age": 3.0, "product": "p1", "size": 0, "note": None},
        {"wants": None, "age": None, "product": "unseen", "size": None, "note": "a note about 4"},
    ]
    query = model.side("query")([{name: row[name] for name in ("wants", "age")} for row in whole])
    item = model.side("item")([{name: row[name] for name in ITEMS} for row in whole])
    assert query.shape == item.shape == (2, 4)
    similarities = [prediction.value for prediction in model.predict_rows(whole)]
    assert (query * item).sum(axis=1) == pytest.approx(similarities, abs=1e-6)
    assert list(model.side("item").feature_kinds) == list(ITEMS)
    with pytest.raises(RequestError, match="side is left out"):
        model.embeddings(model.transform(whole))
    with pytest.raises(RequestError, match='side is "product"') as caught:
        model.side("product")
    assert caught.value.hint == "Give one of query, item."


def test_rows_without_an_item_are_left_out() -> None:
    read = table(DESCRIBED, [(n, f"w{n % 3}", 1.0, *((f"p{n % 3}", 1, None) if n < 30 else (None,) * 3))
                             for n in range(40)])  # fmt: skip
    assert prepared(read).unlabeled_rows == 10


def test_text_towers_are_linear_and_others_have_a_hidden_layer() -> None:
    texts = prepared(rows(), architecture={"type": "auto"}, features=("wants",),
                     preprocess={"encode": "tokens"}, target="note", targets=())  # fmt: skip
    assert texts.architecture["hidden"] == []
    assert "hidden" not in prepared(rows(), architecture={"type": "auto"}).architecture


def test_each_side_is_encoded_as_its_numbers_in_the_whole_row() -> None:
    # Columns of many kinds are on both sides, in turns.
    kinds = ("double precision", "boolean", "text", "date", "real[]", "text[]", "bytea")
    described = [("id", "int"), *((f"{side}{place}", kind) for place, kind in enumerate(kinds) for side in "qi")]
    photos = [pictures.as_hex(pictures.encoded(pictures.stripes(9, height), "PNG")) for height in (8, 9, 10)]

    def row(n: int) -> tuple[Any, ...]:
        own = (
            n % 9 + 0.5,
            n % 2 == 0,
            f"t{n % 4}",
            f"2024-01-{1 + n % 28:02}",
            [n % 3, 1.0],
            [f"l{n % 3}"],
            photos[n % 3],
        )
        doubled = [value for value in own for _ in "qi"]
        return n, *(None if (n + place) % 10 == 0 else value for place, value in enumerate(doubled))

    items = tuple(f"i{place}" for place in range(len(kinds)))
    encode = {"q2": "tokens", "q6": "image", "i6": "image"}
    read = table(described, [row(n) for n in range(80)])
    made = prepared(read, target=json.dumps(items), targets=items, architecture={"type": "auto"},
                    preprocess={"encode": encode, "missing": {"q0": "indicator", "i4": "indicator"}})  # fmt: skip
    towers = made.module
    assert isinstance(towers, TwoTowers)
    whole = torch.from_numpy(made.preprocessor.transform(made.held_out))
    for side, own in (("query", "q"), ("item", "i")):
        features = [name for name, _ in described[1:] if name.startswith(own)]
        alone = of_features(made.preprocessor, features)
        assert alone.recipe.features == tuple(features)
        assert np.array_equal(alone.transform(made.held_out), towers.rows_of(side, whole).numpy())


def test_items_of_rows_from_sql_are_told_apart_by_their_values() -> None:
    rows_of_sql: list[dict[str, Any]] = [
        {"a": 1, "b": None},
        {"b": None, "a": 1, "c": 2},
        {"a": 1, "b": "x"},
        {"a": None, "b": "x"},
    ]
    numbers = item_numbers_of_rows(rows_of_sql, ("a", "b")).tolist()
    assert numbers[0] == numbers[1]
    assert len(set(numbers)) == 3
    with pytest.raises(MissingError, match='no target column "b"'):
        item_numbers_of_rows([{"a": 1}], ("a", "b"))
