"""The benchmark of quality scores all methods on the same rows, ranks them, and says where the default loses."""

import json
from dataclasses import replace

import pytest

from indb_tensile.bench.commands.quality import (
    METHODS,
    QualityScore,
    QualityVerdict,
    compare,
    lines,
    main,
    measure,
    verdict_lines,
)
from indb_tensile.bench.harness.sample_tables import sample
from indb_tensile.errors import RequestError

ONE = QualityScore(
    table="a", rows=100, method="default", seed=0, score=90.0, auc=None, epochs=1, seconds=1.0, processor_s=1.0
)


def scored(table: str, rows: int, **points: float) -> list[QualityScore]:
    return [replace(ONE, table=table, rows=rows, method=method, score=score) for method, score in points.items()]


@pytest.mark.nightly
def test_every_method_scores_classes_and_values() -> None:
    for table in (sample("tiny"), sample("diabetes")):
        scores = list(measure(table, ("default", "boosting", "mlp", "plain"), seeds=1))
        assert [score.method for score in scores] == ["default", "boosting", "mlp", "plain"]
        assert all(score.score <= 100 and score.processor_s > 0 for score in scores)
        areas = [score.auc for score in scores]
        assert all(area is None for area in areas) == (table.name == "diabetes")
        assert all(0 <= area <= 100 for area in areas if area is not None)
        assert [line["method"] for line in lines(scores)] == ["default", "boosting", "mlp", "plain"]


def test_a_straight_line_is_tuned_for_classes_and_refuses_values() -> None:
    (score,) = measure(sample("wine"), ("logistic",), seeds=1)
    assert score.score > 90
    with pytest.raises(RequestError, match="diabetes is a regression"):
        list(measure(sample("diabetes"), ("logistic",), seeds=1))


def test_a_method_scores_the_same_again() -> None:
    first, second = (
        [score.score for score in measure(sample("tiny"), ("mlp", "boosting"), seeds=2)] for _ in range(2)
    )
    assert first == second


def test_ranks_are_means_over_the_sets_and_equal_scores_share_a_rank() -> None:
    scores = [
        *scored("a", 100, default=90.0, boosting=80.0, mlp=70.0),
        *scored("b", 5000, default=60.0, boosting=64.0, mlp=60.0),
        *scored("c", 4999, default=50.0, boosting=70.0, mlp=60.0),
    ]
    verdict = compare(scores)
    assert verdict == QualityVerdict(
        mean_ranks={"default": 6.5 / 3, "boosting": 4 / 3, "mlp": 7.5 / 3},
        behind={"a": -10.0, "b": 4.0, "c": 20.0},
        large_behind=("b",),
    )
    assert list(verdict_lines(verdict)) == [
        "mean rank: boosting 1.33, default 2.17, mlp 2.50",
        "behind boosting on 2: c +20.00, b +4.00",
        "not behind boosting on 1: a -10.00",
        "large sets more than 3 points behind: b",
    ]


def test_without_boosting_there_are_ranks_only() -> None:
    verdict = compare(scored("a", 100, default=90.0, mlp=70.0))
    assert list(verdict_lines(verdict)) == ["mean rank: default 1.00, mlp 2.00"]


@pytest.mark.nightly
def test_the_command_prints_trainings_and_the_comparison(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--sets", "diabetes", "--methods", "boosting", "mlp", "--seeds", "2"]
    main([*arguments, "--json"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["method"], row["seed"]) for row in rows[:-1]] == [
        ("boosting", 0), ("mlp", 0), ("boosting", 1), ("mlp", 1),
    ]  # fmt: skip
    assert rows[-1]["mean_ranks"].keys() == {"boosting", "mlp"}
    main(arguments)
    assert "mean rank: " in capsys.readouterr().out


def test_every_method_has_a_name_of_its_own() -> None:
    assert {"default", "boosting", "mlp", "plain", "own_mlp"} <= METHODS.keys()
