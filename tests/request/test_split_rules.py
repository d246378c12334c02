"""The options of a split, and the columns that they name."""

from typing import Any

import pytest

from indb_tensile.errors import RequestError
from indb_tensile.request.split_rules import check_split, check_split_column, check_split_use, require_order


@pytest.mark.parametrize(
    ("split", "message", "hint"),
    [
        (
            {"last": 0.5, "by": "at", "column": "part"},
            'split: "column" and "last" contradict each other',
            "Leave",
        ),
        ({"test_size": 0.5, "column": "part"}, 'split: "column" and "test_size" contradict each other', "Leave"),
        ({"last": 0.5, "test_size": 0.2}, 'split: "last" and "test_size" contradict each other', "Leave"),
        ({"test": "t", "test_size": 0.2}, 'split: "test" and "test_size" contradict each other', "Leave"),
        ({"valid": "v", "valid_size": 0.2}, 'split: "valid" and "valid_size" contradict each other', "Leave"),
        ({"test": "t", "group": "g"}, 'split: "test" and "group" contradict each other', "Leave"),
        ({"test": ""}, 'split: "test" is an empty text', "name of the table"),
        ({"key": ["a", "a"]}, 'split: "key" names a column twice', "once"),
        ({"key": []}, 'split: "key" is []', "a list of texts of length 1 to 32"),
        ({"by": "at"}, 'split: "by" is given without "last"', '{"last": 0.2, "by": "at"}'),
        ({"test_size": 0.9}, "split: test_size 0.9 and valid_size 0.15 leave no rows to train on", "below 1"),
        ({"last": 0.5, "valid_size": 0.5}, "split: last 0.5 and valid_size 0.5 leave no rows to train on", "below 1"),
    ],
)
def test_options_that_contradict_each_other_are_refused(split: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises(RequestError) as caught:
        check_split(split)
    assert caught.value.message == message
    assert hint in caught.value.hint


def test_nulls_are_left_out_and_last_needs_a_column() -> None:
    options = check_split({"last": 0.2, "test_size": None})
    assert options == {"last": 0.2}
    with pytest.raises(RequestError, match='"last" is given without "by"') as caught:
        require_order(options, ("at", "until"), "There are two.")
    assert (caught.value.detail, '"by": "at"' in caught.value.hint) == ("There are two.", True)
    require_order(options | {"by": "at"})
    require_order({})


def test_a_column_must_be_of_a_kind_that_can_decide() -> None:
    check_split_column("by", '"at"', "time", "is of kind time")
    with pytest.raises(RequestError, match='split: column "at" is of kind time, which "column" cannot be'):
        check_split_column("column", '"at"', "time", "is of kind time")


def test_the_deciding_column_is_neither_target_nor_a_feature_that_says_which_rows_test() -> None:
    check_split_use({"last": 0.2, "by": "at"}, ["y"], ["x", "at"])
    check_split_use({}, ["y"], ["y"])
    with pytest.raises(RequestError, match='split: column "y" is the target'):
        check_split_use({"column": "y"}, ["y"], None)
    with pytest.raises(RequestError, match='split: "key" names the target "y"'):
        check_split_use({"key": ["id", "y"]}, ["y"], None)
    with pytest.raises(RequestError, match='"part" says which rows test, and is also a feature'):
        check_split_use({"column": "part"}, ["y"], ["x", "part"])
