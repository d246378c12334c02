"""The parts of a split, encoded block by block, have the bits of whole encoded columns."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.preprocessing import StandardScaler

from indb_tensile.job import Task
from indb_tensile.learning.encoding import block_encoding as encoding
from indb_tensile.learning.encoding.block_encoding import encode
from indb_tensile.learning.encoding.feature_options import FeatureOptions
from indb_tensile.learning.encoding.preprocessor import Preprocessor
from indb_tensile.learning.encoding.targets import TargetEncoding
from indb_tensile.learning.storage.columns import ColumnData, ColumnKind, Columns
from indb_tensile.learning.training.preparation import assemble
from indb_tensile.learning.training.preprocessor_fitting import fit
from tests.learning.tables import spec, table

TARGET = TargetEncoding(name="y", task=Task.REGRESSION, kind=ColumnKind.FLOAT)


def numbers(values: npt.NDArray[np.float64]) -> ColumnData:
    return ColumnData(kind=ColumnKind.FLOAT, values=np.where(np.isnan(values), 0.0, values), missing=np.isnan(values))


def mixed(rows: int, seed: int, missing: float = 0.1) -> dict[str, ColumnData]:
    draw = np.random.default_rng(seed)
    floats = draw.normal(size=rows) * 1e3
    floats[draw.random(rows) < missing] = np.nan
    texts = np.array([f"c{i}" for i in draw.integers(0, 9, rows)], object)
    return {
        "a": numbers(floats),
        "b": ColumnData(
            kind=ColumnKind.INTEGER,
            values=draw.integers(-9, 9, rows).astype(np.int32),
            missing=np.zeros(rows, np.bool_),
        ),
        "c": ColumnData(kind=ColumnKind.TEXT, values=texts, missing=draw.random(rows) < missing),
        "d": ColumnData(
            kind=ColumnKind.ARRAY,
            values=draw.normal(size=(rows, 3)).astype(np.float32),
            missing=np.zeros(rows, np.bool_),
        ),
    }


def fitted(columns: Columns) -> Preprocessor:
    rows = np.arange(len(columns["a"].missing))
    return fit(columns, target=TARGET, features=tuple(columns), options=FeatureOptions.parse({}), train=rows)


@given(st.integers(20, 300), st.integers(0, 99), st.integers(1, 64))
def test_blocks_give_the_bits_of_whole_columns_in_every_part(rows: int, seed: int, block_numbers: int) -> None:
    columns = mixed(rows, seed)
    preprocessor = fitted(columns)
    part_of_row = np.random.default_rng(seed).integers(0, 4, rows)  # 3 is no part: a row without a target
    parts = [np.flatnonzero(part_of_row == part) for part in range(3)]
    whole = preprocessor.transform(columns)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoding, "ENCODE_BLOCK_NUMBERS", block_numbers)
        encoded = encode(columns, preprocessor, parts)
    for part, x in zip(parts, encoded, strict=True):
        assert x.flags.c_contiguous
        assert x.tobytes() == whole[part].tobytes()


@given(st.integers(2, 3000), st.integers(1, 7), st.floats(0, 0.9), st.integers(0, 99))
def test_a_single_columns_mean_and_scale_equal_those_in_a_matrix(
    rows: int, count: int, missing: float, seed: int
) -> None:
    """Models of release 0.1 were fitted to matrices. The same table must give the same bits."""
    draw = np.random.default_rng(seed)
    raw = draw.normal(size=(rows, count)) * 10.0 ** draw.integers(-5, 9, count) + 10.0 ** draw.integers(-5, 9, count)
    raw[draw.random(raw.shape) < missing] = np.nan
    raw[:2] = draw.normal(size=(2, count))  # each column has values, and at least two different ones
    names = tuple(f"f{i}" for i in range(count))
    columns = {name: numbers(raw[:, i]) for i, name in enumerate(names)}
    rows_of_all = np.arange(rows)
    recipe = fit(columns, target=TARGET, features=names, options=FeatureOptions.parse({}), train=rows_of_all).recipe
    scaler = StandardScaler().fit(raw[:, np.isfinite(raw).any(axis=0)])
    assert recipe.numbers.mean == tuple(scaler.mean_.tolist())
    assert recipe.numbers.scale == tuple(scaler.scale_.tolist())


def test_a_consumed_table_loses_its_columns_and_gives_the_same_tensors() -> None:
    described = [("id", "bigint"), ("a", "double precision"), ("t", "text"), ("y", "double precision")]
    rows = [(i, float(i % 91), "ab"[i % 2], None if i % 7 == 0 else i / 3) for i in range(20_000)]
    retained, consumed = table(described, rows), table(described, rows)
    first = assemble(retained, spec("y", Task.REGRESSION))
    second = assemble(consumed, spec("y", Task.REGRESSION), consume=True)
    assert list(retained.columns) == ["id", "a", "t", "y"]
    assert not consumed.columns, "a later reader of a consumed column gets a KeyError"
    for name in ("train", "valid", "test"):
        left, right = getattr(first, name), getattr(second, name)
        assert left.x.numpy().tobytes() == right.x.numpy().tobytes()
        assert left.y.numpy().tobytes() == right.y.numpy().tobytes()
    for name, data in first.held_out.items():
        assert data.values.tolist() == second.held_out[name].values.tolist()
