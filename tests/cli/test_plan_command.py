"""Check `tensile plan --graph`, which plans step graphs without a database."""

import json
from pathlib import Path
from typing import Any

import pytest

from indb_tensile.scheduler.document import Document, write_document
from indb_tensile.scheduler.graph import Operator, Stage, StepGraph
from indb_tensile.scheduler.policies import POLICIES
from tests.cli.conftest import Tensile
from tests.cli.graphs import write_graph


@pytest.fixture
def graph(tmp_path: Path) -> str:
    return write_graph(tmp_path / "small.json")


def _rows(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


def test_plan_shows_peaks_time_stalls_and_faults(tensile: Tensile, graph: str) -> None:
    done = tensile("plan", "--graph", graph, "--budget", "15000000000", "--policy", "liveness", "--json")
    assert (done.code, done.err) == (0, "")
    (row,) = _rows(done.out)
    assert row.pop("planning_ms") >= 0
    assert row["floor_bytes"] <= row.pop("bound_bytes") <= row["peak_bytes"]
    assert row == {
        "job": 1,
        "model": "small",
        "policy": "liveness",
        "link_gb_s": 25.0,
        "budget_bytes": 15 * 10**9,
        "vanilla_peak_bytes": 16 * 10**9,
        "liveness_peak_bytes": 15 * 10**9,
        "floor_bytes": 10 * 10**9,
        "planned_floor_bytes": 10 * 10**9,
        "peak_bytes": 15 * 10**9,
        "msr_vanilla": 0.0625,
        "msr_liveness": 0.0,
        "iteration_us": 4e6,
        "eor": 1.0,
        "cbr": 0.0,
        "compute_us": 4e6,
        "stall_out_us": 0.0,
        "stall_in_us": 0.0,
        "upload_us": 0.0,
        "turn_us": 0.0,
        "out_bytes": 0,
        "in_bytes": 0,
        "swaps": 0,
        "executions_more": 0,
        "faults": [],
    }


def test_plan_fits_the_budget_and_takes_longer_on_a_slow_link(tensile: Tensile, graph: str) -> None:
    arguments = ("plan", "--graph", graph, "--budget", "11GB", "--json", "--link")
    (fast,) = _rows(tensile(*arguments, "1000").out)
    (slow,) = _rows(tensile(*arguments, "5,2").out)
    assert max(fast["peak_bytes"], slow["peak_bytes"]) <= 11 * 1024**3
    assert fast["eor"] < 1.05
    assert slow["eor"] > 1.5
    assert slow["link_gb_s"] == [5.0, 2.0]


def test_several_graphs_are_planned_as_concurrent_jobs(tensile: Tensile, graph: str) -> None:
    arguments = ("plan", "--graph", graph, "--graph", graph, "--budget", "30GB", "--policy", "liveness", "--json")
    concurrent_jobs = _rows(tensile(*arguments).out)
    assert [(row["job"], row["iteration_us"]) for row in concurrent_jobs] == [(1, 4e6), (2, 4e6)]
    taking_turns = _rows(tensile(*arguments, "--compute", "turns").out)
    assert [(row["iteration_us"], row["eor"]) for row in taking_turns] == [(8e6, 1.0)] * 2


def test_phases_let_jobs_share_a_budget_below_the_sum_of_their_peaks(tensile: Tensile, graph: str) -> None:
    """Each of two jobs needs 15 GB at its peak and 10 GB otherwise. A gate keeps the peaks from coinciding."""
    arguments = ("plan", "--graph", graph, "--graph", graph, "--policy", "liveness", "--budget", "26000000000")
    refused = tensile(*arguments)
    assert (refused.code, refused.err.split(",")[0]) == (
        2,
        "tensile: under policy liveness 2 jobs together need 30000000000 bytes",
    )
    done = tensile(*arguments, "--phases", "--compute", "turns", "--json")
    assert (done.code, done.err) == (0, "")
    first, second, shared = _rows(done.out)
    assert [(row["job"], row["peak_bytes"], row["eor"], row["gate_us"]) for row in (first, second)] == [
        (1, 15 * 10**9, 1.0, 10.0**6),
        (2, 15 * 10**9, 1.0, 0.0),
    ]
    assert shared == {
        "jobs": 2,
        "peaks_bytes": 30 * 10**9,
        "together_bytes": 25 * 10**9,
        "saved_bytes": 5 * 10**9,
        "eor": 1.0,
        "eor_without_phases": None,
        "iterations": [1, 1],
        "gates": [
            {
                "job": 1,
                "iteration": 0,
                "operator": 1,
                "after_job": 2,
                "after_iteration": -1,
                "after_operator": 2,
            },
            {
                "job": 2,
                "iteration": 0,
                "operator": 1,
                "after_job": 1,
                "after_iteration": 0,
                "after_operator": 2,
            },
        ],
        "faults": [],
    }


def test_gates_are_printed_as_text(tensile: Tensile, graph: str, tmp_path: Path) -> None:
    arguments = ("plan", "--graph", graph, "--graph", graph, "--policy", "liveness", "--budget", "26000000000")
    path = tmp_path / "trace.json"
    done = tensile(*arguments, "--phases", "--timeline", str(path))
    assert done.code == 0
    assert done.out.endswith(
        "job 1, iteration 0, operator 1 waits for job 2, iteration -1, operator 2\n"
        "job 2, iteration 0, operator 1 waits for job 1, iteration 0, operator 2\n"
    )
    assert "saved_bytes     4.66 GB" in done.out
    starts: dict[int, set[float]] = {}
    for event in json.loads(path.read_text())["traceEvents"]:
        if event.get("name") == "make a":
            starts.setdefault(event["pid"], set()).add(event["ts"])
    assert not starts[0] & starts[1], "the operators that write 5 GB run at different times"


def test_unneeded_phases_have_no_gates(tensile: Tensile, graph: str) -> None:
    done = tensile("plan", "--graph", graph, "--graph", graph, "--budget", "1TB", "--phases", "--json")
    shared = _rows(done.out)[-1]
    assert (shared["gates"], shared["saved_bytes"], shared["eor"], shared["eor_without_phases"]) == ([], 0, 1.0, 1.0)


def test_plan_is_printed_with_one_value_a_line(tensile: Tensile, graph: str) -> None:
    done = tensile("plan", "--graph", graph, "--graph", graph, "--budget", "1TB")
    first, second = done.out.split("\n\n")
    assert "liveness_peak_bytes  13.97 GB" in first
    assert second.startswith("job                  2\n")


def test_timeline_is_written_as_a_trace(tensile: Tensile, graph: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    done = tensile("plan", "--graph", graph, "--budget", "11GB", "--timeline", str(path), "--json")
    assert done.code == 0
    events = json.loads(path.read_text())["traceEvents"]
    assert {"small" in e["args"]["name"] for e in events if e["name"] == "process_name"} == {True}
    assert "swap out of p" in {e["name"] for e in events}
    peak_bytes = max(e["args"]["bytes"] for e in events if e["ph"] == "C")
    assert peak_bytes == _rows(done.out)[0]["peak_bytes"]


def test_latencies_come_from_the_file_or_else_from_a_machine(tensile: Tensile, tmp_path: Path) -> None:
    timed, untimed = write_graph(tmp_path / "timed.json"), write_graph(tmp_path / "untimed.json", timed=False)

    def compute_us(*arguments: str) -> float:
        (row,) = _rows(tensile("plan", "--budget", "1TB", "--policy", "liveness", "--json", *arguments).out)
        microseconds: float = row["compute_us"]
        return microseconds

    assert compute_us("--graph", timed) == 4e6
    assert compute_us("--graph", untimed) == compute_us("--graph", timed, "--machine", "a6000")
    assert compute_us("--graph", untimed, "--machine", "h200") < compute_us("--graph", untimed) / 4


def test_budget_below_the_floor_is_refused_with_the_missing_bytes(tensile: Tensile, graph: str) -> None:
    done = tensile("plan", "--graph", graph, "--budget", "9999999999", "--json")
    assert done.code == 2
    assert done.err.startswith("tensile: the largest operator")
    assert done.err.endswith(
        " 10000000000 bytes, 1 more than the budget of 9999999999\n"
        "  hint: give --budget 10000000000, or another --policy\n"
    )
    (row,) = _rows(done.out)
    assert (row["needed_bytes"], row["budget_bytes"], row["shortfall_bytes"]) == (10**10, 10**10 - 1, 1)
    for_people = tensile("plan", "--graph", graph, "--budget", "9999999999")
    assert (for_people.code, for_people.out, for_people.err) == (2, "", done.err)


def test_budget_is_exact_to_the_byte(tensile: Tensile, graph: str) -> None:
    budget_bytes = 2**61 + 77
    (row,) = _rows(tensile("plan", "--graph", graph, "--budget", str(budget_bytes), "--json").out)
    assert row["budget_bytes"] == budget_bytes


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_operators_without_tensors_need_and_save_no_memory(tensile: Tensile, tmp_path: Path, policy: str) -> None:
    path = tmp_path / "bare.json"
    operator = Operator(name="step", signature="step", stage=Stage.FORWARD, reads=(), writes=())
    graph = StepGraph(tensors=(), operators=(operator, operator))
    path.write_text(write_document(Document(name="bare", graph=graph, latency_ns=(10, 20))), encoding="utf-8")
    done = tensile(
        "plan", "--graph", str(path), "--graph", str(path), "--budget", "1MB", "--policy", policy, "--json"
    )
    assert (done.code, done.err) == (0, "")
    fields = [
        {name: row[name] for name in ("peak_bytes", "msr_vanilla", "msr_liveness", "eor")} for row in _rows(done.out)
    ]
    assert fields == [{"peak_bytes": 0, "msr_vanilla": 0.0, "msr_liveness": 0.0, "eor": 1.0}] * 2


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--budget", "1GB"), "give either the number of a job or step graphs by --graph"),
        (("7", "--graph", "GRAPH"), "give either the number of a job or step graphs by --graph"),
        (("--graph", "GRAPH"), "no budget is given"),
        (("--graph", "GRAPH", "--budget", "much"), "'much' is not a size, such as 512MB or 2GB"),
        (("--graph", "GRAPH", "--budget", "-5"), "'-5' is not a size"),
        (("--graph", "GRAPH", "--budget", "1TB", "--policy", "luck"), "there is no policy 'luck'"),
        (("--graph", "GRAPH", "--budget", "1TB", "--machine", "abacus"), "there is no machine 'abacus'"),
        (("--graph", "GRAPH", "--budget", "1" + "0" * 400), "is too large: a size is below 2^62 bytes"),
        (("--graph", "GRAPH", "--budget", "1TB", "--link", "1e-9"), "the link would copy them for decades"),
        (("--graph", "GRAPH", "--budget", "1TB", "--link", "1e300"), "'1e300' is not one or two rates in GB/s"),
        (("--graph", "GRAPH", "--budget", "1TB", "--link", "25,5e9"), "'25,5e9' is not one or two rates in GB/s"),
        (
            ("--graph", "SURROGATE", "--budget", "1TB"),
            "the graph: name has half a surrogate pair, \\ud800, at character 1",
        ),
        (("--graph", "GRAPH", "--budget", "1TB", "--link", "0"), "'0' is not one or two rates in GB/s"),
        (("--graph", "GRAPH", "--budget", "1TB", "--link", "1,2,3"), "'1,2,3' is not one or two rates in GB/s"),
        (("--graph", "GRAPH", "--budget", "1TB", "--link", "fast"), "'fast' is not one or two rates in GB/s"),
        (("--graph", "missing.json", "--budget", "1TB"), "there is no file missing.json"),
        (("--graph", "BROKEN", "--budget", "1TB"), "the file is not JSON"),
    ],
)
def test_invalid_arguments_are_refused_with_a_message_and_code_2(
    tensile: Tensile, graph: str, tmp_path: Path, arguments: tuple[str, ...], sentence: str
) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    surrogate = tmp_path / "surrogate.json"
    surrogate.write_text(Path(graph).read_text().replace('"name":"small"', '"name":"\\ud800"'))
    files = {"GRAPH": graph, "BROKEN": str(broken), "SURROGATE": str(surrogate)}
    done = tensile("plan", *(files.get(argument, argument) for argument in arguments))
    assert (done.code, done.out) == (2, "")
    assert sentence in done.err
    assert "Traceback" not in done.err
