"""A table of 50,000 rows and 500 columns of all kinds is read, divided, weighed and encoded."""

import pytest
import torch

from indb_tensile.job import JobSpec, Task
from indb_tensile.learning.training.preparation import prepare
from tests.conftest import Database
from tests.learning.relations import relation

pytestmark = [pytest.mark.postgres, pytest.mark.nightly]

ROWS = 50_000
# For each type: how many columns it has, and an expression of the row `i` and the column `k`.
COLUMNS = {
    "real": (300, "sin(i * {k})::real"),
    "integer": (60, "i * {k} % 1000"),
    "boolean": (60, "(i + {k}) % 3 = 0"),
    "date": (30, "date '2000-01-01' + i * {k} % 9000"),
    "time": (10, "time '00:00' + i * {k} * interval '1 second'"),
    "interval": (10, "i * {k} * interval '1 minute'"),
    "mood": (10, "(enum_range(null::mood))[1 + (i + {k}) % 3]"),
    "text": (10, "'v' || (i + {k}) % 9"),
    "text[]": (6, "array['a' || i % 4, 'b' || {k}]"),
    "boolean[]": (2, "array[i % 2 = 0, i % {k} = 0]"),
    "jsonb": (2, "jsonb_build_object('a', jsonb_build_object('b', i % {k}))"),
}


def test_fifty_thousand_rows_of_five_hundred_columns_are_prepared(database: Database) -> None:
    listed = [(name, value) for name, (count, value) in COLUMNS.items() for _ in range(count)]
    assert len(listed) == 500
    described = ", ".join(f"c{k} {name}" for k, (name, _) in enumerate(listed, 1))
    values = ", ".join(value.format(k=k) for k, (_, value) in enumerate(listed, 1))
    documents = {f"c{k}": {"a.b": "number"} for k, (name, _) in enumerate(listed, 1) if name == "jsonb"}
    with database.connect() as admin, database.connect("tensile_reader") as reader:
        admin.execute("create type mood as enum ('sad', 'glad', 'so so')")
        admin.execute(f"create table t (id int primary key, {described}, w real, y int)".encode())
        admin.execute(f"insert into t select i, {values}, i % 3, i % 2 from generate_series(1, {ROWS}) as i".encode())
        admin.execute("grant select on t to tensile_reader")
        spec = JobSpec(
            model="m",
            relation=relation(admin, "t"),
            target="y",
            task=Task.CLASSIFICATION,
            architecture={"type": "auto"},
            hyperparams={"class_weight": "balanced", "weight": "w"},
            preprocess={"paths": documents, "scale": "quantile"},
            split={"stratify": "y", "test_size": 0.2},
        )
        prepared = prepare(reader, spec)
    assert prepared.train.rows + prepared.valid.rows + prepared.test.rows == ROWS
    assert prepared.test.targets.bincount().tolist() == [5000, 5000]
    assert prepared.train.x.shape == (prepared.train.rows, len(prepared.preprocessor.outputs))
    assert bool(torch.isfinite(prepared.train.x).all())
