"""The memory for the rows is estimated before they are read. A table that cannot fit is refused with both figures."""

from collections.abc import Sequence
from typing import Any

import pytest

from indb_tensile.errors import HostMemoryError, MemoryLimitError
from indb_tensile.job import JobSpec, Relation, Task
from indb_tensile.learning.encoding.feature_options import FeatureOptions
from indb_tensile.learning.relation.memory_estimate import (
    ColumnStatistics,
    MemoryEstimate,
    RowMemoryLimits,
    Statistics,
    estimate_memory,
)
from indb_tensile.learning.storage.columns import Column, ColumnKind, CopyEncoding
from indb_tensile.learning.training.preparation import prepare
from indb_tensile.sizes import size
from tests.conftest import Database

MIB = 1 << 20
FLOAT = CopyEncoding(kind=ColumnKind.FLOAT, item=">f8")
REAL = CopyEncoding(kind=ColumnKind.FLOAT, item=">f4")
TEXT = CopyEncoding(kind=ColumnKind.TEXT, item="")
REALS = CopyEncoding(kind=ColumnKind.ARRAY, item=">f4")
PLENTY = RowMemoryLimits(limit_bytes=1 << 40, host_bytes=1 << 40, free_bytes=1 << 40)


def estimate_of(
    wires: dict[str, CopyEncoding],
    rows: int = 1_000_000,
    columns: dict[str, ColumnStatistics] | None = None,
    shapes: dict[str, tuple[int, ...]] | None = None,
    preprocess: dict[str, Any] | None = None,
    targets: Sequence[str] = ("y",),
) -> MemoryEstimate:
    statistics = Statistics(
        rows=rows, analyzed=True, stored_bytes=rows * 100, columns=columns or {}, wires=wires, shapes=shapes or {}
    )
    described = [Column(name=name, type="", wire=wire) for name, wire in wires.items()]
    options = FeatureOptions.parse(preprocess or {})
    return estimate_memory(statistics, targets=targets, described=described, options=options, test_size=0.15)


def statistics(width_bytes: float = 8, distinct: float = -1, null_share: float = 0) -> ColumnStatistics:
    return ColumnStatistics(width_bytes=width_bytes, distinct=distinct, null_share=null_share)


def test_floats_take_eight_bytes_as_they_are_read_and_four_encoded() -> None:
    estimate = estimate_of({"a": FLOAT, "b": FLOAT, "y": FLOAT})
    assert (estimate.columns_bytes, estimate.encoded_bytes) == (24_000_000, 16_000_000)
    assert estimate.held_out_bytes == 3_600_000
    assert estimate_of({"a": REAL, "y": REAL}).columns_bytes == 8_000_000


def test_nulls_add_a_mask_and_an_indicator_adds_a_number() -> None:
    plain = estimate_of({"a": FLOAT, "y": FLOAT})
    gaps = estimate_of(
        {"a": FLOAT, "y": FLOAT},
        columns={"a": statistics(null_share=0.1)},
        preprocess={"missing": {"a": "indicator"}},
    )
    assert gaps.columns_bytes == plain.columns_bytes + 1_000_000
    assert gaps.encoded_bytes == plain.encoded_bytes + 4_000_000


def test_texts_take_a_number_for_each_category_and_share_their_characters() -> None:
    few = estimate_of({"t": TEXT, "y": FLOAT}, columns={"t": statistics(width_bytes=5, distinct=3)})
    many = estimate_of({"t": TEXT, "y": FLOAT}, columns={"t": statistics(width_bytes=5, distinct=1_000_000)})
    assert few.columns_bytes < 17_000_000 < 70_000_000 < many.columns_bytes
    assert few.encoded_bytes == 1_000_000 * (4 * (3 + 2) + 8)
    assert many.encoded_bytes == 1_000_000 * (4 * (32 + 2) + 8)


def test_a_column_of_texts_without_statistics_counts_only_its_pointers() -> None:
    assert estimate_of({"t": TEXT, "y": FLOAT}).columns_bytes == 16_000_000


def test_a_target_of_texts_is_kept_once_until_all_rows_are_encoded() -> None:
    estimate = estimate_of({"a": FLOAT, "y": TEXT}, columns={"y": statistics(width_bytes=5, distinct=3)})
    assert (estimate.kept_bytes, estimate.columns_bytes) == (8_000_186, 16_000_186)


@pytest.mark.parametrize(("features", "columns_bytes"), [((), 8_000_000), (("id",), 16_000_000)])
def test_a_key_column_is_stored_if_it_is_a_feature(features: tuple[str, ...], columns_bytes: int) -> None:
    wires = {"id": FLOAT, "y": FLOAT}
    estimate = estimate_memory(
        Statistics(rows=1_000_000, analyzed=True, stored_bytes=0, columns={}, wires=wires),
        targets=("y",),
        described=[Column(name="id", type="", wire=FLOAT, primary_key=True), Column(name="y", type="", wire=FLOAT)],
        options=FeatureOptions.parse({}),
        test_size=0.15,
        features=features,
    )
    assert estimate.columns_bytes == columns_bytes


def test_texts_that_exceed_the_limit_are_refused_although_the_rows_may_be_stored_in_a_file() -> None:
    columns = {"t": statistics(width_bytes=100, distinct=1_000_000)}
    estimate = estimate_of({"t": TEXT, "y": FLOAT}, columns=columns)
    memory = RowMemoryLimits(limit_bytes=200 * MIB, host_bytes=1 << 40, free_bytes=1 << 40, disk_bytes=1 << 40)
    with pytest.raises(MemoryLimitError) as caught:
        estimate.check("public.t", memory)
    assert caught.value.message == (
        "the different texts of table public.t need about 245.1 MB of memory, more than the 200.0 MB that a trainer "
        "may use for rows (read_limit_bytes)"
    )
    few = estimate_of({"t": TEXT, "y": FLOAT}, columns={"t": statistics(width_bytes=100, distinct=10)})
    few.check("public.t", memory)
    tokens = estimate_of({"t": TEXT, "y": FLOAT}, columns=columns, preprocess={"encode": "tokens"})
    tokens.check("public.t", memory)


def test_arrays_are_estimated_by_statistics_and_then_by_the_first_array() -> None:
    wires = {"a": REALS, "y": FLOAT}
    assert estimate_of(wires).encoded_bytes == 8_000_000, "the shape is not known yet"
    by_statistics = estimate_of(wires, columns={"a": statistics(width_bytes=24 + 4 * 64)})
    assert by_statistics.encoded_bytes == 1_000_000 * (4 * 64 + 8)
    assert estimate_of(wires, shapes={"a": (8, 8)}).encoded_bytes == 1_000_000 * (4 * 64 + 8)


def test_columns_and_tensors_are_never_both_in_memory_in_full() -> None:
    estimate = estimate_of({f"f{i}": FLOAT for i in range(50)} | {"y": FLOAT})
    assert estimate.peak_bytes < estimate.columns_bytes + estimate.encoded_bytes + estimate.held_out_bytes


def test_a_small_table_needs_little_memory() -> None:
    assert estimate_of({"a": FLOAT, "y": FLOAT}, rows=1000).peak_bytes < 200 * 1000


@pytest.mark.parametrize(
    ("memory", "error", "message", "hint"),
    [
        (
            RowMemoryLimits(limit_bytes=100 * MIB, host_bytes=1 << 40, free_bytes=900 * MIB),
            MemoryLimitError,
            "more than the 100.0 MB that a trainer may use for them (read_limit_bytes)",
            "raise TENSILE_READ_LIMIT_BYTES",
        ),
        (
            RowMemoryLimits(limit_bytes=1 << 40, host_bytes=200 * MIB, free_bytes=90 * MIB),
            MemoryLimitError,
            "more than the 200.0 MB that the machine or its container has",
            "more memory",
        ),
        (
            RowMemoryLimits(limit_bytes=1 << 40, host_bytes=1 << 40, free_bytes=90 * MIB),
            HostMemoryError,
            "and 90.0 MB are free now",
            "max_jobs",
        ),
    ],
)
def test_a_table_that_does_not_fit_is_refused_with_both_figures_and_the_way_out(
    memory: RowMemoryLimits, error: type[Exception], message: str, hint: str
) -> None:
    estimate = estimate_of({f"f{i}": FLOAT for i in range(20)} | {"y": FLOAT})
    estimate.check("public.t", PLENTY)
    with pytest.raises(error) as caught:
        estimate.check("public.t", memory)
    fault = caught.value
    assert isinstance(fault, MemoryLimitError | HostMemoryError)
    assert fault.message.startswith(f"the rows of table public.t need about {size(estimate.peak_bytes)} of memory")
    assert message in fault.message
    assert "1000000 rows, by its statistics" in fault.detail
    assert "exclude" in fault.hint
    assert "tablesample" in fault.hint
    assert hint in fault.hint


def _prepared(
    database: Database, create: Sequence[str], target: str, memory: RowMemoryLimits = PLENTY
) -> list[MemoryEstimate]:
    heard: list[MemoryEstimate] = []
    with database.connect() as admin, database.connect("tensile_reader") as reader:
        for statement in create:
            admin.execute(statement.encode())
        admin.execute("grant select on t to tensile_reader")
        row = admin.execute("select 't'::regclass::oid").fetchone()
        assert row is not None
        job = JobSpec(
            model="m",
            relation=Relation(oid=row[0], schema="public", name="t"),
            target=target,
            task=Task.REGRESSION,
            architecture={"type": "mlp"},
        )
        prepare(reader, job, memory=memory, tell=heard.append)
    return heard


@pytest.mark.postgres
@pytest.mark.parametrize("analyzed", [True, False])
def test_rows_are_estimated_by_statistics_or_by_the_size_on_disk(database: Database, analyzed: bool) -> None:
    create = ["create table t as select random() as a, i::real as b, random() as y from generate_series(1, 20000) i"]
    (heard,) = _prepared(database, [*create, *(["analyze t"] if analyzed else [])], "y")
    assert heard.statistics.analyzed is analyzed
    assert heard.statistics.rows == pytest.approx(20_000, rel=0.01 if analyzed else 0.4)
    assert heard.columns_bytes == heard.statistics.rows * 20
    assert heard.statistics.stored_bytes > 20_000 * 20


@pytest.mark.postgres
def test_the_estimate_of_a_partitioned_table_is_the_sum_of_its_partitions(database: Database) -> None:
    create = [
        "create table t (a float8, y float8) partition by range (a)",
        "create table low partition of t for values from (0) to (0.5)",
        "create table high partition of t for values from (0.5) to (2)",
        "insert into t select random(), random() from generate_series(1, 5000)",
        "analyze t",
        "grant select on low, high to tensile_reader",
    ]
    (heard,) = _prepared(database, create, "y")
    assert (heard.statistics.rows, heard.statistics.analyzed) == (5000, True)


@pytest.mark.postgres
def test_an_array_column_is_estimated_again_when_its_shape_is_known(database: Database) -> None:
    create = [
        "create table t as select array[i, 1, 2, 3]::real[] as a, random() as y from generate_series(1, 3000) as i"
    ]
    before, after = _prepared(database, create, "y")
    assert before.statistics.shapes == {}
    assert after.statistics.shapes == {"a": (4,)}
    assert after.encoded_bytes > before.encoded_bytes


@pytest.mark.postgres
def test_a_table_that_cannot_fit_is_refused_before_a_row_is_read(database: Database) -> None:
    """The table has a row that cannot be read. Reading it would raise another error."""
    create = [
        "create table t as select '{1}'::real[] as a, random() as b, random() as y from generate_series(1, 20000)",
        "insert into t values ('{1,null}', 1, 1)",
        "analyze t",
    ]
    with pytest.raises(
        MemoryLimitError, match=r"table public\.t need about [\d.]+ MB of memory, more than the 1\.0 MB"
    ):
        _prepared(database, create, "y", RowMemoryLimits(limit_bytes=MIB, host_bytes=1 << 40, free_bytes=1 << 40))


def test_a_target_of_several_values_takes_memory_for_each() -> None:
    single = estimate_of({"x": FLOAT, "y": FLOAT}, rows=1000)
    array = estimate_of({"x": FLOAT, "y": REALS}, rows=1000, shapes={"y": (5,)})
    two = estimate_of({"x": FLOAT, "y": FLOAT, "z": FLOAT}, rows=1000, targets=("y", "z"))
    assert array.encoded_bytes - single.encoded_bytes == 4 * 4 * 1000
    assert two.encoded_bytes - single.encoded_bytes == 4 * 1000
    assert two.columns_bytes - single.columns_bytes == 8 * 1000 + 2 * 8 * 1000  # the second one, and both combined
