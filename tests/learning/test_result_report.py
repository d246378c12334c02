"""The result of a training is compared with a constant answer, and a model that is no better is warned about."""

import numpy as np

from indb_tensile.job import Task
from indb_tensile.learning.reports.result_report import report_result
from indb_tensile.learning.training.preparation import assemble
from tests.learning.tables import sample, spec


def test_a_classifier_no_better_than_a_constant_answer_is_warned_about() -> None:
    prepared = assemble(sample("breast_cancer"), spec("target"))
    y, trained = prepared.test.y.numpy(), prepared.train.y.numpy()
    share = float((y == np.bincount(trained).argmax()).mean())

    poor = report_result("accuracy", {"accuracy": share}, prepared.preprocessor, trained, y)
    good = report_result("accuracy", {"accuracy": 0.99}, prepared.preprocessor, trained, y)

    assert (
        f"accuracy {share:.4g} is no better than always answering the most frequent class of the training rows"
        in str(poor[1].warning)
    )
    assert [fact.warning for fact in good] == [None, None]


def test_a_regression_no_better_than_the_mean_is_warned_about() -> None:
    prepared = assemble(sample("diabetes"), spec("target", Task.REGRESSION))
    trained, tested = prepared.train.y.numpy(), prepared.test.y.numpy()
    facts = report_result("r2", {"r2": 0.004}, prepared.preprocessor, trained, tested)
    assert "r2 0.004 is no better than always answering the mean of the training rows" in str(facts[1].warning)
    assert report_result("roc_auc", {}, prepared.preprocessor, [], [])[0].value == "undefined"
