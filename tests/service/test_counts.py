"""Check that a model of counts predicts and is evaluated in the target's own unit by every function."""

import numpy as np
import pytest

from indb_tensile.learning.model_metrics import evaluate
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
