"""Check `tensile plan --curve`, which prints the trade-off curve of a step graph."""

import json
from pathlib import Path

from tests.cli.conftest import Tensile
from tests.cli.graphs import write_graph


def test_curve_extends_from_no_planning_to_the_lowest_peak(tensile: Tensile, tmp_path: Path) -> None:
    graph = write_graph(tmp_path / "small.json")
    done = tensile("plan", "--graph", graph, "--curve", "--link", "25", "--json")
    assert (done.code, done.err) == (0, "")
    rows = [json.loads(line) for line in done.out.splitlines()]
    assert (rows[0]["peak_bytes"], rows[-1]["peak_bytes"]) == (15 * 10**9, 10 * 10**9)
    assert [row["eor"] for row in rows] == sorted(row["eor"] for row in rows)
    assert (rows[0]["eor"], rows[0]["in_bytes"]) == (1.0, 0)
    assert all(row["bound_bytes"] <= row["peak_bytes"] and row["faults"] == 0 for row in rows)
    assert {row["model"] for row in rows} == {"small"}


def test_a_curve_is_that_of_the_policy_which_is_asked_for(tensile: Tensile, tmp_path: Path) -> None:
    graph = write_graph(tmp_path / "small.json")
    done = tensile("plan", "--graph", graph, "--curve", "--policy", "liveness", "--link", "25", "--json")
    assert (done.code, done.err) == (0, "")
    assert [json.loads(line)["peak_bytes"] for line in done.out.splitlines()] == [15 * 10**9]
    unknown = tensile("plan", "--graph", graph, "--curve", "--policy", "none", "--link", "25")
    assert unknown.code != 0
    assert "there is no policy 'none'" in unknown.err
