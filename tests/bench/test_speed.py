"""The benchmark of planning reports rows by size and budget, with rivals that finish in time."""

import json
from argparse import Namespace

import pytest

from indb_tensile.bench.commands.speed import _budgets, main
from indb_tensile.bench.harness.networks.residual import residual
from indb_tensile.bench.harness.results.rows import make_case
from indb_tensile.errors import MissingError
from indb_tensile.scheduler.timing.machines import REFERENCE


@pytest.mark.nightly
def test_each_family_and_budget_has_a_row_with_the_best_rival_and_the_gain_of_more_work(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main(
        [
            "--operators",
            "100",
            "--families",
            "residual",
            "recurrent",
            "--jobs",
            "1",
            "--budget",
            "0.9",
            "0.85",
            "--rounds",
            "1",
            "--work",
            "2",
            "--json",
        ]
    )
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["model"], row["budget"]) for row in rows] == [
        ("residual", 0.9),
        ("residual", 0.85),
        ("recurrent", 0.9),
        ("recurrent", 0.85),
    ]
    assert all(row["faults"] == [] and row["peak_bytes"] <= row["budget_bytes"] for row in rows)
    assert all(row["rivals_stopped"] or row["eor"] <= row["rival_eor"] + 0.001 for row in rows)
    assert all(row["more_eor"] <= 1.01 * row["eor"] for row in rows)


@pytest.mark.nightly
def test_a_line_has_the_budget_and_the_rival_of_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--operators", "30", "--jobs", "2", "--budget", "0.5", "--rounds", "1", "--rivals", "capuchin"])
    (line,) = capsys.readouterr().out.splitlines()
    assert "operators x 2 jobs at 50%" in line
    assert "capuchin" in line
    assert "0 faults" in line


def test_networks_are_planned_at_ten_budgets_between_the_peak_and_the_floor() -> None:
    case = make_case([residual(100)], REFERENCE, 25.0, labels={})
    budgets = [budget(case) for budget in _budgets(Namespace(budget=None, models=[]))]
    assert len(budgets) == 10
    assert budgets == sorted(budgets, reverse=True)
    assert case.floor_bytes < budgets[-1] < budgets[0] < case.liveness_peak_bytes


def test_an_unknown_rival_and_a_budget_above_the_peak_are_refused() -> None:
    with pytest.raises(MissingError, match="there is no policy 'nobody'"):
        main(["--operators", "100", "--rivals", "nobody"])
    with pytest.raises(SystemExit):
        main(["--operators", "100", "--budget", "1.5"])
