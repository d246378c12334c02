"""A version is told what to train instead only if its baseline is better by more than chance explains."""

from dataclasses import replace

import pytest

from indb_tensile.job import Task
from indb_tensile.learning.training.baseline_verdict import JudgedVersion


def judged(metric: float, baseline: float, rows: int = 1000, *, higher: bool = True) -> JudgedVersion:
    return JudgedVersion(
        task=Task.CLASSIFICATION,
        architecture="mlp",
        outputs=2,
        metric_name="score",
        metric=metric,
        higher_is_better=higher,
        baseline={"metrics": {"score": baseline}, "test_rows": rows},
    )


@pytest.mark.parametrize(
    ("version", "better"),
    [
        (judged(0.56, 0.99), True),
        (judged(0.95, 0.97), True),
        (judged(0.95, 0.97, rows=100), False),
        (judged(0.5, 0.54, rows=100_000), False),
        (judged(0.5, 0.56, rows=100_000), True),
        (judged(-0.5, 0.4), True),
        (judged(0.97, 0.95), False),
        (judged(1.0, 1.0), False),
        (judged(3.0, 2.0, higher=False), True),
        (judged(2.0, 3.0, higher=False), False),
        (replace(judged(0.5, 0.9), metric=None), False),
        (replace(judged(0.5, 0.9), metric_name="another"), False),
        (replace(judged(0.5, 0.9), baseline={"reason": "all rows are of one class"}), False),
    ],
)
def test_a_difference_counts_if_it_is_large_and_no_chance(version: JudgedVersion, *, better: bool) -> None:
    assert bool(version.advice()) is better


def test_the_advice_names_both_metrics_and_only_what_can_be_trained() -> None:
    version = judged(0.5612, 0.9912)
    assert version.advice() == (
        "gradient boosting predicts the held-out rows better: score 0.9912, and this version 0.5612; train again "
        "with architecture => 'boosting' or architecture => 'tabm'"
    )
    several = replace(version, task=Task.REGRESSION, outputs=3)
    assert several.advice().endswith("train again with architecture => 'tabm'")
    assert replace(version, architecture="tabm").advice().endswith("train again with architecture => 'boosting'")
    assert replace(several, architecture="tabm").advice().endswith("this version 0.5612")
