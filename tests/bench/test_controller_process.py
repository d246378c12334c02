"""A controller of a benchmark ends with the benchmark, even when the benchmark is killed."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import Database

DEADLINE_S = 60.0
PROGRAM = """
import sys, time
from indb_tensile.bench.harness.processes.bench_controller import bench_controller, trainers_of
with bench_controller(sys.argv[1], "killed") as controller:
    print(controller.pid, *trainers_of(controller.pid), flush=True)
    time.sleep(3600)
"""


@pytest.mark.nightly
@pytest.mark.postgres
def test_a_killed_benchmark_leaves_no_controller_and_no_trainer(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # a killed benchmark leaves its controller's files
    with subprocess.Popen(
        (sys.executable, "-c", PROGRAM, database.dsn()), stdout=subprocess.PIPE, text=True
    ) as benchmark:
        assert benchmark.stdout is not None
        controller, *trainers = benchmark.stdout.readline().split()
        assert trainers
        benchmark.kill()

    end_s = time.monotonic() + DEADLINE_S
    while any(Path(f"/proc/{pid}").exists() for pid in (controller, *trainers)):
        assert time.monotonic() < end_s, f"of {controller} and {trainers} not all have ended"
        time.sleep(0.05)
