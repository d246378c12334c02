"""The networks for tables embed numbers and categories, and an ensemble predicts the mean of its members."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from indb_tensile.bench.harness.tables.sample_tables import make_table
from indb_tensile.errors import RequestError
from indb_tensile.job import JobSpec, Relation, Task
from indb_tensile.learning.models.artifacts import ModelBundle
from indb_tensile.learning.models.model_predictor import ModelPredictor
from indb_tensile.learning.networks.architectures import build, without_layout
from indb_tensile.learning.networks.row_embeddings import CategoryEmbedding, PiecewiseLinearEmbedding, fit_embeddings
from indb_tensile.learning.networks.tabm import MemberLoss, TabM
from indb_tensile.learning.storage.columns import ColumnData, ColumnKind
from indb_tensile.learning.training.preparation import assemble
from indb_tensile.learning.training.prepared_training import Prepared
from indb_tensile.request.network_rules import (
    NUMBER_EMBEDDINGS,
    TABLE_ARCHITECTURES,
    check_architecture,
    weights_misfit,
)
from tests.nightly import few_examples

LAYOUT = {"numbers": 3, "categories": [2, 5]}
WIDTH = 7  # three numbers, two other values, two categories


def encoded(rows: int) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.cat([torch.randn(rows, 5), torch.randint(2, (rows, 1)), torch.randint(5, (rows, 1))], dim=1)


def columns(rows: int) -> dict[str, ColumnData]:
    """Return a number, a text of four values, and a label that both decide."""
    drawn = np.random.default_rng(1)
    x, place = drawn.normal(size=rows), drawn.integers(0, 4, rows)
    texts, none = np.array(["a", "b", "c", "d"], object)[place], np.zeros(rows, np.bool_)
    label = np.array(["no", "yes"], object)[((x > 0) ^ (place % 2 == 0)).astype(int)]
    absent = none.copy()
    absent[::10] = True
    return {
        "x": ColumnData(kind=ColumnKind.FLOAT, values=x, missing=none),
        "kind": ColumnData(kind=ColumnKind.TEXT, values=texts, missing=absent),
        "label": ColumnData(kind=ColumnKind.TEXT, values=label, missing=none),
    }


def prepared(architecture: dict[str, Any], rows: int = 200, **options: Any) -> Prepared:
    spec = JobSpec(
        model="m",
        relation=Relation(oid=1, schema="public", name="t"),
        target="label",
        task=Task.CLASSIFICATION,
        architecture=architecture,
        **options,
    )
    return assemble(make_table(columns(rows)), spec)


@pytest.mark.parametrize("embedding", NUMBER_EMBEDDINGS)
@pytest.mark.parametrize("kind", TABLE_ARCHITECTURES)
def test_every_weight_learns_with_every_embedding(kind: str, embedding: str) -> None:
    module = build({"type": kind, "number_embedding": embedding, **LAYOUT}, (WIDTH,), 3)
    x = encoded(20)
    fit_embeddings(module, x)
    MemberLoss(nn.CrossEntropyLoss())(module(x), torch.arange(20) % 3).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in module.parameters())
    assert module.eval()(x).shape == (20, 3)


@pytest.mark.parametrize("kind", TABLE_ARCHITECTURES)
@pytest.mark.parametrize(("numbers", "categories"), [(0, []), (WIDTH, []), (0, [2, 5])])
def test_a_row_may_lack_numbers_or_categories(kind: str, numbers: int, categories: list[int]) -> None:
    module = build({"type": kind, "numbers": numbers, "categories": categories}, (WIDTH,), 1)
    assert module.eval()(encoded(4)).shape == (4, 1)


@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=2, max_size=40), st.integers(2, 8))
@few_examples()
def test_bins_rise_from_zero_at_the_least_number_to_all_at_the_largest(values: list[float], bins: int) -> None:
    embedding = PiecewiseLinearEmbedding(1, bins, 4)
    x = torch.tensor(values)[:, None]
    embedding.fit(x)
    shares = (x.sort(dim=0).values.unsqueeze(-1) * embedding.inverse_widths - embedding.starts).clamp(0, 1)
    assert shares.isfinite().all()
    assert (shares.diff(dim=0) >= -1e-3).all()  # widths of neighbouring floats round
    if bool((x == x[0]).all()):
        assert (embedding.inverse_widths == 0).all()


def test_bins_are_the_quantiles_and_are_stored_with_the_weights() -> None:
    module = build({"type": "tabm", "bins": 4, "numbers": 1}, (1,), 2)
    fit_embeddings(module, torch.arange(101.0)[:, None])
    state = module.state_dict()
    assert state["embedding.numbers.inverse_widths"].tolist() == [pytest.approx([1 / 25] * 4)]
    assert state["embedding.numbers.starts"].tolist() == [pytest.approx([0.0, 1.0, 2.0, 3.0])]


def test_columns_of_categories_share_no_vector() -> None:
    embedding = CategoryEmbedding((2, 3), 4)
    vectors = embedding(torch.tensor([[1.0, 0.0], [0.0, 2.0]]))
    assert torch.equal(vectors[0], embedding.weight[[1, 2]])
    assert torch.equal(vectors[1], embedding.weight[[0, 4]])


def test_an_ensemble_predicts_the_mean_of_its_members() -> None:
    x = encoded(6)
    classes = build({"type": "tabm", "dropout": 0, **LAYOUT}, (WIDTH,), 3)
    members = classes(x)
    assert members.shape == (6, 8, 3)
    assert not torch.equal(members[:, 0], members[:, 1])
    torch.testing.assert_close(classes.eval()(x).softmax(-1), members.softmax(-1).mean(1))
    values = build({"type": "tabm", "dropout": 0, **LAYOUT}, (WIDTH,), 1)
    torch.testing.assert_close(values(x).mean(1), values.eval()(x))


def test_each_member_learns_from_each_row() -> None:
    outputs, targets = torch.randn(4, 3, 2), torch.tensor([0, 1, 1, 0])
    own = torch.stack([nn.functional.cross_entropy(outputs[:, member], targets) for member in range(3)])
    loss = MemberLoss(nn.CrossEntropyLoss())
    torch.testing.assert_close(loss(outputs, targets), own.mean())
    torch.testing.assert_close(loss(outputs[:, 0], targets), own[0])


def test_a_text_becomes_the_number_of_its_category() -> None:
    job = prepared({"type": "tabm"})
    assert job.architecture["numbers"] == 1
    assert job.architecture["categories"] == [6]  # four texts, others, missing ones
    assert job.input_shape == (2,)
    assert set(job.train.x[:, 1].tolist()) <= {0.0, 1.0, 2.0, 3.0, 5.0}
    assert isinstance(job.loss, MemberLoss)
    assert isinstance(job.module, TabM)


def test_a_requested_encoding_is_kept_and_other_networks_have_ones_and_zeros() -> None:
    one_hot = prepared({"type": "dcn"}, preprocess={"encode": "onehot"})
    assert (one_hot.architecture["categories"], one_hot.input_shape) == ([], (7,))
    assert prepared({"type": "mlp"}).input_shape == (7,)
    assert prepared({"type": "auto"}).input_shape == (7,)


def test_auto_embeds_the_numbers_and_categories_of_a_larger_table() -> None:
    job = prepared({"type": "auto"}, rows=2000)
    assert (job.architecture["type"], job.architecture["numbers"], job.architecture["categories"]) == (
        "wide_and_deep",
        1,
        [6],
    )
    assert job.auto_reason.endswith("2 of the features are numbers or categories")
    assert any(isinstance(part, PiecewiseLinearEmbedding) for part in job.module.modules())


def test_counts_that_the_columns_do_not_give_are_refused() -> None:
    with pytest.raises(RequestError, match='"numbers" is 2, the columns give 1') as caught:
        prepared({"type": "tabm", "numbers": 2})
    assert "counted" in caught.value.hint
    assert "numbers" not in without_layout(prepared({"type": "tabm"}).architecture)


def test_a_stored_model_predicts_as_the_network_did() -> None:
    job = prepared({"type": "tabm"})
    bundle = ModelBundle(
        architecture=job.architecture,
        input_shape=job.input_shape,
        outputs=job.outputs,
        task=job.task,
        preprocessor=job.preprocessor,
        weights=job.module.state_dict(),
    )
    loaded = ModelPredictor.load(bundle.to_json(), bundle.to_bytes())
    rows = [{"x": 0.5, "kind": "b"}, {"x": -1.0, "kind": None}, {"x": 0.0, "kind": "new"}]
    x = torch.from_numpy(job.preprocessor.transform_rows(rows))
    assert x[:, 1].tolist() == [1.0, 5.0, 4.0]
    expected = job.module.eval()(x).softmax(-1)
    own = torch.tensor([prediction.probabilities for prediction in loaded.predict_rows(rows)])
    torch.testing.assert_close(own, expected.detach())


@pytest.mark.parametrize(
    ("architecture", "fault", "hint"),
    [
        ({"type": "tabm", "members": 0}, '"members" is 0', "at least 1"),
        ({"type": "tabm", "hidden": []}, r'"hidden" is \[\]', "length 1 to 64"),
        ({"type": "dcn", "number_embedding": "fourier"}, '"number_embedding" is "fourier"', "periodic"),
        (
            {"type": "dcn", "frequencies": 3},
            '"frequencies" means nothing with .* piecewise',
            "periodic",
        ),
        ({"type": "tabm", "number_embedding": "none", "bins": 3}, '"bins" means nothing', "piecewise"),
        ({"type": "ft_transformer", "embedding_width": 6}, "6 cannot be split into 4 heads", "one of 1, 2, 3, 6"),
        ({"type": "wide_and_deep", "blocks": 2}, 'unknown parameter "blocks"', "hidden"),
        ({"type": "residual_mlp", "input_shape": [3]}, 'unknown parameter "input_shape"', "width"),
    ],
)
def test_a_wrong_parameter_is_refused(architecture: dict[str, Any], fault: str, hint: str) -> None:
    with pytest.raises(RequestError, match=fault) as caught:
        check_architecture(architecture)
    assert hint in caught.value.hint


def test_more_values_than_a_row_has_are_refused() -> None:
    with pytest.raises(
        RequestError, match="6 numbers, 2 categories, 0 tokens and the pixels of 0 images are more than the 7"
    ):
        build({"type": "tabm", **LAYOUT, "numbers": 6}, (WIDTH,), 2)


def test_weights_of_another_ensemble_do_not_fit() -> None:
    assert weights_misfit({"type": "tabm"}, {"type": "tabm", "members": 4}) == '"members" is 8, and not 4'
    assert weights_misfit({"type": "tabm"}, {"type": "tabm", "dropout": 0.5}) == ""
