"""Check the commands that export and import step graphs, and that benchmarks get their arguments."""

import json
from pathlib import Path
from typing import Any

import pytest

from indb_tensile.bench.harness.networks import known_networks as networks
from indb_tensile.bench.harness.networks.known_networks import Network
from indb_tensile.scheduler.document import read_document
from tests.cli.conftest import Tensile
from tests.cli.graphs import write_graph


def test_import_describes_a_graph(tensile: Tensile, tmp_path: Path) -> None:
    done = tensile("graph", "import", write_graph(tmp_path / "small.json"), "--json")
    assert (done.code, json.loads(done.out)) == (
        0,
        {
            "name": "small",
            "operators": 4,
            "tensors": 3,
            "random": 0,
            "splittable": 0,
            "parameter_bytes": 10 * 10**9,
            "optimizer_state_bytes": 0,
            "buffer_bytes": 0,
            "input_bytes": 0,
            "activation_bytes": 6 * 10**9,
            "largest_workspace_bytes": 0,
            "vanilla_peak_bytes": 16 * 10**9,
            "liveness_peak_bytes": 15 * 10**9,
            "floor_bytes": 10 * 10**9,
            "gflop": 4000.0,
            "compute_us": 4e6,
            "signature": "s",
        },
    )


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('"reads":[0],"writes":[]', '"reads":[1],"writes":[]', "operator 0 (use) reads a before it is written"),
        ('"writes":[2]', '"writes":[9]', "operator 2 (make b) writes tensor 9, which is unknown"),
        ('"size_bytes":1000000000,', '"size_bytes":-1,', "tensor 2: size_bytes is -1"),
        ('"version":1', '"version":3', "the graph's version is 3, and this program reads version 1"),
    ],
)
def test_invalid_graph_is_refused_with_the_name_of_its_file(
    tensile: Tensile, tmp_path: Path, old: str, new: str, sentence: str
) -> None:
    path = Path(write_graph(tmp_path / "wrong.json"))
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    done = tensile("graph", "import", str(path))
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"tensile: {path}: {sentence}\n  hint: ")


def test_exported_network_can_be_planned(tensile: Tensile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensile.variables[networks.CACHE_VARIABLE] = str(tmp_path / "cache")
    monkeypatch.setenv(networks.CACHE_VARIABLE, str(tmp_path / "cache"))
    with monkeypatch.context() as patch:  # a small network under the name of a large one
        patch.setattr(networks, "NETWORKS", {"lstm": _tiny()})
        graph = networks.graph_of("lstm", 2)
    path = str(tmp_path / "lstm.json")
    assert tensile("graph", "export", "lstm", "--batch", "2", "--output", path).code == 0
    document = read_document(Path(path).read_bytes())
    assert (document.name, document.graph) == ("lstm", graph)
    assert document.latency_ns is not None
    on_stdout = tensile("graph", "export", "lstm", "--batch", "2", "--machine", "none").out
    assert read_document(on_stdout).latency_ns is None
    assert read_document(on_stdout).graph == graph
    done = tensile("plan", "--graph", path, "--budget", "1TB", "--policy", "liveness", "--json")
    assert json.loads(done.out)["faults"] == []


def _tiny() -> Network:
    def build(row: int) -> Any:
        from torch import nn

        return nn.Linear(row, 2)

    return Network(name="lstm", title="tiny", library="torch", batch=4, row=(3,), build=build)


def test_unknown_network_is_refused(tensile: Tensile) -> None:
    done = tensile("graph", "export", "alexnet")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("tensile: there is no network 'alexnet'\n  hint: Networks are: vgg16")


@pytest.mark.nightly
def test_benchmark_gets_its_own_arguments(tensile: Tensile) -> None:
    done = tensile("bench", "queue", "--help")
    assert done.code == 0
    assert "--claimers" in done.out
    assert tensile("bench", "queue", "--jobs", "x").code == 2
