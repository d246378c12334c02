"""The executor's benchmarks give the same rows on the back end for GPUs, in a process with the driver's double."""

import json
import subprocess
import sys
from typing import Any

import pytest

from indb_tensile.device.allocator_shim import preload_environment
from tests.native.cuda_double import ROOT, build, environment

Rows = list[dict[str, Any]]

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Rows]:
    """Return the rows of each benchmark."""
    variables = environment(
        build(tmp_path_factory.mktemp("driver")),
        FAKE_CUDA_HOST_COMPUTES="1",
        FAKE_CUDA_MEMORY_MB="1024",
        OMP_NUM_THREADS="1",
    )
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.on_gpu_double"],
        cwd=ROOT,
        env=preload_environment(variables),
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    return {name: rows for line in done.stdout.splitlines() for name, rows in json.loads(line).items()}


def test_our_plans_and_torchs_methods_take_turns_in_two_processes(ran: dict[str, Rows]) -> None:
    eager, saved, unconstrained, tight = ran["run_step"]
    assert [row["method"] for row in (eager, saved, unconstrained)] == ["eager", "save_on_cpu", "tensile+, no saving"]
    assert all(row["exact"] and row["buffers_exact"] for row in (eager, saved, unconstrained, tight))
    assert all(row["served"] for row in (unconstrained, tight))
    assert (
        tight["peak_allocated_bytes"] < 0.9 * unconstrained["peak_allocated_bytes"] <= eager["peak_allocated_bytes"]
    )


def test_results_are_exact_under_plans(ran: dict[str, Rows]) -> None:
    rows = ran["run_exact"]
    assert {(row["seed"], row["exact"]) for row in rows} == {(0, True), (1, True)}
    assert max(row["swaps"] for row in rows) > 0


def test_peaks_equal_their_forecasts(ran: dict[str, Rows]) -> None:
    rows = ran["run_forecast"]
    assert [abs(row["measured_peak_bytes"] / row["peak_bytes"] - 1) <= 0.01 for row in rows] == [True] * 3


def test_a_larger_batch_than_eagers_trains_within_its_memory(ran: dict[str, Rows]) -> None:
    (row,) = ran["run_maxbatch"]
    assert row["batch"] > row["eager_batch"] == 64
    assert row["peak_bytes"] <= row["eager_peak_bytes"]
