"""The benchmark of defaults has its tables, and reports the metric and length of each training."""

from pathlib import Path

import pytest

from indb_tensile.bench.commands.defaults import METHODS, lines, measure
from indb_tensile.bench.harness.tables.sample_tables import NAMES, from_csv, make_table, sample
from indb_tensile.bench.harness.trainings.table_trainings import train
from indb_tensile.errors import MissingError
from indb_tensile.job import JobSpec, Relation, Task
from indb_tensile.learning.storage.columns import ColumnKind
from indb_tensile.learning.training.preparation import assemble

CSV = """kind,size,seen,maker
a,1.5,2013-01-01T10:00:00Z,x
b,NA,2013-01-02T11:30:00Z,
a,2,2013-01-03T12:00:00Z,z
"""


@pytest.mark.nightly
def test_every_method_is_measured_on_the_same_table() -> None:
    scores = list(measure(sample("tiny"), tuple(METHODS), seeds=1))
    assert [score.method for score in scores] == list(METHODS)
    assert all(0 <= score.metric <= 1 and score.seconds > 0 for score in scores)
    lengths = {score.method: (score.epochs, score.steps) for score in scores[:2]}
    assert lengths["fixed"] == (40, 40)
    assert lengths["defaults"][1] > 40
    assert [line["method"] for line in lines(scores)] == list(METHODS)


def test_training_stops_early_and_keeps_the_best_epoch() -> None:
    relation = Relation(oid=1, schema="public", name="t")
    spec = JobSpec(
        model="m",
        relation=relation,
        target="target",
        task=Task.REGRESSION,
        architecture={"type": "auto"},
        hyperparams={"epochs": 60, "learning_rate": 0.05},
        early_stop={"patience": 2},
    )
    prepared = assemble(sample("diabetes").table, spec)
    epochs, steps = train(prepared)
    assert epochs < 60
    assert steps == epochs * -(-prepared.train.rows // prepared.settings.batch_size)


def test_tables_are_equal_each_time_and_an_unknown_table_is_refused() -> None:
    assert (sample("wide").table.row_hash == sample("wide").table.row_hash).all()
    first, second = (sample("imbalanced").table.columns["x0"].values for _ in range(2))
    assert (first == second).all()
    with pytest.raises(MissingError, match='unknown table "moon"') as caught:
        sample("moon")
    assert NAMES[0] in caught.value.hint


def test_a_csv_file_has_numbers_timestamps_and_texts(tmp_path: Path) -> None:
    path = tmp_path / "seen.csv"
    path.write_text(CSV)
    csv_sample = from_csv(path, "size")
    kinds = {name: data.kind for name, data in csv_sample.table.columns.items()}
    assert kinds == {
        "id": ColumnKind.INTEGER, "kind": ColumnKind.TEXT, "size": ColumnKind.FLOAT,
        "seen": ColumnKind.TIME, "maker": ColumnKind.TEXT,
    }  # fmt: skip
    assert csv_sample.task is Task.REGRESSION
    assert from_csv(path, "kind").task is Task.CLASSIFICATION
    assert csv_sample.table.columns["size"].missing.tolist() == [False, True, False]
    assert csv_sample.table.columns["maker"].missing.tolist() == [False, True, False]
    with pytest.raises(MissingError, match='has no column "price"'):
        from_csv(path, "price")
    with pytest.raises(MissingError, match="there is no file"):
        from_csv(tmp_path / "none.csv", "size")


def test_a_table_of_the_benchmark_has_its_own_key() -> None:
    table = make_table({"x": sample("iris").table.columns["sepal_length"]})
    assert [column.name for column in table.described if column.primary_key] == ["id"]
    assert len(set(table.row_hash.tolist())) == table.rows == 150
