"""The benchmark of the bound: plans are above it, and a distance that is too large fails."""

import json
from pathlib import Path

import pytest

from indb_tensile.bench.commands.bound import main
from indb_tensile.bench.harness.networks.residual import residual
from indb_tensile.errors import MissingError
from indb_tensile.scheduler.document import Document, write_document


@pytest.fixture
def document(tmp_path: Path) -> str:
    path = tmp_path / "graph.json"
    path.write_text(write_document(Document(name="residual", graph=residual(50))), encoding="utf-8")
    return str(path)


@pytest.mark.nightly
def test_each_overhead_has_a_row_and_more_time_takes_less_memory(
    document: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--documents", document, "--overheads", "1.02", "1.2", "--halvings", "3", "--json"])
    assert ended.value.code == 0
    less, more = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert (less["model"], less["overhead"], more["overhead"]) == ("residual", 1.02, 1.2)
    for row in (less, more):
        assert row["faults"] == []
        assert row["eor"] <= row["overhead"]
        assert row["bound_bytes"] <= row["plan_bytes"] <= row["liveness_peak_bytes"]
        assert row["points"] == pytest.approx(100 * (row["msr_bound"] - row["msr_plan"]), abs=0.001)
    assert more["plan_bytes"] < less["plan_bytes"]
    assert more["bound_bytes"] < less["bound_bytes"]


@pytest.mark.nightly
def test_a_distance_above_the_allowed_one_fails(document: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--documents", document, "--halvings", "1", "--most", "0"])
    assert ended.value.code == 1
    assert "points apart, 0 faults" in capsys.readouterr().out


def test_an_overhead_below_one_and_an_unknown_network_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--overheads", "0.9"])
    assert "'0.9' is no number from 1 on" in capsys.readouterr().err
    with pytest.raises(MissingError, match="there is no network 'nothing'"):
        main(["--models", "nothing"])
    with pytest.raises(MissingError, match="there is no file"):
        main(["--documents", "/nowhere/graph.json"])
