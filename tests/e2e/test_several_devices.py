"""Check jobs that several devices train together: equal bits, and what a lost rank or controller changes."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import psycopg
import pytest

from tests.e2e.conftest import MIB, Service
from tests.e2e.trainings import _processes, load, weights

pytestmark = [pytest.mark.postgres, pytest.mark.nightly]

NETWORK = '{"type": "mlp", "hidden": [64, 48, 32], "dropout": 0.2}'
HYPERPARAMS = {"epochs": 3, "batch_size": 96, "seed": 7, "clip_norm": 0.5}
CAPACITIES_BYTES = (64 * MIB, 48 * MIB, 40 * MIB, 56 * MIB)


@pytest.fixture
def devices(service: Service) -> int:
    """The number of controllers; a test may say another one."""
    return 2


@pytest.fixture
def gang(service: Service, devices: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Controllers of so many emulated devices of different sizes on one catalog: the first is that of `service`."""
    service.settings |= {"TENSILE_ANSWER_S": "8", "TENSILE_LEASE_S": "4", "TENSILE_SHARING": "any_price"}
    service.start()
    with contextlib.ExitStack() as stack:
        started = [start(service, number, stack) for number in range(1, devices)]
        alive = "select count(*) from tensile.stat_device where alive"
        service.until(lambda: service.value(alive) == devices, "all controllers to report their devices")
        with service.database.connect("demo") as demo:
            load(demo, "digits")
        yield started


def start(service: Service, number: int, stack: contextlib.ExitStack) -> subprocess.Popen[bytes]:
    """Start a further controller, which ends with the stack."""
    directory = service.directory / f"device {number}"
    directory.mkdir(exist_ok=True)
    settings = {
        "TENSILE_STATE_DIR": str(directory),
        "TENSILE_CAPACITY_BYTES": str(CAPACITIES_BYTES[number]),
        "TENSILE_SERVICE_DIRECTORY": "",
    }
    with service.log.open("a") as log:
        process = subprocess.Popen(
            [sys.executable, *service.command],
            env=os.environ | service.settings | settings,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    stack.callback(end, process)
    return process


def end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGCONT)
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout=30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def train(service: Service, model: str, devices: int, **changes: object) -> int:
    """Enqueue a training on so many devices."""
    with service.database.connect("demo") as demo:
        row = demo.execute(
            "select tensile_train(%s, 'digits', architecture => %s, hyperparams => %s, devices => %s)",
            (model, NETWORK, json.dumps(HYPERPARAMS | changes), devices),
        ).fetchone()
    assert row is not None
    return int(row[0])


def alone(service: Service, devices: int, **changes: object) -> str:
    """Return the digest of the weights that one device trains, with batches in as many parts."""
    job = train(service, "alone", 1, micro_batch_size=HYPERPARAMS["batch_size"] // devices, **changes)
    assert service.until_ended(job) == ["succeeded"]
    return weights(service, job)


def ranks(service: Service, job: int) -> list[tuple[int, str, int]]:
    """Return number, state and controller's process of each rank that has a worker."""
    return service.connection.execute(
        "select r.rank, r.state, w.pid from tensile.stat_ranks as r join tensile.workers as w using (worker_id)"
        " where r.job_id = %s order by r.rank",
        (job,),
    ).fetchall()


def wait_until_all_train(service: Service, job: int) -> list[int]:
    """Wait until the job has trained an epoch on all devices, and return the controllers' processes by rank."""

    def training() -> list[int]:
        entered = ranks(service, job)
        epoch = service.value("select epoch from tensile.job_progress where job_id = %s", job) or 0
        complete = entered and all(state == "training" for _, state, _ in entered) and epoch > 1
        return [pid for _, _, pid in entered] if complete else []

    pids: list[int] = service.until(training, f"all ranks of job {job} to train")
    return pids


def trainers_of(pid: int, job: int) -> list[int]:
    """Return the trainers of a controller that have this job's name."""
    forks = {process for process, parent, _ in _processes() if parent == pid}
    found = [process for process, parent, _ in _processes() if parent in forks | {pid}]
    return [process for process in found if f"trainer {job}" in _title(process)]


def _title(process: int) -> str:
    try:
        with open(f"/proc/{process}/cmdline", "rb") as file:
            return file.read().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def check_clean(service: Service) -> None:
    """Check that nothing is left of the gangs."""
    left = "select count(*) from tensile.job_ranks"
    assert (service.value(left), service.value("select count(*) from tensile.rank_values")) == (0, 0)
    held = "select sum(granted_bytes) from tensile.stat_device where alive"
    service.until(lambda: service.value(held) == 0, "all device memory to be free")


@pytest.mark.parametrize("devices", [2, 3, 4])
def test_several_devices_publish_the_bits_of_one(
    service: Service, gang: list[subprocess.Popen[bytes]], devices: int
) -> None:
    job = train(service, "gang", devices)
    assert service.until_ended(job) == ["succeeded"]
    assert weights(service, job) == alone(service, devices)
    kinds = {kind for (kind,) in service.connection.execute("select kind from tensile.job_events").fetchall()}
    assert not kinds & {"memory_corrected", "interrupted"}
    check_clean(service)
