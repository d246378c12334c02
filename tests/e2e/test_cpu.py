"""Check jobs on the CPU device: the bits of the emulated device, swap files on disk, a fixed number of threads."""

import os
from pathlib import Path

import pytest

from tests.e2e.conftest import MIB, Service
from tests.e2e.trainings import load, train, weights

pytestmark = pytest.mark.postgres

PLANNED = "select max(swaps + recomputed) from tensile.plans where job_id = %s"
CHECKPOINTED = "select 1 from tensile.checkpoints where job_id = %s"
THREADS = "select threads from tensile.jobs where job_id = %s"
KIND = "select device from tensile.workers where stopped_at is null"
EPOCHS = 6


def _start_on(service: Service, device: str, threads: int = 1, capacity_bytes: int = 64 * MIB) -> None:
    service.settings |= {
        "TENSILE_DEVICE": device,
        "TENSILE_TORCH_THREADS": str(threads),
        "TENSILE_CAPACITY_BYTES": str(capacity_bytes),
        "TENSILE_BUDGET_BYTES": str(capacity_bytes),
    }
    service.start()


def _train_job(service: Service, model: str, epochs: int = EPOCHS) -> int:
    with service.database.connect("demo") as demo:
        job = train(demo, model, "digits", epochs=epochs)
    assert service.until_ended(job) == ["succeeded"]
    return job


def _open_swap_files(directory: Path) -> int:
    """Count the files that any process has open in the swap directory, including removed files."""
    count = 0
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            count += os.readlink(link).startswith(str(directory / "swap"))  # noqa: PTH115 - the text of a removed file's link is no path
        except OSError:
            continue
    return count


@pytest.mark.nightly
def test_cpu_device_gives_the_bits_of_the_emulated_device_and_leaves_no_file(
    service: Service,
) -> None:
    _start_on(service, "emulated")
    with service.database.connect("demo") as demo:
        load(demo, "digits")
    expected = weights(service, _train_job(service, "emulated"))
    service.stop()
    _start_on(service, "cpu")
    assert str(service.value(KIND)).startswith("cpu:")
    unplanned = _train_job(service, "unplanned")
    assert weights(service, unplanned) == expected
    assert service.value(PLANNED, unplanned) == 0, "nothing is copied without memory pressure"
    service.stop()
    _start_on(service, "cpu", capacity_bytes=6 * MIB)
    planned = _train_job(service, "planned")
    assert weights(service, planned) == expected
    assert service.value(PLANNED, planned) > 0
    service.stop()
    assert list((service.directory / "swap").iterdir()) == []
    assert _open_swap_files(service.directory) == 0


@pytest.mark.nightly
def test_job_keeps_the_number_of_threads_of_its_first_start(service: Service) -> None:
    _start_on(service, "cpu", threads=2)
    with service.database.connect("demo") as demo:
        load(demo, "digits")
    expected = weights(service, _train_job(service, "undisturbed", epochs=12))
    with service.database.connect("demo") as demo:
        job = train(demo, "disturbed", "digits", epochs=12)
    service.until(lambda: service.value(CHECKPOINTED, job), "a checkpoint")
    service.kill()
    assert service.state(job) == "running", "the job ended before the kill"
    _start_on(service, "cpu", threads=1)
    assert service.until_ended(job) == ["succeeded"]
    assert service.value(THREADS, job) == 2
    assert weights(service, job) == expected
    assert _open_swap_files(service.directory) == 0
