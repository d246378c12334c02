"""Check which encoders and weights a training takes over from another version, and which misfits are refused."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from indb_tensile.errors import RequestError
from indb_tensile.job import Task
from indb_tensile.learning.encoding.preprocessor import Preprocessor
from indb_tensile.learning.storage.columns import TableData
from indb_tensile.learning.training.preparation import assemble
from indb_tensile.learning.training.prepared_training import Prepared
from indb_tensile.learning.training.starting_weights import StartingWeights
from tests.learning.tables import bundle, spec, table, train

COLUMNS = [
    ("id", "bigint"),
    ("size", "double precision"),
    ("count", "int"),
    ("kind", "text"),
    ("day", "date"),
    ("shape", "real[]"),
    ("y", "text"),
]
MLP = {"type": "mlp", "hidden": [8], "dropout": 0.1}


def rows(shift: int = 0, labels: str = "ab", kinds: str = "xyz") -> TableData:
    return table(COLUMNS, listed(shift, labels, kinds))


def listed(shift: int, labels: str, kinds: str) -> list[tuple[Any, ...]]:
    return [
        (
            i,
            float(i % 7 + shift),
            i % 5 + shift if i % 9 else None,
            kinds[i % len(kinds)],
            f"2026-01-{i % 28 + 1:02d}",
            [float(i % 3), float(i % 4 + shift)],
            labels[i % len(labels)],
        )
        for i in range(1, 121)
    ]


def prepared(data: TableData, **options: Any) -> Prepared:
    settings: dict[str, Any] = {"architecture": MLP, "hyperparams": {"epochs": 2}, "exclude": ("id",), **options}
    start = settings.pop("start", None)
    return assemble(data, spec("y", **settings), start=start)


def started(origin: Prepared) -> StartingWeights:
    return StartingWeights(model="flowers", version=3, bundle=bundle(origin))


@pytest.fixture(scope="module")
def origin() -> Prepared:
    made = prepared(rows())
    train(made)
    return made


def test_weights_and_encoders_are_those_of_the_version(origin: Prepared) -> None:
    again = prepared(rows(shift=100, labels="ba", kinds="xyzw"), start=started(origin), architecture={"type": "auto"})

    assert again.architecture == MLP
    assert again.preprocessor.recipe == origin.preprocessor.recipe
    assert again.init_from == {"model": "flowers", "version": 3}
    states = zip(again.module.state_dict().values(), origin.module.state_dict().values(), strict=True)
    assert all(torch.equal(own, old) for own, old in states)
    fresh = prepared(rows())
    assert not torch.equal(next(iter(fresh.module.parameters())), next(iter(again.module.parameters())))
    train(again)
    assert not torch.equal(next(iter(origin.module.parameters())), next(iter(again.module.parameters())))


def test_a_column_with_options_of_its_own_is_encoded_anew(origin: Prepared) -> None:
    options = {"standardize": {"size": False}, "missing": {"count": "zero"}}
    again = prepared(rows(shift=100), start=started(origin), preprocess=options)

    numbers, old = again.preprocessor.recipe.numbers, origin.preprocessor.recipe.numbers
    assert numbers.names == old.names == ("size", "count")
    assert (numbers.mean[0], numbers.scale[0]) == (0.0, 1.0)
    assert numbers.mean[1] > 100
    assert again.preprocessor.recipe.arrays == origin.preprocessor.recipe.arrays


def test_texts_scalings_and_replacements_are_kept_where_their_options_are_unchanged() -> None:
    options = {
        "encode": {"place": "target", "grade": "ordinal", "mark": "hash"},
        "scale": {"size": "quantile", "weight": "log"},
        "missing": "most_frequent",
    }
    origin = prepared(_texts(0), preprocess=options)
    again = prepared(_texts(50), preprocess=options, start=started(origin))
    assert again.preprocessor.recipe == origin.preprocessor.recipe
    own = {tuple(row) for row in again.train.x[:, _place(again)].tolist()}
    assert own - {
        tuple(row) for row in np.array(origin.preprocessor.recipe.target_means[0].means, np.float32).tolist()
    }

    changed = {**options, "scale": {"size": "power", "weight": "log"}, "encode": {"place": "target", "grade": "hash"}}
    recipe, old = prepared(_texts(50), preprocess=changed).preprocessor.recipe, origin.preprocessor.recipe
    mixed = StartingWeights.keep_encoders(started(origin), Preprocessor(recipe), changed).recipe
    assert (mixed.numbers.scalings["size"], mixed.numbers.scalings["weight"]) == (
        recipe.numbers.scalings["size"],
        old.numbers.scalings["weight"],
    )
    assert (mixed.hashed, mixed.target_means) == (recipe.hashed, old.target_means)
    assert mixed.fills == {"place": old.fills["place"], "grade": recipe.fills["grade"], "mark": recipe.fills["mark"]}
    other_classes = replace(recipe, target=replace(recipe.target, labels=("a", "b", "c")))
    kept = StartingWeights.keep_encoders(started(origin), Preprocessor(other_classes), options).recipe
    assert kept.target_means == recipe.target_means


def _place(made: Prepared) -> list[int]:
    return [place for place, name in enumerate(made.preprocessor.outputs) if name.startswith("place mean")]


def _texts(shift: int) -> TableData:
    names = ("size", "weight", "place", "grade", "mark", "y")
    described = [("id", "bigint"), *((name, "double precision" if name in names[:2] else "text") for name in names)]
    return table(
        described,
        [
            (
                *(i, i % 9 + shift, float(i % 7 + shift)),
                *(f"{text}{(i + shift) % 4}" if i % 5 else None for text in ("p", "g", "m")),
                "ab"[(i // 4) % 2],
            )
            for i in range(1, 121)
        ],
    )


def test_regression_keeps_the_scale_of_the_target() -> None:
    origin = prepared(_numbers(1.0), task=Task.REGRESSION)
    again = prepared(_numbers(1000.0), task=Task.REGRESSION, start=started(origin))
    assert again.preprocessor.target == origin.preprocessor.target
    assert float(again.train.y.mean()) > 100


def test_another_kind_of_output_gets_its_own_scale_of_the_target() -> None:
    origin = prepared(_numbers(1.0), task=Task.REGRESSION)
    counts: dict[str, Any] = {"task": Task.REGRESSION, "hyperparams": {"epochs": 2, "loss": "poisson"}}
    again = prepared(_numbers(1000.0), start=started(origin), **counts)
    assert again.preprocessor.target == prepared(_numbers(1000.0), **counts).preprocessor.target
    further = prepared(_numbers(5.0), start=started(again), **counts)
    assert further.preprocessor.target == again.preprocessor.target


def _numbers(factor: float) -> TableData:
    return table(
        [("id", "bigint"), ("x", "double precision"), ("y", "double precision")],
        [(i, float(i % 11), factor * (i % 7)) for i in range(60)],
    )


def test_frozen_layers_keep_the_weights_of_the_version(origin: Prepared) -> None:
    again = prepared(rows(shift=3), start=started(origin), hyperparams={"epochs": 2, "freeze": ["1"]})
    trainable = {name: parameter.requires_grad for name, parameter in again.module.named_parameters()}
    assert trainable == {"1.weight": False, "1.bias": False, "4.weight": True, "4.bias": True}
    assert again.settings.to_hyperparams()["freeze"] == ["1"]
    for layers, message in ((["1", "2"], r'names layer "2", and'), (["1", "4"], "names all layers with weights")):
        with pytest.raises(RequestError, match=message) as caught:
            prepared(rows(), hyperparams={"freeze": layers})
        assert caught.value.hint


def test_dropout_shifts_the_names_of_layers_and_not_their_order(origin: Prepared) -> None:
    again = prepared(rows(), start=started(origin), architecture={"type": "mlp", "hidden": [8]})
    assert torch.equal(next(iter(again.module.parameters())), next(iter(origin.module.parameters())))


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (
            rows(labels="cde"),
            {},
            r'init_from: layer "4.weight" has shape \[3, 8\], and in version 3 of model "flowers" '
            r'layer "4.weight" has shape \[2, 8\]',
        ),
        (rows(), {"architecture": {"type": "mlp", "hidden": [4]}}, r'layer "1.weight" has shape \[4, 14\], and in'),
        (
            rows(),
            {"exclude": ("id", "size")},
            r'the training is without "size", from which version 3 of model "flowers" learned',
        ),
        (rows(), {"architecture": {"type": "mlp", "hidden": [8, 8]}}, r'layer "3.weight" has shape \[8, 8\], and in'),
    ],
)
def test_what_does_not_fit_is_refused_with_layer_and_shapes(
    origin: Prepared, data: TableData, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        prepared(data, start=started(origin), **options)
    assert caught.value.detail
    assert caught.value.hint


def test_another_number_of_layers_or_another_task_is_refused(origin: Prepared) -> None:
    more = {
        "type": "layers",
        "layers": [{"type": "flatten"}, {"type": "linear", "out": 8}, {"type": "linear", "out": 2}],
    }
    longer = dict(more, layers=[*more["layers"], {"type": "linear"}])
    prepared(rows(), start=started(origin), architecture=more)
    with pytest.raises(RequestError, match=r"the network has 6 tensors of weights, and version 3 of .* has 4"):
        prepared(rows(), start=started(origin), architecture=longer)
    with pytest.raises(RequestError, match=r"init_from: the task is regression, and that of version 3"):
        prepared(_numbers(1.0), task=Task.REGRESSION, start=started(origin))


def test_features_are_put_into_the_order_of_the_version_and_others_are_refused(origin: Prepared) -> None:
    order = ("shape", "day", "kind", "count", "size")
    again = prepared(rows(), start=started(origin), exclude=(), features=order)
    assert again.preprocessor.recipe == origin.preprocessor.recipe
    with pytest.raises(RequestError, match='without "day", from which version 3 of model "flowers" learned'):
        prepared(rows(), start=started(origin), exclude=("day",))


def test_classes_that_the_version_does_not_know_are_added_to_its_own() -> None:
    origin = prepared(rows(labels="bd"))
    again = prepared(rows(labels="abc"), start=started(origin))
    assert again.preprocessor.target.labels == ("a", "b", "c", "d")
    own, old = again.module.state_dict(), origin.module.state_dict()
    for name in ("4.weight", "4.bias"):
        assert torch.equal(own[name][[1, 3]], old[name])
        assert own[name][[0, 2]].abs().sum() > 0
    assert torch.equal(own["1.weight"], old["1.weight"])
    train(again)


def test_labels_of_sets_are_added_to_those_of_the_version() -> None:
    def sets(names: str) -> TableData:
        return table(
            [("id", "bigint"), ("x", "double precision"), ("y", "text[]")],
            [(i, float(i % 11), [name for n, name in enumerate(names) if (i >> n) % 2]) for i in range(60)],
        )

    origin = prepared(sets("bd"), task=Task.MULTILABEL)
    again = prepared(sets("abc"), task=Task.MULTILABEL, start=started(origin))
    assert again.preprocessor.target.labels == ("a", "b", "c", "d")
    assert torch.equal(again.module.state_dict()["4.weight"][[1, 3]], origin.module.state_dict()["4.weight"])


@pytest.mark.parametrize(
    "architecture",
    [
        {"type": "mlp", "hidden": [8]},
        {"type": "layers", "layers": [{"type": "batch_norm1d"}, {"type": "linear", "out": 8}, {"type": "linear"}]},
        pytest.param({"type": "residual_mlp", "width": 8, "blocks": 1}, marks=pytest.mark.nightly),
        pytest.param(
            {"type": "dcn", "hidden": [8], "crosses": 1, "number_embedding": "piecewise", "embedding_width": 4},
            marks=pytest.mark.nightly,
        ),
        {"type": "wide_and_deep", "hidden": [8], "number_embedding": "none", "text_width": 4},
        pytest.param(
            {"type": "tabm", "hidden": [8], "members": 2, "number_embedding": "linear", "embedding_width": 4},
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_a_network_grows_by_columns_and_classes_and_answers_as_before_without_their_weights(
    architecture: dict[str, Any],
) -> None:
    embeds = architecture["type"] not in ("mlp", "layers")
    # TabM answers with a mean of probabilities, which more classes change.
    labels, kept = ("bd", [0, 1]) if architecture["type"] == "tabm" else ("abcd", [1, 3])
    columns = ("count", "kind", "day", *(["note"] if embeds else []))
    options: dict[str, Any] = {
        "architecture": architecture,
        "exclude": (),
        "preprocess": {"encode": {name: "tokens" for name in ("note", "about") if embeds}},
    }
    origin = prepared(_noted("bd"), features=columns, **_naming(options, columns))
    data = _noted(labels)
    more = ("size", *columns, "place", "shape", *(["about"] if embeds else []))
    grown = prepared(data, features=more, start=started(origin), **_naming(options, more))
    assert grown.preprocessor.recipe.features == (*columns, "size", *(name for name in more[len(columns) + 1 :]))

    with torch.no_grad():
        for tensor in grown.module.state_dict().values():
            if tensor.is_floating_point():
                tensor.zero_()
    started(origin).load_into(grown.module, grown.preprocessor)
    data = _noted(labels)
    before, after = (
        made.module.eval()(torch.from_numpy(made.preprocessor.transform(data.columns))) for made in (origin, grown)
    )
    assert before.abs().max() > 0
    torch.testing.assert_close(after[..., kept], before)


def _naming(options: dict[str, Any], columns: tuple[str, ...]) -> dict[str, Any]:
    encode = {name: own for name, own in options["preprocess"]["encode"].items() if name in columns}
    return {**options, "preprocess": {"encode": encode}}


def _noted(labels: str) -> TableData:
    """Return the rows with three more columns of texts."""
    described = [*COLUMNS, ("note", "text"), ("about", "text"), ("place", "text")]
    words = ("red green", "green blue blue", "red")
    plain = listed(0, labels, "xyz")
    return table(described, [(*row, words[i % 3], words[i % 2], "pq"[i % 2]) for i, row in enumerate(plain)])


def test_a_column_more_is_fitted_and_the_others_stay_as_they_were() -> None:
    architecture = {"type": "residual_mlp", "width": 8, "blocks": 1, "number_embedding": "piecewise"}
    origin = prepared(rows(), architecture=architecture, features=("size",), exclude=())
    again = prepared(rows(), architecture=architecture, features=("count", "size"), exclude=(), start=started(origin))
    fresh = prepared(rows(), architecture=architecture, features=("size", "count"), exclude=())
    bins = [made.module.get_buffer("embedding.numbers.starts") for made in (origin, again, fresh)]
    assert torch.equal(bins[1][:1], bins[0])
    assert torch.equal(bins[1][1:], bins[2][1:])


@pytest.mark.nightly
def test_attention_between_columns_takes_more_of_them() -> None:
    architecture = {"type": "ft_transformer", "heads": 2, "blocks": 1, "embedding_width": 4}
    features = ("count", "kind", "day")
    origin = prepared(rows(), architecture=architecture, features=features, exclude=())
    again = prepared(
        rows(), architecture=architecture, features=(*features, "size"), exclude=(), start=started(origin)
    )
    own, old = again.module.state_dict(), origin.module.state_dict()
    grown = {
        name: tensor.shape[0] - old[name].shape[0] for name, tensor in own.items() if tensor.shape != old[name].shape
    }
    assert set(grown.values()) == {1}
    assert all("tokens.numbers." in name for name in grown)
    for name, tensor in own.items():
        assert torch.equal(tensor[: len(old[name])] if name in grown else tensor, old[name])
