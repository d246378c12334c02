"""Check counts: of a target, in its own unit by every function, and of the inputs that a service predicts for."""

import numpy as np
import psycopg
import pytest

from indb_tensile.learning.decoding.jsonrows import column_of
from indb_tensile.learning.evaluation.input_bins import read_bins
from indb_tensile.learning.evaluation.model_metrics import evaluate
from indb_tensile.learning.storage.columns import ColumnKind
from tests.conftest import Database
from worker.predicting.answer_rows import AnswerRows

from .conftest import Service, fill, publish

pytestmark = pytest.mark.postgres


def test_counts_are_predicted_in_their_own_unit_by_every_function(database: Database, service: Service) -> None:
    with database.connect(user="demo") as demo:
        fill(demo, "visits", "visitors", "int:1000 + 500 * (n % 3)")
    poisson = """, target => 'visitors', task => 'regression', hyperparams => '{"loss": "poisson"}'"""
    published = publish(database, "visits", "visits", poisson)
    target = published.prepared.preprocessor.target
    with database.connect(user="demo") as demo:
        rows = demo.execute("select to_jsonb(v) as row, v.visitors from visits as v order by id").fetchall()
        single = demo.execute("select tensile_predict('visits', v) from visits as v order by id").fetchall()
        batch = demo.execute("select tensile_predict_batch('visits', array_agg(v order by id)) from visits as v")
        batched = batch.fetchall()[0][0]
        table = demo.execute(
            "select value from tensile_predict_table('visits', 'visits') order by (key ->> 'id')::int"
        ).fetchall()
        evaluated = demo.execute("select metric, value from tensile_evaluate('visits', 'visits')").fetchall()

    outputs = published.predictor.outputs(published.prepared.preprocessor.transform_rows([row for row, _ in rows]))
    expected = (np.exp(outputs[:, 0].astype(np.float64)) * target.scale).tolist()
    assert [value for (value,) in single] == pytest.approx(expected)
    assert batched == pytest.approx(expected)
    assert [value for (value,) in table] == pytest.approx(expected)
    (cells,) = AnswerRows(published.predictor, with_probabilities=False).encode(outputs)  # of tensile_predict_into
    written = np.frombuffer(b"".join(bytes(cell)[-8:] for cell in cells), ">f8")
    assert written.tolist() == pytest.approx(expected)
    assert 500 < min(expected) < max(expected) < 4000, "an untrained network predicts about the mean"
    encoded = published.prepared.preprocessor.targets_of([row for row, _ in rows])
    held_out = evaluate(target.task, outputs, encoded, published.prepared.preprocessor)
    assert dict(evaluated) == pytest.approx(held_out)


def test_every_function_counts_the_inputs_that_it_predicts_for_while_the_owner_asks_for_it(
    database: Database, service: Service
) -> None:
    with database.connect(user="demo") as demo:
        fill(demo, "baskets", "y", "double precision:n")
    published = publish(database, "baskets", "baskets", ", target => 'y', task => 'regression'")
    a, b = published.prepared.inputs["input_counts"]["inputs"]
    bins = read_bins(published.prepared.inputs["input_bins"])
    statements = {
        "select tensile_predict('baskets', v) from baskets as v": 60,
        "select tensile_predict_batch('baskets', array_agg(v)) from baskets as v": 60,
        "select * from tensile_predict_table('baskets', 'baskets')": 60,
        "select tensile_predict_vector('baskets', row(0.25, 'x'))": 1,
        'select tensile_predict(\'baskets\', \'{"a": null, "b": "unseen"}\')': 1,
        "select count(*) from (select (tensile_predict_proba('baskets', row('no', 1))).*) as faulty": 0,
    }
    with database.connect(user="demo") as demo:
        demo.execute("select tensile_predict('baskets', v) from baskets as v")
        demo.execute("select tensile_measure_drift('baskets')")
        for statement, rows in statements.items():
            if rows:
                demo.execute(statement.encode())
            else:
                with pytest.raises(psycopg.Error):
                    demo.execute(statement.encode())
        demo.execute("select tensile_measure_drift('baskets', false)")
        demo.execute("select tensile_predict('baskets', v) from baskets as v")
        service.stop()  # which stores what was counted
        shown = demo.execute(
            "select feature, predicted_rows, bins from tensile.stat_drift where model = 'baskets'"
        ).fetchall()
        table = demo.execute("select a, b from baskets").fetchall()

    columns = {
        "a": column_of("a", ColumnKind.FLOAT, [*(own for own, _ in table * 3), 0.25, None]),
        "b": column_of("b", ColumnKind.TEXT, [*(own for _, own in table * 3), "x", "unseen"]),
    }
    assert [(feature, rows) for feature, rows, _ in shown] == [("a", 182), ("b", 182)]
    for (_, _, own), entry, each in zip(shown, (a, b), bins, strict=True):
        assert [row["predicted"] for row in own] == each.counts(columns[each.feature]).tolist()
        assert [row["training"] for row in own] == entry["counts"]
        assert len({row["bin"] for row in own}) == each.size
