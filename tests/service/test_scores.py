"""Check the scores that an evaluation stores on disk, and the metrics that are computed from them."""

from pathlib import Path

import numpy as np
import pytest
from sklearn import metrics

from indb_tensile.learning.evaluation import model_metrics
from worker.serving.answers import Scored
from worker.serving.scores import ScoreFiles


def test_scores_are_read_back_in_order_from_an_unnamed_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    scores = ScoreFiles()
    rng = np.random.default_rng(0)
    outputs, targets = rng.random((1000, 3), np.float32), rng.integers(0, 3, 1000)
    for start in range(0, 1000, 300):
        rows = slice(start, start + 300)
        scores.add([Scored(*pair) for pair in zip(outputs[rows], targets[rows], strict=True)])

    assert len(scores) == 1000
    assert list(tmp_path.iterdir()) == []
    mapped = scores.arrays()
    scores.close()
    assert [array.tolist() for array in mapped] == [outputs.tolist(), targets.tolist()]
    assert [array.dtype for array in mapped] == [np.float32, np.int64]


def test_scores_of_a_regression_keep_their_shape() -> None:
    scores = ScoreFiles()
    scores.add([Scored(np.ones(1, np.float32), np.full(1, 2.0, np.float32)) for _ in range(5)])

    outputs, targets = scores.arrays()
    scores.close()

    assert (outputs.shape, targets.shape) == ((5, 1), (5, 1))


@pytest.mark.parametrize("classes", [2, 5])
def test_metrics_computed_in_blocks_equal_those_of_the_whole(classes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(classes)
    outputs = rng.normal(0, 30, (5000, classes)).astype(np.float32)
    targets = rng.integers(0, classes, 5000)
    whole = model_metrics.evaluate_classes(outputs, targets)
    probabilities = model_metrics.probabilities(outputs)

    monkeypatch.setattr(model_metrics, "_METRIC_BLOCK_NUMBERS", 700)
    monkeypatch.setattr(model_metrics, "_MOST_IN_MEMORY", 900)

    assert model_metrics.evaluate_classes(outputs, targets) == whole
    assert np.array_equal(model_metrics.probabilities(outputs), probabilities)
    assert whole["log_loss"] == metrics.log_loss(targets, probabilities, labels=np.arange(classes))
