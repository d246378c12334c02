"""Check the texts of answers for rows of a relation."""

import math

from indb_tensile.job import Task
from indb_tensile.learning.models.model_predictor import ModelPredictor
from indb_tensile.learning.training.preparation import assemble
from tests.learning.tables import bundle, spec, table
from worker.serving.answers import Answers
from worker.serving.requests import PredictionKind


def test_values_have_their_shortest_exact_digits_and_others_are_written_as_postgresql_reads_them() -> None:
    rows = [(n / 7, n / 3) for n in range(30)]
    made = assemble(table([("a", "double precision"), ("y", "double precision")], rows), spec("y", Task.REGRESSION))
    answers = Answers(ModelPredictor(bundle(made)))

    def values(*numbers: float) -> str | None:
        return answers.table_answer(numbers, PredictionKind.TABLE)["values"]

    assert values(0.1, 1e300, -2.0) == "{0.1,1e300,-2.0}"
    assert values(0.1, math.nan, math.inf, -math.inf) == "{0.1, NaN, Infinity, -Infinity}"
    assert values() == "{}"
