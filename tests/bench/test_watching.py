"""Run the benchmarks of what watching costs and of a search of scikit-learn, small."""

import json
import subprocess
import sys

import pytest

from indb_tensile.bench.commands.grid import GridRun, bars
from tests.conftest import Database


def bench(noun: str, database: Database, *options: str) -> list[dict[str, object]]:
    """Return the rows that a benchmark prints."""
    command = [sys.executable, "-m", "indb_tensile.bench", noun, *options, "--json", "--dsn", database.dsn()]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.postgres
@pytest.mark.nightly
def test_the_cost_of_watching_is_printed(database: Database) -> None:
    (figures,) = bench("watching", database, "--pages", "2", "--seconds", "1", "--rounds", "1", "--width", "16")

    assert {"slowdown", "page_share", "idle_page_share", "recording_share"} <= set(figures)
    assert (figures["pages"], figures["rounds"]) == (2, 1)


@pytest.mark.postgres
@pytest.mark.nightly
def test_a_search_has_the_same_scores_by_every_method(database: Database) -> None:
    rows = bench("grid", database, "--rounds", "1", "--epochs", "1", "--width", "16", "--candidates", "2")

    assert [row["method"] for row in rows] == ["turns", "first_fit", "completion"]


def test_the_bars_compare_with_the_best_rival_of_the_same_round() -> None:
    def runs(*seconds: float) -> list[GridRun]:
        return [GridRun(search_s=each, fit_s=each / 2, scores=(1.0,)) for each in seconds]

    compared = {"turns": runs(10.0, 20.0), "first_fit": runs(5.0, 8.0), "completion": runs(5.0, 10.0)}

    assert bars(compared) == [
        "time of the search over that of first_fit: 1.125, at most 1.03 is asked: NOT MET",
        "mean time of a fit over that of first_fit: 1.125, at most 1.03 is asked: NOT MET",
    ]
