"""The commands of the planning benchmarks run on a network small enough for a test."""

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from indb_tensile.bench.commands import batch, multi, policies, speed
from indb_tensile.bench.harness.networks import known_networks as networks
from indb_tensile.bench.harness.networks.known_networks import Network
from indb_tensile.errors import RequestError

FEW = ("--policies", "liveness", "vanilla", "--budgets", "2", "--refine", "0")


@pytest.fixture(scope="module")
def captured_graphs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of captured graphs. Each graph is captured once for all tests of this module."""
    return tmp_path_factory.mktemp("graphs")


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch, captured_graphs: Path) -> None:
    """Register a small network as resnet50, the name that the defaults and targets use."""

    def build(_row: int) -> Any:
        from torch import nn

        return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 5))

    tiny = Network(name="resnet50", title="tiny", library="torch", batch=512, row=(64,), build=build)
    monkeypatch.setattr(networks, "NETWORKS", {"resnet50": tiny})
    monkeypatch.setenv(networks.CACHE_VARIABLE, str(captured_graphs))


def _run(main: Any, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[dict[str, Any]], str]:
    with pytest.raises(SystemExit) as ending:
        main(arguments)
    written = capsys.readouterr()
    assert isinstance(ending.value.code, int)
    return ending.value.code, [json.loads(line) for line in written.out.splitlines()], written.err


@pytest.mark.nightly
def test_every_case_gets_rows_for_every_policy(capsys: pytest.CaptureFixture[str]) -> None:
    code, rows, messages = _run(policies.main, capsys, "--models", "resnet50", "--json", *FEW)
    assert (code, messages) == (0, "")
    assert [(row["machine"], row["link_gb_s"], row["policy"]) for row in rows] == [
        (machine, link, policy)
        for machine, link in (("a6000", 12.0), ("a6000", 25.0), ("a6000", 55.0), ("a100", 25.0), ("h200", 25.0))
        for policy in ("liveness", "vanilla")
    ]


def test_a_missed_target_is_reported_and_the_exit_code_is_1(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--models", "resnet50", "--links", "25", "--json", "--policies", "tensile+", "--budgets", "1")
    code, _, messages = _run(policies.main, capsys, *arguments, "--refine", "0")
    assert code == 1
    assert "resnet50 at EOR <= 1.10: NOT REACHED: " in messages


def test_recorded_rivals_are_compared_without_planning_them_again(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    case = ("--models", "resnet50", "--links", "25", "--json", "--budgets", "1", "--refine", "0")
    _, rows, _ = _run(policies.main, capsys, *case, "--policies", "superneurons", "tensile+")
    rivals = [row for row in rows if row["policy"] == "superneurons"]
    elsewhere = {**rivals[0], "link_gb_s": 12.0, "policy": "of another case"}
    path = tmp_path / "before.json"
    path.write_text("".join(json.dumps(row) + "\n" for row in (*rows, elsewhere)))
    _, again, messages = _run(policies.main, capsys, *case, "--beside", str(path))
    planned = [row for row in rows if row["policy"] == "tensile+"]
    assert _without_time(again) == _without_time(planned)
    assert "covers superneurons" in messages


def _without_time(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "planning_ms"} for row in rows]


def test_tables_for_a_document_have_the_date_and_the_machine(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    case = ("--models", "resnet50", "--links", "25", "--budgets", "1", "--refine", "0")
    with pytest.raises(SystemExit):
        policies.main((*case, "--json", "--policies", "liveness", "tensile+"))
    path = tmp_path / "rows.json"
    path.write_text(capsys.readouterr().out)
    with pytest.raises(SystemExit):
        policies.main(("--recorded", str(path), "--markdown"))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("### resnet50, a6000, link_gb_s 25.0: vanilla ")
    assert [line.split(" | ")[0] for line in lines if line.startswith("| ")] == [
        "| policy",
        "| liveness",
        "| tensile+",
    ]
    assert "- covers liveness (1 points)" in lines
    assert lines[-2].startswith(f"- planned on {date.today().isoformat()} by ")


def test_recorded_rows_are_judged_again_without_planning(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    _, rows, _ = _run(policies.main, capsys, "--models", "resnet50", "--links", "25", "--json", *FEW)
    paths = [tmp_path / "first.json", tmp_path / "second.json"]
    for path, row in zip(paths, rows, strict=True):
        path.write_text(json.dumps({**row, "planning_ms": 12.5}) + "\n")
    _, again, _ = _run(policies.main, capsys, "--json", "--recorded", *map(str, paths))
    assert again == [{**row, "planning_ms": 12.5} for row in rows]
    with pytest.raises(RequestError, match="there is no file nowhere"):
        policies.main(("--recorded", "nowhere"))
    paths[0].write_text("no rows")
    with pytest.raises(RequestError, match=r"first\.json holds no rows"):
        policies.main(("--recorded", str(paths[0])))


@pytest.mark.nightly
def test_pytorchs_own_memory_budget_is_a_rival(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--models", "resnet50", "--links", "25", "--json", "--budgets", "2", "--refine", "0")
    _, rows, _ = _run(policies.main, capsys, *arguments, "--policies", "activation_memory_budget", "vanilla")
    mincut_rows = [row for row in rows if row["policy"] == "activation_memory_budget"]
    assert [row["faults"] for row in mincut_rows] == [[]] * len(mincut_rows)
    assert {row["budget_bytes"] for row in mincut_rows} == {None}
    # Without saved activations the whole forward pass is repeated: two layers, a ReLU, the loss's two operators.
    assert max(row["executions_more"] for row in mincut_rows) == 5


def test_without_json_the_output_is_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        policies.main(("--models", "resnet50", "--links", "25", *FEW))
    heading, columns, first, *_ = capsys.readouterr().out.splitlines()
    assert heading.startswith("resnet50, a6000, link_gb_s 25.0: vanilla ")
    assert columns.split()[:4] == ["policy", "MSR", "liveness", "at"]
    assert first.split()[:2] == ["liveness", "0.0%"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--models", "alexnet"), "there is no network 'alexnet'"),
        (("--machines", "abacus"), "there is no machine 'abacus'"),
        (("--policies", "luck"), "there is no policy 'luck'"),
        (("--models", "resnet50", "--links", "0"), "the link rate of 0.0 GB/s is out of range"),
    ],
)
def test_unknown_names_are_refused_with_a_sentence(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(RequestError, match=f"^{message}"):
        policies.main(arguments)


def test_each_batch_is_compared_at_its_own_size(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--models", "resnet50", "--batches", "8", "16", "--json", *FEW)
    _, rows, _ = _run(batch.main, capsys, *arguments)
    assert [(row["batch"], row["policy"]) for row in rows] == [
        (8, "liveness"), (8, "vanilla"), (16, "liveness"), (16, "vanilla")
    ]  # fmt: skip
    assert rows[0]["liveness_peak_bytes"] < rows[2]["liveness_peak_bytes"]
    with pytest.raises(RequestError, match="there is no batch of 0"):
        batch.main(("--batches", "0"))


def test_equal_jobs_take_turns_and_need_a_multiple_of_the_memory(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--models", "resnet50", "--jobs", "1", "3", "--json", *FEW)
    _, rows, _ = _run(multi.main, capsys, *arguments)
    alone, together = (row for row in rows if row["policy"] == "liveness")
    assert together["peak_bytes"] == 3 * alone["peak_bytes"]
    assert (together["eor"], together["eor_worst"], together["compute"]) == (1.0, 1.0, "turns")
    assert together["turn_us"] > 0
    with pytest.raises(RequestError, match="0 jobs cannot be planned"):
        multi.main(("--models", "resnet50", "--jobs", "0"))


def test_the_gain_of_phases_is_reported_apart_from_that_of_plans(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--models", "resnet50", "--jobs", "2", "--policies", "liveness", "zico", "--budgets", "3", "--json")
    _, rows, messages = _run(multi.main, capsys, *arguments)
    rows_of = {policy: [row for row in rows if row["policy"] == policy] for policy in {row["policy"] for row in rows}}
    assert set(rows_of) == {"liveness", "liveness in phases", "zico"}
    (plain,) = rows_of["liveness"]
    assert min(row["peak_bytes"] for row in rows_of["liveness in phases"]) < plain["peak_bytes"]
    assert min(row["peak_bytes"] for row in rows_of["zico"]) < plain["peak_bytes"]
    assert all(row["faults"] == [] for row in rows)
    assert all(0.98 <= row["eor"] <= 1.02 for row in rows), "below 1 if a job computes while another uploads"
    assert "resnet50, jobs 2, link_gb_s 25.0: EOR <= 1.10: liveness saves 0.0%, in phases " in messages


def test_equal_parts_of_the_budget_are_compared_with_jobs_planned_together(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ("--models", "resnet50", "--jobs", "2", "--policies", "tensile+", "--budgets", "2", "--refine", "0")
    _, rows, messages = _run(multi.main, capsys, *arguments, "--json")
    compared = [row for row in rows if row.get("eor_equal_parts") is not None]
    assert compared
    assert all(row["eor"] <= row["eor_equal_parts"] for row in compared)
    assert f"budget {compared[0]['budget_bytes']}: EOR {compared[0]['eor']:.4f}, worst job " in messages


@pytest.mark.nightly
def test_planning_is_timed_twice_for_each_size(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--operators", "60", "120", "--jobs", "1", "2", "--policies", "autoswap", "--rounds", "1", "--json")
    speed.main(arguments)
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["jobs"], row["policy"]) for row in rows] == [(1, "autoswap"), (2, "autoswap")] * 2
    assert rows[0]["operators"] < rows[2]["operators"]
    assert min(min(row["planning_ms"], row["replanning_ms"]) for row in rows) > 0
