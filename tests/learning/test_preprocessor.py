"""Preprocessing is stored as data. These tests check what each kind of column becomes."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LinearRegression
from sklearn.preprocessing import StandardScaler

from indb_tensile.errors import DatabaseError, DataError, MissingError, RequestError
from indb_tensile.job import Task
from indb_tensile.learning.decoding.jsonrows import column_of
from indb_tensile.learning.encoding.encoders import Arrays
from indb_tensile.learning.encoding.feature_choice import choose_features
from indb_tensile.learning.encoding.feature_options import FeatureOptions
from indb_tensile.learning.encoding.preprocessor import Preprocessor
from indb_tensile.learning.encoding.targets import TargetEncoding
from indb_tensile.learning.encoding.text_encoders import TextFacts
from indb_tensile.learning.storage.columns import Column, ColumnData, ColumnKind, ColumnRows, CopyEncoding
from indb_tensile.learning.training.preprocessor_fitting import fit

TARGET = TargetEncoding(name="y", task=Task.REGRESSION, kind=ColumnKind.FLOAT, mean=10.0, scale=2.0)


def fitted(
    columns: Mapping[str, ColumnData], options: dict[str, Any] | None = None, **more: Any
) -> tuple[Preprocessor, list[list[float]]]:
    """Return the preprocessor fitted on all rows, and the encoded rows."""
    rows = np.arange(len(next(iter(columns.values())).missing))
    parsed = FeatureOptions.parse(options or {})
    made = fit(columns, target=TARGET, features=tuple(columns), options=parsed, train=rows, **more)
    return made, made.transform(columns).round(4).tolist()


def numbers(*values: float | None) -> ColumnData:
    return column_of("n", ColumnKind.FLOAT, values)


def test_numbers_are_standardised_and_missing_numbers_become_the_mean() -> None:
    _, rows = fitted({"n": numbers(1, 3, None, float("nan"), float("inf"))})
    assert rows == [[-1], [1], [0], [0], [0]]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("mean", [[-1], [1], [0]]),
        ("zero", [[-1], [1], [-2]]),
        (5, [[-1], [1], [3]]),
        ("indicator", [[-1, 0], [1, 0], [0, 1]]),
    ],
)
def test_the_missing_rule_decides_what_missing_numbers_become(rule: Any, expected: list[list[float]]) -> None:
    assert fitted({"n": numbers(1, 3, None)}, {"missing": {"n": rule}})[1] == expected


def test_a_missing_required_value_is_reported_with_column_and_row() -> None:
    columns = {"a": numbers(1, 2, 3), "n": numbers(1, 3, None)}
    with pytest.raises(DataError, match='column "n", row 3: the value is missing'):
        fitted(columns, {"missing": {"n": "error"}})


def test_standardising_can_be_switched_off_for_all_columns_or_for_one() -> None:
    columns = {"a": numbers(1, 3), "b": numbers(1, 3)}
    assert fitted(columns, {"standardize": False})[1] == [[1, 1], [3, 3]]
    assert fitted(columns, {"standardize": {"a": False}})[1] == [[1, -1], [3, 1]]


def test_booleans_are_zero_and_one_and_missing_booleans_are_the_share_of_true() -> None:
    flags = column_of("f", ColumnKind.BOOLEAN, [True, True, True, False, None])
    assert fitted({"f": flags})[1] == [[1], [1], [1], [0], [0.75]]


def test_texts_are_one_hot_with_a_limit_and_a_category_for_missing_texts() -> None:
    words = column_of("w", ColumnKind.TEXT, ["b", "a", "b", "c", "a", None])
    made, rows = fitted({"w": words}, {"categories": 2})
    assert made.outputs == ("w = a", "w = b", "w = (other)", "w = (missing)")
    assert [row.index(1.0) for row in rows] == [1, 0, 1, 2, 0, 3]
    assert made.transform_rows([{"w": "never seen"}, ["a"], "b", None]).argmax(axis=1).tolist() == [2, 0, 1, 3]


def test_the_padding_of_a_fixed_width_text_does_not_matter() -> None:
    made, _ = fitted({"w": column_of("w", ColumnKind.TEXT, ["ab", "c"])})
    assert made.transform_rows([{"w": "ab  "}]).argmax() == 0


def test_dates_are_encoded_with_season_and_weekday_and_infinity_is_missing() -> None:
    days = column_of("d", ColumnKind.DATE, ["1970-01-01", "2024-04-01", "infinity", None])
    made, rows = fitted({"d": days})
    assert made.outputs == ("d epoch", "d month_sin", "d month_cos", "d weekday_sin", "d weekday_cos")
    thursday = [np.sin(2 * np.pi * 3 / 7), np.cos(2 * np.pi * 3 / 7)]
    assert rows[0] == pytest.approx([-1, 0, 1, *thursday], abs=1e-3)
    assert rows[1] == pytest.approx([1, 1, 0, 0, 1], abs=1e-3)
    assert rows[2:] == [[0] * 5] * 2
    assert fitted({"d": days}, {"missing": {"d": "indicator"}})[1][2] == [0, 0, 0, 0, 0, 1]


def test_timestamps_are_encoded_with_the_time_of_day_in_utc() -> None:
    made, rows = fitted(
        {"t": column_of("t", ColumnKind.TIME, ["2024-04-01T06:30:00", "2024-04-01T23:30:00+05:30", None])}
    )
    assert made.outputs[-2:] == ("t hour_sin", "t hour_cos")
    for row, hour in zip(rows, (6.5, 18.0), strict=False):
        assert row[-2:] == pytest.approx([np.sin(2 * np.pi * hour / 24), np.cos(2 * np.pi * hour / 24)], abs=1e-4)
    assert rows[2] == [0] * 7


def test_a_target_that_depends_on_the_hour_alone_can_be_learned_from_a_timestamp() -> None:
    seconds = np.random.default_rng(0).uniform(0, 3e7, 500)
    moments = ColumnData(kind=ColumnKind.TIME, values=seconds, missing=np.zeros(500, bool))
    made = fitted({"t": moments})[0]
    targets = np.cos(2 * np.pi * (seconds % 86_400) / 86_400 + 1)
    assert LinearRegression().fit(made.transform({"t": moments}), targets).score(
        made.transform({"t": moments}), targets
    ) == pytest.approx(1, abs=1e-6)


def test_a_model_stored_by_release_0_1_encodes_times_as_before() -> None:
    stored = {
        "format": 1, "features": ["t"], "input_shape": [5], "texts": [], "arrays": [],
        "numbers": {"names": [], "mean": [], "scale": [], "fill": [], "required": [], "indicators": []},
        "times": [{"name": "t", "mean": 1e9, "scale": 1e8, "required": False, "indicator": False}],
        "target": {"name": "y", "task": "regression", "kind": "float", "labels": [], "mean": 0.0, "scale": 1.0},
    }  # fmt: skip
    old = Preprocessor.from_json(stored)
    assert old.outputs == ("t epoch", "t month_sin", "t month_cos", "t weekday_sin", "t weekday_cos")
    moment = "2024-04-01T06:30:00"
    row = old.transform_rows([{"t": moment}])[0].tolist()
    assert row == pytest.approx([(1_711_953_000 - 1e9) / 1e8, 1, 0, 0, 1], abs=1e-6)
    for kind in (ColumnKind.DATE, ColumnKind.TIME):
        assert old.transform({"t": column_of("t", kind, [moment])}).tolist() == [row]
    assert Preprocessor.from_json(json.loads(json.dumps(old.to_json()))).outputs == old.outputs


def test_the_texts_that_the_category_limit_merges_are_counted() -> None:
    words = column_of("w", ColumnKind.TEXT, [*"aaabbc", None, "d"])
    made, _ = fitted({"w": words}, {"categories": 2})
    assert made.text_facts == (TextFacts(name="w", rows=8, known_rows=7, distinct=4, categories=2, other_rows=2),)
    assert made.text_facts[0].other_share == pytest.approx(2 / 7)
    assert not made.text_facts[0].nearly_unique
    assert fitted({"w": words})[0].text_facts[0].other_rows == 0


@pytest.mark.parametrize(
    ("rows", "distinct", "useless"), [(100, 100, True), (100, 96, True), (100, 90, False), (19, 19, False)]
)
def test_a_text_column_with_a_distinct_value_in_nearly_every_row_is_recognised(
    rows: int, distinct: int, useless: bool
) -> None:
    made, _ = fitted({"w": column_of("w", ColumnKind.TEXT, [f"text {row % distinct}" for row in range(rows)])})
    assert made.text_facts[0].nearly_unique is useless


def test_timestamps_before_1970_have_their_own_month() -> None:
    made, _ = fitted({"d": column_of("d", ColumnKind.TIME, ["1969-12-31T23:59:59", "2000-01-01"])})
    december = made.transform_rows([{"d": "1969-12-31T23:59:59"}])[0, 1:3]
    assert december == pytest.approx([np.sin(2 * np.pi * 11 / 12), np.cos(2 * np.pi * 11 / 12)], abs=1e-6)


def test_vectors_are_standardised_by_element_and_images_as_a_whole() -> None:
    vectors = column_of("v", ColumnKind.ARRAY, [[0, 10], [2, 30], None])
    assert fitted({"v": vectors})[1] == [[-1, -1], [1, 1], [0, 0]]
    images = column_of("v", ColumnKind.ARRAY, [[[0.0, 0.0]], [[4.0, 4.0]], [[float("nan"), 0.0]]])
    made, rows = fitted({"v": images})
    assert made.outputs == ("v[1][1]", "v[1][2]")
    assert rows[0][0] == rows[0][1] == rows[2][1]
    assert rows[2][0] == 0


def test_an_input_shape_reshapes_the_row() -> None:
    images = {"v": column_of("v", ColumnKind.ARRAY, [[[0, 1], [2, 3]], [[4, 5], [6, 7]]])}
    made, _ = fitted(images, input_shape=(1, 2, 2))
    assert made.transform(images).shape == (2, 1, 2, 2)
    with pytest.raises(RequestError, match=r"input_shape \[1, 3, 3\] holds 9 numbers, the features give 4"):
        fitted(images, input_shape=(1, 3, 3))


def test_kinds_have_a_fixed_order_and_statistics_come_from_the_training_rows_only() -> None:
    columns = {
        "w": column_of("w", ColumnKind.TEXT, ["a", "a", "b"]),
        "n": numbers(1, 3, 1000),
        "v": column_of("v", ColumnKind.ARRAY, [[1.0], [3.0], [5.0]]),
        "f": column_of("f", ColumnKind.BOOLEAN, [True, False, None]),
    }
    options = FeatureOptions.parse({"missing": {"f": "indicator"}})
    made = fit(columns, target=TARGET, features=tuple(columns), options=options, train=np.array([0, 1]))
    assert made.outputs == ("n", "f", "f (missing)", "w = a", "w = (other)", "w = (missing)", "v[1]")
    assert made.transform(columns)[2].tolist() == [998, 0.5, 1, 0, 1, 0, 3]


_CELL = st.none() | st.floats(-1e6, 1e6) | st.sampled_from([float("nan"), float("inf")])


@given(st.lists(st.tuples(_CELL, _CELL, st.none() | st.sampled_from("abc")), min_size=1, max_size=30))
def test_single_rows_are_encoded_as_the_table_also_by_a_stored_preprocessor(rows: list[tuple[Any, ...]]) -> None:
    rows = [*rows, (1.0, 2.0, "a"), (2.0, 1.0, "b")]
    kinds = {"a": ColumnKind.FLOAT, "b": ColumnKind.FLOAT, "c": ColumnKind.TEXT}
    columns = {name: column_of(name, kind, [row[i] for row in rows]) for i, (name, kind) in enumerate(kinds.items())}
    made, _ = fitted(columns, {"missing": {"a": "indicator"}})
    stored = Preprocessor.from_json(json.loads(json.dumps(made.to_json())))
    assert stored.recipe == made.recipe
    whole = made.transform(columns)
    assert np.isfinite(whole).all()
    assert np.array_equal(stored.transform_rows([list(row) for row in rows]), whole)
    assert np.array_equal(stored.transform_rows([dict(zip("abc", row, strict=True)) for row in rows]), whole)


def test_a_row_may_contain_numbers_as_json_writes_them() -> None:
    made, _ = fitted({"n": numbers(1, 3)})
    assert made.transform_rows([{"n": "NaN"}, {"n": "3"}, {"n": 3, "other": 1}, 3, [3], None]).tolist() == [
        [0],
        [1],
        [1],
        [1],
        [1],
        [0],
    ]


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ({"a": 1}, "the row has no column v"),
        ([1, [1, 2], 3], "3 values given for the model's 2 features"),
        (5, "one value given for the model's 2 features"),
        ([1, 5], 'column "v": 5 is not an array'),
        ([1, [1, 2, 3]], 'column "v" holds arrays of shape 3; the model was trained on 2'),
        ([1, [1, None]], 'column "v": the array contains NULL'),
        ([1, [1, [2]]], "not an array of numbers of one shape"),
        (["x", [1, 2]], "column \"a\": 'x' is not a number"),
        ([[1], [1, 2]], 'column "a": .* is not a number'),
    ],
)
def test_a_row_that_does_not_fit_the_model_is_refused(row: Any, fault: str) -> None:
    made, _ = fitted({"a": numbers(1, 3), "v": column_of("v", ColumnKind.ARRAY, [[1, 2], [3, 4]])})
    with pytest.raises(RequestError, match=fault):
        made.transform_rows([row])


def test_a_bare_array_is_the_value_of_the_only_array_feature() -> None:
    made, rows = fitted({"v": column_of("v", ColumnKind.ARRAY, [[1, 2], [3, 4]])})
    assert made.transform_rows([[1, 2], {"v": [3, 4]}, None]).tolist() == [*rows, [0, 0]]


def test_constant_features_are_refused() -> None:
    with pytest.raises(DataError, match="every feature has one value in all 3 training rows"):
        fitted({"a": numbers(1, 1, 1), "b": numbers(None, None, None)})


def test_values_too_large_are_refused_with_their_column() -> None:
    with pytest.raises(DataError, match='column "n" holds 1e\\+300'):
        fitted({"a": numbers(1, 2), "n": numbers(1e300, 1)})
    made, _ = fitted({"n": numbers(1e-3, 0)})
    assert np.isfinite(made.transform_rows([1e300])).all()


def test_a_table_without_a_feature_is_refused_with_the_features_name() -> None:
    made, _ = fitted({"a": numbers(1, 2), "b": numbers(2, 1)})
    with pytest.raises(MissingError, match="needs column b"):
        made.transform({"a": numbers(1)})


def test_a_column_that_changed_its_kind_is_refused() -> None:
    numeric, _ = fitted({"a": numbers(1, 2)})
    texts, _ = fitted({"a": column_of("a", ColumnKind.TEXT, ["x", "y"])})
    with pytest.raises(DataError, match='column "a" is of kind text, the model was trained on numbers'):
        numeric.transform({"a": column_of("a", ColumnKind.TEXT, ["x"])})
    with pytest.raises(DataError, match='column "a" is of kind integer, the model was trained on texts'):
        texts.transform({"a": column_of("a", ColumnKind.INTEGER, [1])})
    with pytest.raises(DataError, match='target "y" is of kind text, the model was trained on float'):
        TARGET.encode(column_of("y", ColumnKind.TEXT, ["x"]))


def test_malformed_stored_preprocessors_are_refused() -> None:
    made, _ = fitted({"a": numbers(1, 2)})
    stored = made.to_json()
    with pytest.raises(DatabaseError, match="format 99"):
        Preprocessor.from_json({**stored, "format": 99})
    with pytest.raises(DatabaseError, match="cannot be read"):
        Preprocessor.from_json({**stored, "numbers": 3})


DESCRIBED = (
    Column(name="id", type="int", wire=None, primary_key=True),
    Column(name="n", type="int", wire=None, identity=True),
    Column(name="a", type="int", wire=None),
    Column(name="b", type="int", wire=None),
    Column(name="y", type="int", wire=None),
)


def test_all_columns_but_target_keys_and_identities_are_features() -> None:
    assert choose_features(DESCRIBED, "y", None) == ("a", "b")
    assert choose_features(DESCRIBED, "y", None, ("a",)) == ("b",)
    assert choose_features(DESCRIBED, "y", ("b", "id")) == ("b", "id")


@pytest.mark.parametrize(
    ("target", "features", "exclude", "options", "fault"),
    [
        ("z", None, (), {}, 'column "z" does not exist'),
        ("y", ("q",), (), {}, 'column "q" does not exist'),
        ("y", None, ("q",), {}, 'column "q" does not exist'),
        ("y", None, (), {"missing": {"q": "mean"}}, 'names column "q", which the table does not have'),
        ("y", ("a", "a"), (), {}, 'feature "a" is named 2 times'),
        ("y", ("a", "y"), (), {}, '"y" is both target and feature'),
        ("y", ("a",), ("a",), {}, 'column "a" is both a feature and excluded'),
        ("y", None, ("a", "b"), {}, "no features are left in the table"),
        ("y", (), (), {}, "no features are left in the table"),
        ("y", ("a",), (), {"standardize": {"b": False}}, 'names column "b", which is not a feature'),
    ],
)
def test_an_impossible_choice_of_columns_is_refused(
    target: str, features: tuple[str, ...] | None, exclude: tuple[str, ...], options: dict[str, Any], fault: str
) -> None:
    with pytest.raises(RequestError, match=fault):
        choose_features(DESCRIBED, target, features, exclude, FeatureOptions.parse(options))


def test_an_unknown_column_is_refused_with_the_known_columns() -> None:
    with pytest.raises(MissingError) as caught:
        choose_features(DESCRIBED, "z", None)
    assert caught.value.detail == "The table's columns are: id, n, a, b, y."


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"colour": True}, 'unknown parameter "colour"'),
        ({"standardize": "yes"}, '"standardize" is'),
        ({"categories": 0}, '"categories" is 0'),
        ({"categories": True}, '"categories" is true'),
        ({"missing": "mode"}, '"missing" is "mode"'),
        ({"missing": ["mean"]}, '"missing" is'),
        ({"missing": {"n": "mode"}}, '"missing" of column "n" is "mode"'),
        ({"categories": {"w": 0}}, '"categories" of column "w" is 0'),
        ({"standardize": {"n": 1}}, '"standardize" of column "n" is 1'),
        ({"missing": {"n": True}}, '"missing" of column "n" is true'),
    ],
)
def test_a_wrong_option_is_refused(options: dict[str, Any], fault: str) -> None:
    with pytest.raises(RequestError, match=fault) as caught:
        FeatureOptions.parse(options)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("name", "option", "fault"),
    [
        ("w", {"missing": "zero"}, '"missing" of column "w" of type varchar cannot be "zero"'),
        ("d", {"missing": 3}, '"missing" of column "d" of type timestamp cannot be 3'),
        ("a", {"categories": 3}, '"categories" means nothing to column "a" of type real'),
        ("w", {"standardize": True}, '"standardize" means nothing to column "w" of type varchar'),
    ],
)
def test_an_option_must_suit_the_kind_of_its_column(name: str, option: dict[str, Any], fault: str) -> None:
    described = (
        Column(name="a", type="real", wire=CopyEncoding(kind=ColumnKind.FLOAT, item=">f4")),
        Column(name="w", type="varchar", wire=CopyEncoding(kind=ColumnKind.TEXT, item="")),
        Column(name="d", type="timestamp", wire=CopyEncoding(kind=ColumnKind.TIME, item=">i8")),
        Column(name="y", type="text", wire=CopyEncoding(kind=ColumnKind.TEXT, item="")),
    )
    options = FeatureOptions.parse({key: {name: value} for key, value in option.items()})
    with pytest.raises(RequestError, match=fault):
        choose_features(described, "y", (name,), (), options)


def test_a_missing_value_is_refused_where_the_rule_says_so() -> None:
    words = {"w": column_of("w", ColumnKind.TEXT, ["a", "b", None])}
    with pytest.raises(DataError, match='column "w", row 3'):
        fitted(words, {"missing": {"w": "error"}})


def test_integer_labels_beyond_the_precision_of_a_double_stay_distinct() -> None:
    labels = [2**53, 2**53 + 1, None, -(2**63)]
    column = column_of("y", ColumnKind.INTEGER, labels)
    assert column.kind is ColumnKind.INTEGER
    assert column.values.tolist() == [2**53, 2**53 + 1, 0, -(2**63)]
    assert column.missing.tolist() == [False, False, True, False]


def test_integers_are_not_truncated_if_one_of_the_labels_has_a_fraction() -> None:
    column = column_of("y", ColumnKind.INTEGER, [1.5, 2])
    assert column.kind is ColumnKind.FLOAT
    assert column.values.tolist() == [1.5, 2.0]


@pytest.mark.nightly
def test_wide_arrays_encoded_in_blocks_equal_arrays_encoded_at_once() -> None:
    # A row has more numbers than a block of rows, and more elements than a block of elements.
    width, rows = 20_001, 120
    random = np.random.default_rng(3)
    values = random.normal(size=(rows, width)).astype(np.float32)
    values[5, 7] = np.nan
    missing = np.zeros(rows, np.bool_)
    missing[9] = True
    data = ColumnData(kind=ColumnKind.ARRAY, values=values, missing=missing)
    numbers = data.numbers()
    known = np.where(np.isfinite(numbers), numbers, np.nan)
    scaler = StandardScaler().fit(known[:, np.isfinite(known).any(axis=0)])
    fitted = Arrays.fit("a", ColumnRows(data, np.arange(len(data.values))), standardize=True, missing="mean")
    assert fitted.mean == tuple(scaler.mean_.tolist())
    assert fitted.scale == tuple(scaler.scale_.tolist())
    table = {"a": data}
    options = FeatureOptions.parse({})
    preprocessor = fit(table, target=TARGET, features=("a",), options=options, train=np.arange(rows))
    whole = np.where(np.isfinite(numbers), numbers, scaler.mean_)
    expected = ((whole - scaler.mean_) / scaler.scale_).astype(np.float32)
    assert np.array_equal(preprocessor.transform(table), expected)


def test_the_median_of_the_training_rows_replaces_missing_values() -> None:
    made, rows = fitted({"n": numbers(1, 3, 11, None)}, {"missing": {"n": "median"}, "standardize": False})
    assert rows == [[1], [3], [11], [3]]
    again = Preprocessor.from_json(json.loads(json.dumps(made.to_json())))
    assert again.transform_rows([{"n": None}]).tolist() == [[3]]


def test_a_vector_has_a_median_for_each_element_and_a_matrix_one_median() -> None:
    vectors = column_of("v", ColumnKind.ARRAY, [[1, 10], [3, 30], [11, 110], None])
    assert fitted({"v": vectors}, {"missing": "median", "standardize": False})[1][3] == [3, 30]
    matrices = column_of("m", ColumnKind.ARRAY, [[[1, 2], [3, 4]], [[5, 6], [7, 9]], None])
    assert fitted({"m": matrices}, {"missing": "median", "standardize": False})[1][2] == [4.5] * 4


def test_a_rule_for_all_columns_applies_to_the_kinds_that_support_it() -> None:
    columns = {
        "n": numbers(1, 3, None),
        "w": column_of("w", ColumnKind.TEXT, ["a", "b", None]),
        "d": column_of("d", ColumnKind.TIME, ["2020-01-01", "2021-01-01", None]),
    }
    made, _ = fitted(columns, {"missing": "indicator"})
    assert [name for name in made.outputs if name.endswith(" (missing)")] == [
        "n (missing)",
        "w = (missing)",
        "d (missing)",
    ]
    zeros, rows = fitted(columns, {"missing": "zero", "standardize": False})
    assert rows[2][0] == 0
    assert not any(name.endswith("d (missing)") for name in zeros.outputs)


def test_each_text_column_may_have_its_own_limit_of_categories() -> None:
    columns = {name: column_of(name, ColumnKind.TEXT, ["a", "b", "c"]) for name in ("v", "w")}
    made, _ = fitted(columns, {"categories": {"v": 1}})
    assert made.outputs == (
        *("v = a", "v = (other)", "v = (missing)"),
        *("w = a", "w = b", "w = c", "w = (other)", "w = (missing)"),
    )
