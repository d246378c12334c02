"""A running training is traced: the file has the events of its plan, planned beside measured, for its owner only."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

from indb_tensile.catalog.traces import load_job_graph, load_job_plans
from indb_tensile.cli.main import tensile
from indb_tensile.scheduler.rewrite import effective
from tests.e2e.conftest import Service
from tests.e2e.trainings import device_is_free, train, wait_until_training

pytestmark = [pytest.mark.postgres, pytest.mark.nightly]


@pytest.fixture
def demo(running: Service) -> Iterator[psycopg.Connection]:
    with running.database.connect("demo") as connection:
        yield connection
    running.until(lambda: device_is_free(running), "the device to be free")


def trace(running: Service, path: Path, *arguments: str) -> list[dict[str, Any]]:
    command = ["trace", *arguments, "--output", str(path), "--dsn", running.database.dsn("demo")]
    outcome = CliRunner().invoke(tensile, command, catch_exceptions=False)
    assert outcome.exit_code == 0, outcome.output
    events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return events


def tracks(events: list[dict[str, Any]]) -> dict[str, int]:
    return {e["args"]["name"]: e["pid"] for e in events if e["name"] == "process_name"}


def slices(events: list[dict[str, Any]], track: int, *categories: str) -> set[tuple[str, str]]:
    named = {(e["cat"], e["name"]) for e in events if e["ph"] == "X" and e["pid"] == track}
    return {slice_ for slice_ in named if slice_[0] in categories}


def test_traces_of_running_jobs_have_the_events_of_their_plans(
    running: Service, demo: psycopg.Connection, tmp_path: Path
) -> None:
    jobs = [train(demo, name, "digits", epochs=5000) for name in ("traced", "beside")]
    for job in jobs:
        wait_until_training(running, job)
    # The controller reports the jobs on its device with its heartbeats.
    running.until(lambda: running.value("select count(*) = 2 from tensile.device_jobs"), "both jobs on the device")

    events = trace(running, tmp_path / "one.json", str(jobs[0]), "--iterations", "4")
    together = trace(running, tmp_path / "device.json", "--device", "--iterations", "1000")

    document, plans = load_job_graph(demo, jobs[0]), load_job_plans(demo, jobs[0])
    with running.database.connect("alice") as alice, pytest.raises(psycopg.Error, match="there is no job"):
        alice.execute("select tensile_trace(%s)", (jobs[0],))
    for job in jobs:
        demo.execute("select tensile_cancel(%s)", (job,))
    assert document is not None
    planned, measured = (tracks(events)[f"job {jobs[0]}: traced, {kind}"] for kind in ("planned", "measured"))
    assert slices(events, planned, "compute") == slices(events, measured, "compute")
    graph = effective(document.graph, plans[-1].plan)
    moved = {f"swap out of {graph.tensors[swap.tensor].name}" for swap in plans[-1].plan.swaps if swap.copies}
    swaps = {name for _, name in slices(events, measured, "swap out")}
    assert swaps <= moved
    if moved:
        assert swaps
    iterations = [e for e in events if e["ph"] == "X" and e["pid"] == measured and e["cat"] == "iteration"]
    assert len(iterations) == 4
    assert sorted(tracks(together)) == sorted(
        f"job {job}: {name}, {kind}"
        for job, name in zip(jobs, ("traced", "beside"), strict=True)
        for kind in ("planned", "measured")
    )
