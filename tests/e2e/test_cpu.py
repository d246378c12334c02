"""Jobs on the processor's own device: the emulated device's bits, real memory on a disk, and threads for life."""

import os
from pathlib import Path

import pytest

from tests.e2e.conftest import MIB, Service
from tests.e2e.test_training import load, train, weights

pytestmark = pytest.mark.postgres

PLANNED = "select max(swaps + recomputed) from tensile.plans where job_id = %s"
CHECKPOINTED = "select 1 from tensile.checkpoints where job_id = %s"
THREADS = "select threads from tensile.jobs where job_id = %s"
KIND = "select device from tensile.workers where stopped_at is null"
EPOCHS = 6


def _on(service: Service, device: str, threads: int = 1, capacity_bytes: int = 64 * MIB) -> None:
    service.settings |= {
        "TENSILE_DEVICE": device,
        "TENSILE_TORCH_THREADS": str(threads),
        "TENSILE_CAPACITY_BYTES": str(capacity_bytes),
        "TENSILE_BUDGET_BYTES": str(capacity_bytes),
    }
    service.start()


def _trained(service: Service, model: str, epochs: int = EPOCHS) -> int:
    with service.database.connect("demo") as demo:
        job = train(demo, model, "digits", epochs=epochs)
    assert service.until_ended(job) == ["succeeded"]
    return job


def _open_swap_files(directory: Path) -> int:
    """Files that any process has open in the swap directory, with a name or without."""
    found = 0
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            found += os.readlink(link).startswith(str(directory / "swap"))  # noqa: PTH115 - text that is no path
        except OSError:
            continue
    return found


def test_the_processors_device_gives_the_emulated_ones_bits_planned_or_not_and_leaves_no_file(
    service: Service,
) -> None:
    _on(service, "emulated")
    with service.database.connect("demo") as demo:
        load(demo, "digits")
    expected = weights(service, _trained(service, "emulated"))
    service.stop()
    _on(service, "cpu")
    assert str(service.value(KIND)).startswith("cpu:")
    unplanned = _trained(service, "unplanned")
    assert weights(service, unplanned) == expected
    assert service.value(PLANNED, unplanned) == 0, "at no pressure nothing is copied"
    service.stop()
    _on(service, "cpu", capacity_bytes=6 * MIB)
    planned = _trained(service, "planned")
    assert weights(service, planned) == expected
    assert service.value(PLANNED, planned) > 0
    service.stop()
    assert list((service.directory / "swap").iterdir()) == []
    assert _open_swap_files(service.directory) == 0


@pytest.mark.nightly
def test_a_job_keeps_the_threads_that_it_was_first_started_with(service: Service) -> None:
    _on(service, "cpu", threads=2)
    with service.database.connect("demo") as demo:
        load(demo, "digits")
    expected = weights(service, _trained(service, "undisturbed", epochs=12))
    with service.database.connect("demo") as demo:
        job = train(demo, "disturbed", "digits", epochs=12)
    service.until(lambda: service.value(CHECKPOINTED, job), "a checkpoint")
    service.kill()
    assert service.state(job) == "running", "it ended before it was disturbed"
    _on(service, "cpu", threads=1)
    assert service.until_ended(job) == ["succeeded"]
    assert service.value(THREADS, job) == 2
    assert weights(service, job) == expected
    assert _open_swap_files(service.directory) == 0
