"""Check that `tensile_split`, which uses the standard library alone, computes the same part of each row as a
training, which uses numpy.
"""

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from indb_tensile.learning.decoding.jsonrows import column_of
from indb_tensile.learning.storage.columns import ColumnData, ColumnKind
from indb_tensile.learning.storage.splits import Split, divide, draws, row_hashes
from indb_tensile.request.split_rules import PARTS
from indb_tensile.sql_api import split_membership

_INTEGERS = st.integers(-(2**63), 2**63 - 1)
_FLOATS = st.floats(allow_nan=True, allow_infinity=True)
_TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))  # PostgreSQL stores no others
_ROW = st.tuples(
    st.none() | _INTEGERS,
    st.none() | _FLOATS,
    st.none() | st.booleans(),
    st.none() | _TEXTS,
    st.tuples(_FLOATS, _FLOATS),
)
_FORMS = ("integer", "float", "boolean", "text", "float8[]")
_KINDS = (ColumnKind.INTEGER, ColumnKind.FLOAT, ColumnKind.BOOLEAN, ColumnKind.TEXT, ColumnKind.ARRAY)


def _data(kind: ColumnKind, values: list[Any]) -> ColumnData:
    missing = np.array([value is None for value in values])
    if kind is ColumnKind.TEXT:
        return column_of("c", kind, values)
    filled = [0 if value is None else value for value in values]
    dtype = {ColumnKind.INTEGER: np.int64, ColumnKind.BOOLEAN: np.bool_}.get(kind, np.float64)
    return ColumnData(kind=kind, values=np.array(filled, dtype), missing=missing)


@given(st.lists(_ROW, min_size=1, max_size=20))
def test_hashes_equal_those_of_the_training(rows: list[tuple[Any, ...]]) -> None:
    columns = [_data(kind, list(values)) for kind, values in zip(_KINDS, zip(*rows, strict=True), strict=True)]
    expected = row_hashes(columns, len(rows)).tolist()
    hashes_of_bridge = [split_membership.row_hash([*row[:4], list(row[4])], _FORMS) for row in rows]
    has_nan = [any(isinstance(v, float) and math.isnan(v) for v in (row[1], *row[4])) for row in rows]
    # Rows with NaN are left out: there are many NaNs, of which PostgreSQL has one.
    assert [h for h, n in zip(hashes_of_bridge, has_nan, strict=True) if not n] == [
        h for h, n in zip(expected, has_nan, strict=True) if not n
    ]
    assert [split_membership.draw(h, 5) for h in expected] == draws(np.array(expected, np.uint64), 5).tolist()


def test_single_precision_arrays_are_hashed_as_stored() -> None:
    values = ColumnData(kind=ColumnKind.ARRAY, values=np.array([[0.1, 2.5]], np.float32), missing=np.array([False]))
    assert split_membership.row_hash([[float(np.float32(0.1)), 2.5]], ["float4[]"]) == row_hashes([values], 1)[0]


@pytest.mark.parametrize("form", ["date", "timestamp"])
def test_timestamps_equal_those_of_the_training(form: str) -> None:
    assert split_membership.seconds("infinity", form) == math.inf
    assert split_membership.seconds("-infinity", form) == -math.inf
    assert split_membership.seconds("0", form) == 946_684_800.0
    assert split_membership.seconds("1", form) - 946_684_800.0 == pytest.approx(
        86_400 if form == "date" else 1e-6, rel=0.2
    )


_SPLITS = st.sampled_from(
    [
        Split(seed=3),
        Split(test_size=0.01, valid_size=0.02, seed=4),
        Split(last=0.2, by="c"),
        Split(last=0.01, by="c", valid_size=0.0),
        Split(column="c", valid_size=0.05),
        Split(group="c", seed=5),
        Split(stratify="c", test_size=0.2),
    ]
)


@given(st.lists(st.integers(0, 9), min_size=6, max_size=60), _SPLITS, st.booleans())
def test_every_row_has_the_same_part_as_in_the_training(values: list[int], split: Split, keyed: bool) -> None:
    rows = len(values)
    identity = column_of("a", ColumnKind.INTEGER, list(range(rows)) if keyed else values)
    decisive: list[Any] = [value / 2 for value in values]
    column = column_of("c", ColumnKind.FLOAT, decisive)
    if split.column:
        decisive = [row % 3 == 0 for row in range(rows)]
        column = column_of("c", ColumnKind.BOOLEAN, decisive)
    if split.group or split.stratify:
        decisive = [["a", "b", "c", "d", "ü"][value // 2] for value in values]
        column = column_of("c", ColumnKind.TEXT, decisive)
        assume(split.stratify or len(set(decisive)) > 1)
    hashes = row_hashes([identity], rows)

    parts = divide(hashes, split, column if split.divider else None, keyed=keyed)

    member = split_membership.Membership(json.loads(json.dumps(parts.rule)) | {"keyed": keyed}, "text")
    parts_of_bridge = [member.part(int(hashed), value) for hashed, value in zip(hashes, decisive, strict=True)]
    training_parts = ["" for _ in range(rows)]
    for name in PARTS:
        for row in getattr(parts, name).tolist():
            training_parts[row] = name
    if keyed or not split.divider:
        assert parts_of_bridge == training_parts
    else:  # equal rows may be exchanged
        assert sorted(map(str, zip(values, parts_of_bridge, strict=True))) == sorted(
            map(str, zip(values, training_parts, strict=True))
        )
