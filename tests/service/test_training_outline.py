"""Check the outline of a training that the service derives from column statistics, without reading the table."""

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from indb_tensile.errors import DataError, MissingError, RequestError
from indb_tensile.job import JobSpec, Relation, Task
from indb_tensile.learning.decoding.jsonrows import column_of
from indb_tensile.learning.encoding.feature_options import FeatureOptions
from indb_tensile.learning.encoding.targets import TargetEncoding
from indb_tensile.learning.networks.table_networks import WideAndDeep
from indb_tensile.learning.storage.columns import ColumnData, ColumnKind
from indb_tensile.learning.training.preprocessor_fitting import fit
from worker.serving.requests import ColumnSummary, Shares
from worker.serving.training_outline import outline, width

SPEC = JobSpec(
    model="m",
    relation=Relation(oid=1, schema="public", name="t"),
    target="label",
    task=Task.CLASSIFICATION,
    architecture={"type": "mlp", "hidden": [16]},
    hyperparams={"batch_size": 32},
)
LABEL = ColumnSummary(name="label", kind="text", distinct=3)
PIXELS = ColumnSummary(name="pixels", kind="array", ndims=2, shape=(8, 8))


def data(kind: ColumnKind, values: npt.NDArray[Any]) -> ColumnData:
    return ColumnData(kind=kind, values=values, missing=np.arange(len(values)) == 3)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"missing": dict.fromkeys("nbdwv", "indicator")},
        {"categories": 2},
        {"encode": "ordinal", "scale": "log"},
        {"encode": "hash"},
        {"encode": {"t": ["a", "b"]}},
        {"encode": "target"},
    ],
)
def test_width_of_a_column_equals_that_of_its_encoder(options: dict[str, Any]) -> None:
    columns = {
        "n": data(ColumnKind.FLOAT, np.arange(9.0)),
        "b": data(ColumnKind.BOOLEAN, np.arange(9) % 2 == 0),
        "d": data(ColumnKind.DATE, np.arange(9.0) * 86_400),
        "w": data(ColumnKind.TIME, np.arange(9.0) * 86_400),
        "t": data(ColumnKind.TEXT, np.array(list("abcdeabcd"), object)),
        "v": data(ColumnKind.ARRAY, np.arange(108.0).reshape(9, 3, 4)),
        "i": data(ColumnKind.DURATION, np.arange(9.0)),
        "c": data(ColumnKind.CLOCK, np.arange(9.0)),
        "l": column_of("l", ColumnKind.LABELS, [["a", "b"], ["c"], [], None, ["d"], ["e"], ["a"], [], []]),
    }
    goal = data(ColumnKind.FLOAT, np.arange(9.0))
    statistics = [
        ColumnSummary(name=name, kind=column.kind.value, distinct=5, shape=column.shape)
        for name, column in columns.items()
    ]
    parsed = FeatureOptions.parse(options)
    fitted = fit(
        {**columns, "y": goal},
        target=TargetEncoding(name="y", task=Task.REGRESSION, kind=ColumnKind.FLOAT),
        features=tuple(columns),
        options=parsed,
        train=np.arange(9),
    )
    assert sum(width(column, parsed) for column in statistics) == len(fitted.outputs)


def test_network_and_batches_are_derived_from_columns_and_rows() -> None:
    columns = [ColumnSummary(name=name, kind="float", distinct=900) for name in "abc"]
    training = outline(SPEC, [*columns, LABEL], rows=1000)
    assert (training.input_shape, training.outputs) == ((3,), 3)
    assert training.batches == (32, 700 % 32)
    x, y = training.batch(5)
    assert (x.shape, y.shape, x.device.type, y.dtype) == ((5, 3), (5,), "meta", torch.int64)
    assert {parameter.device.type for parameter in training.module.parameters()} == {"meta"}


def test_split_by_time_or_column_determines_the_training_rows() -> None:
    columns = [ColumnSummary(name=name, kind="float", distinct=900) for name in "abc"]

    def batches(split: dict[str, Any], shares: Shares | None = None) -> tuple[int, ...]:
        return outline(replace(SPEC, split=split), [*columns, LABEL], 1000, shares).batches

    assert batches({"last": 0.2, "by": "at"}) == (32, 650 % 32)
    assert batches({"column": "part"}, Shares(test=0.3, valid=0.1)) == (32, 600 % 32)
    assert batches({"column": "part", "valid_size": 0.5}, Shares(test=0.3, valid=0.0)) == (32, 350 % 32)
    assert batches({"test": "t"}, Shares(test=7.5, valid=0.0)) == (32, 850 % 32)
    assert batches({"test": "t", "valid": "v"}, Shares(test=0.2, valid=3.0)) == (32, 1000 % 32)
    both = outline(replace(SPEC, split={"valid": "v"}), [*columns, LABEL], 1000, Shares(test=0.0, valid=3.0))
    assert (both.batches, both.passes) == ((32, 850 % 32), 94)


def test_image_columns_keep_their_shape_for_cnn_and_auto() -> None:
    for architecture in ({"type": "cnn"}, {"type": "auto"}):
        training = outline(replace(SPEC, architecture=architecture), [PIXELS, LABEL], rows=500)
        assert training.input_shape == (1, 8, 8)


def test_the_outline_says_which_network_auto_stands_for_and_embeds_as_a_training_does() -> None:
    columns = [
        ColumnSummary(name="a", kind="float", distinct=900),
        ColumnSummary(name="b", kind="text", distinct=4),
        ColumnSummary(name="at", kind="date", distinct=900),
    ]
    training = outline(replace(SPEC, architecture={"type": "auto"}), [*columns, LABEL], rows=9000)
    assert training.network_choice.startswith("auto stands for wide_and_deep, as ")
    assert "2 of the features are numbers or categories" in training.network_choice
    assert isinstance(training.module, WideAndDeep)
    assert outline(SPEC, [*columns, LABEL], rows=9000).network_choice == ""
    few = outline(replace(SPEC, architecture={"type": "auto"}), [*columns, LABEL], rows=900)
    assert few.network_choice.startswith("auto stands for mlp, as fewer than ")


def test_regression_has_one_output_and_float_targets() -> None:
    spec = replace(SPEC, task=Task.REGRESSION, target="value")
    columns = [ColumnSummary(name="a", kind="integer"), ColumnSummary(name="value", kind="float")]
    training = outline(spec, columns, rows=100)
    assert training.outputs == 1
    assert training.batch(4)[1].shape == (4, 1)


@pytest.mark.parametrize(
    ("spec", "columns", "rows", "error", "fault"),
    [
        (SPEC, [PIXELS], 100, MissingError, "no statistics of the target"),
        (SPEC, [LABEL], 100, RequestError, "no column is left"),
        (SPEC, [ColumnSummary(name="pixels", kind="array"), LABEL], 100, DataError, "its shape is unknown"),
        (SPEC, [PIXELS, LABEL], 2, DataError, "2 rows, too few"),
        (replace(SPEC, architecture={"type": "rnn"}), [PIXELS, LABEL], 100, RequestError, 'architecture "rnn"'),
        (replace(SPEC, hyperparams={"epoch": 1}), [PIXELS, LABEL], 100, RequestError, "epoch"),
        (
            replace(SPEC, architecture={"type": "layers", "layers": [{"type": "conv2d", "out": 4, "kernel": 9}]}),
            [LABEL, ColumnSummary(name="a", kind="float")],
            100,
            RequestError,
            "does not fit",
        ),
        (
            replace(SPEC, architecture={"type": "layers", "layers": [{"type": "linear", "out": 7}]}),
            [LABEL, ColumnSummary(name="a", kind="float")],
            100,
            RequestError,
            "gives \\[7\\] per row",
        ),
        (
            replace(SPEC, architecture={"type": "cnn", "input_shape": [1, 4, 4]}),
            [LABEL, PIXELS],
            100,
            RequestError,
            "holds 16 numbers, the features give 64",
        ),
    ],
)
def test_training_that_is_impossible_is_refused(
    spec: JobSpec, columns: list[ColumnSummary], rows: int, error: type[RequestError], fault: str
) -> None:
    with pytest.raises(error, match=fault):
        outline(spec, columns, rows)


@pytest.mark.parametrize(
    ("task", "targets", "outputs"),
    [
        (Task.REGRESSION, [ColumnSummary(name=name, kind="float", distinct=9) for name in ("y", "z")], 2),
        (Task.REGRESSION, [ColumnSummary(name="y", kind="array", ndims=1, shape=(5,))], 5),
        (Task.MULTILABEL, [ColumnSummary(name="y", kind="labels", distinct=4)], 4),
        (Task.MULTILABEL, [ColumnSummary(name="y", kind="array", ndims=1, shape=(3,))], 3),
    ],
)
@pytest.mark.parametrize("weighted", [False, True])
def test_a_target_of_several_has_an_output_for_each(
    task: Task, targets: list[ColumnSummary], outputs: int, weighted: bool
) -> None:
    names = tuple(column.name for column in targets)
    spec = replace(
        SPEC,
        target=str(list(names)) if len(names) > 1 else names[0],
        targets=names if len(names) > 1 else (),
        task=task,
        hyperparams={"batch_size": 32, "ensemble": 2} | ({"weight": "w"} if weighted else {}),
    )
    training = outline(spec, [ColumnSummary(name="x", kind="float", distinct=900), *targets], rows=1000)
    x, y = training.batch(32)
    assert (training.outputs, tuple(y.shape)) == (outputs, (32, outputs + weighted))
    assert training.module.train()(x).shape == (32, 2, outputs)
    assert training.loss(training.module(x), y).shape == ()


def test_a_mixed_row_has_two_weighted_classes() -> None:
    spec = replace(SPEC, architecture={"type": "cnn"}, hyperparams={"batch_size": 32, "mixup": 0.2, "weight": "w"})
    training = outline(spec, [PIXELS, LABEL], rows=1000)
    x, y = training.batch(32)
    assert y.shape == (32, 4)
    assert training.loss(training.module(x), y).shape == ()
