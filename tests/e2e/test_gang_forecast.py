"""Check what controllers of devices of different sizes foretell of a job that they train together."""

import contextlib
import json
import os
import re
import signal
from collections.abc import Iterator

import pytest

from tests.e2e.conftest import MIB, Service
from tests.e2e.test_several_devices import WIDE, end, train, wait_until_all_train
from tests.e2e.trainings import load

pytestmark = [pytest.mark.postgres, pytest.mark.nightly]

SMALL_BYTES = 46 * MIB
STEPS = "select rank, foretold_ms, slowest, together_ms from tensile.stat_ranks where job_id = %s order by rank"


@pytest.fixture
def small_device(service: Service) -> Iterator[int]:
    """The process of a second controller, whose device has to swap behind a slow link; the first one does not."""
    service.settings |= {
        "TENSILE_CAPACITY_BYTES": str(80 * MIB),
        "TENSILE_ANSWER_S": "30",
        "TENSILE_LEASE_S": "4",
        "TENSILE_LINK_OUT_BYTES_PER_S": "50000000",
        "TENSILE_LINK_IN_BYTES_PER_S": "50000000",
    }
    service.start()
    with contextlib.ExitStack() as stack:
        settings = {"TENSILE_CAPACITY_BYTES": str(SMALL_BYTES), "TENSILE_SERVICE_DIRECTORY": ""}
        process = service.spawn(settings)
        stack.callback(end, process)
        alive = "select count(*) from tensile.stat_device where alive"
        service.until(lambda: service.value(alive) == 2, "both controllers to report their devices")
        with service.database.connect("demo") as demo:
            load(demo, "digits")
        yield process.pid


def test_ranks_on_a_large_and_a_small_device_are_foretold_as_slow_as_the_small_one(
    service: Service, small_device: int
) -> None:
    job = train(service, "gang", 2, network=WIDE, epochs=100_000, zero_stage=0)
    pids = wait_until_all_train(service, job)
    slow = pids.index(small_device)

    def foretold() -> list[tuple[int, float, bool, float]]:
        """Return the ranks once rank 0 has read the other step, so that it foretells no less than the slower one."""
        rows = service.connection.execute(STEPS, (job,)).fetchall()
        known = len(rows) == 2 and all(row[1] is not None and row[3] is not None for row in rows)
        return rows if known and float(rows[0][3]) >= 0.9 * float(rows[slow][1]) else []

    (_, first_ms, _, together_ms), (_, second_ms, _, _) = rows = service.until(foretold, "the steps of both ranks")
    assert [row[2] for row in rows] == [rank == slow for rank in range(2)], rows
    # A step is published again when it has changed by a tenth.
    assert float(together_ms) <= 1.5 * max(float(first_ms), float(second_ms))
    other = 1 - slow
    assert float(rows[other][1]) < 0.8 * float(rows[slow][1]), "the small device has to copy"
    recorded = (
        "select predicted_iteration_ms from tensile.stat_plan where job_id = %s order by generation desc limit 1"
    )
    assert float(service.value(recorded, job)) >= 0.8 * float(rows[slow][1])
    values = "select count(*) from tensile.rank_values where key like 'step of rank %%' and job_id = %s"
    assert service.value(values, job) == 2
    with service.database.connect("demo") as demo:
        note, iteration_ms = demo.execute(
            "select note, iteration_ms from tensile_explain('other', 'digits', devices => 2, architecture => %s,"
            " hyperparams => %s) order by policy = 'tensile+' desc limit 1",
            (WIDE, json.dumps({"batch_size": 96, "clip_norm": 0.5, "zero_stage": 0})),
        ).fetchall()[0]
    text = re.search(
        r"an iteration of 2 devices is foretold to take (\S+) ms, and the slowest device is that of (\S+),"
        r" with a budget of (\S+ MB)",
        note,
    )
    assert text is not None, note
    assert iteration_ms > 0
    os.kill(small_device, signal.SIGKILL)
    service.until(lambda: service.state(job) == "queued", "the job to leave the devices")
    assert service.value(values, job) == 0
    assert service.connection.execute(STEPS, (job,)).fetchall() == []
