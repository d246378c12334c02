"""The benchmark of quality scores all methods on the same rows, ranks them, and says where the default loses."""

import json
from dataclasses import replace

import pytest

from indb_tensile.bench.commands.quality import (
    METHODS,
    Method,
    QualityScore,
    QualityVerdict,
    bars_met,
    compare,
    lines,
    main,
    measure,
    published_lines,
    verdict_lines,
)
from indb_tensile.bench.harness.tables.sample_tables import sample
from indb_tensile.bench.harness.trainings.published_times import PublishedTime, published_row
from indb_tensile.errors import RequestError

ONE = QualityScore(
    table="a", rows=100, method="default", seed=0, score=90.0, auc=None, epochs=1, seconds=1.0, processor_s=1.0
)


def scored(table: str, rows: int, **points: float) -> list[QualityScore]:
    return [replace(ONE, table=table, rows=rows, method=method, score=score) for method, score in points.items()]


def chosen(*names: str) -> dict[str, Method]:
    return {name: METHODS[name] for name in names}


@pytest.mark.nightly
def test_every_method_scores_classes_and_values() -> None:
    for table in (sample("tiny"), sample("diabetes")):
        scores = list(measure(table, chosen("default", "boosting", "mlp", "plain"), seeds=1))
        assert [score.method for score in scores] == ["default", "boosting", "mlp", "plain"]
        assert all(score.score <= 100 and score.processor_s > 0 for score in scores)
        areas = [score.auc for score in scores]
        assert all(area is None for area in areas) == (table.name == "diabetes")
        assert all(0 <= area <= 100 for area in areas if area is not None)
        assert [line["method"] for line in lines(scores)] == ["default", "boosting", "mlp", "plain"]


def test_a_straight_line_is_tuned_for_classes_and_refuses_values() -> None:
    (score,) = measure(sample("wine"), chosen("logistic"), seeds=1)
    assert score.score > 90
    with pytest.raises(RequestError, match="diabetes is a regression"):
        list(measure(sample("diabetes"), chosen("logistic"), seeds=1))


def test_a_method_scores_the_same_again() -> None:
    first, second = (
        [score.score for score in measure(sample("tiny"), chosen("mlp", "boosting"), seeds=2)] for _ in range(2)
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


def test_a_method_that_a_set_does_not_have_is_ranked_on_the_others() -> None:
    scores = [*scored("a", 100, default=90.0, logistic=91.0), *scored("b", 100, default=70.0)]
    assert compare(scores).mean_ranks == {"default": 1.5, "logistic": 1.0}


def test_a_regression_is_left_out_by_methods_for_classes(capsys: pytest.CaptureFixture[str]) -> None:
    smoothed = ["--hyperparams", '{"label_smoothing": 0.1}']
    main(["--sets", "diabetes", "--methods", "boosting", "logistic", *smoothed, "--seeds", "1", "--json"])
    assert [json.loads(line).get("method") for line in capsys.readouterr().out.splitlines()] == ["boosting", None]


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


TIMED = PublishedTime(
    table="a", rows=9, seed=0, epochs=7, ours_s=1.0, plain_s=4.0, plain_warm_s=0.5, plain_train_s=0.25
)


def test_times_are_compared_with_a_script_with_its_start_and_without_it() -> None:
    times = [TIMED, replace(TIMED, seed=1, ours_s=3.0), replace(TIMED, table="b", plain_warm_s=2.0)]
    assert published_row(times[:2]) == {
        "epochs": "7", "ours s": "2.00", "plain s": "4.00", "without start s": "0.50", "epochs s": "0.25",
        "ours/plain": "0.50", "ours/warm": "4.00",
    }  # fmt: skip
    assert list(published_lines(times)) == [
        "published later than by a plain script, on 0 of 2 sets: none",
        "published later than by a plain script without its start, on 1 of 2 sets: a 4.00",
    ]


def test_each_bar_that_was_measured_is_met_or_missed() -> None:
    verdict = QualityVerdict(
        mean_ranks={"default": 1.5, "boosting": 1.5}, behind={"a": 3.5, "b": -3.5}, large_behind=("a",)
    )
    assert bars_met(verdict, [TIMED, replace(TIMED, table="b", plain_warm_s=2.0)]) == {
        "the default's mean rank is no worse than boosting's": True,
        "on no large set more than 3 points behind boosting": False,
        "published no later than by a plain script": True,
        "published no later than by a plain script without its start": False,
    }
    assert bars_met(None, [replace(TIMED, plain_s=None)]) == {}


def test_a_network_that_the_script_does_not_know_has_our_time_only() -> None:
    times = [replace(TIMED, plain_s=None, plain_warm_s=None, plain_train_s=None)]
    assert published_row(times)["ours s"] == "1.00"
    assert published_row(times)["plain s"] == "-"
    assert list(published_lines(times)) == []


@pytest.mark.nightly
@pytest.mark.postgres
def test_the_time_until_a_version_is_published_stands_beside_a_scripts(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--sets", "iris", "--methods", "--seeds", "1", "--published", "--json"])
    row = json.loads(capsys.readouterr().out.splitlines()[0])
    assert (row["table"], row["epochs"] > 0, row["ours_s"] > 0) == ("iris", True, True)
    assert row["plain_s"] > row["plain_warm_s"] > row["plain_train_s"] > 0
