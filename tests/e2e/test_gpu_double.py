"""Check a controller and its trainers on the GPU back end, with a double of the GPU's driver.

The double's device memory is host memory. torch computes on the CPU, in tensors that the preloaded shim places at
device addresses. Everything else runs as on a machine with a GPU: the choice of the device, the broker, the regions
passed over sockets, a job's regions mapped into one range, lanes on streams, and the crash protocol.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.conftest import Database
from tests.e2e.conftest import MIB, Service, service_on
from tests.e2e.trainings import child_pids, device_is_free, load, train, wait_until_training, weights
from tests.native.cuda_double import ROOT, build, physical_bytes

pytestmark = pytest.mark.postgres

# The real controller with two changes: it believes that torch has CUDA, and its trainers compute on the CPU.
TRAINER = "tests.e2e.gpu_double_trainer"
CONTROLLER = (
    "import sys\n"
    "from indb_tensile.worker import controller, controller_device\n"
    f"controller.TRAINER = {TRAINER!r}\n"
    "controller_device.torch_cuda = lambda: '12.8'\n"
    "sys.exit(controller.main())\n"
)
CAPACITY_BYTES = 12 * MIB  # the step needs 14.4 MiB without planning


@pytest.fixture
def service(database: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    driver = build(tmp_path_factory.mktemp("driver"))
    with service_on(database) as service:
        service.settings |= {
            "TENSILE_DEVICE": "auto",
            "LD_LIBRARY_PATH": f"{driver.parent}:{os.environ.get('LD_LIBRARY_PATH', '')}",
            "FAKE_CUDA_HOST_COMPUTES": "1",
            "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]),
            "TENSILE_CAPACITY_BYTES": str(CAPACITY_BYTES),
            "TENSILE_REGION_BYTES": str(2 * MIB),
        }
        yield service


@pytest.mark.nightly
def test_job_on_a_gpu_double_survives_a_kill_with_the_bits_of_an_unplanned_job(service: Service) -> None:
    service.command = ["-c", CONTROLLER]
    service.start()
    with service.database.connect("demo") as demo:
        load(demo, "digits")
        killed = train_on_digits(demo, "on_gpu")
        wait_until_training(service, killed)
        send(child_pids(service, "tensile gpu_dou"), signal.SIGKILL)  # the job's trainer and the spare trainer
        assert service.until_ended(killed) == ["succeeded"]
        service.until(lambda: device_is_free(service), "the regions to come back")
        assert service.value("select attempt from tensile.jobs where job_id = %s", killed) == 2
        kind = service.value("select device from tensile.workers order by worker_id desc limit 1")
        swaps = service.value("select max(swaps + recomputed) from tensile.plans where job_id = %s", killed)
        assert (kind, swaps > 0) == ("cuda:Fake GPU 0", True)
        assert service.stop() == 0
        log = service.log.read_text()
        assert "unplanned=0" in log
        assert re.search(rf"job {killed}: \d+ iterations ran as one CUDA graph each", log)
        assert re.search(rf"job {killed}: waited [\d.e-]+ s of [\d.e-]+ for its \d+ batches, of which \d+ were", log)
        assert "as a CUDA graph" in log, "the log says of each step whether it is recorded, or why not"
        assert "fake CUDA" not in log, "the driver's double reported a violated rule"
        service.settings |= {"TENSILE_SHARE_MEMORY": "false"}
        service.start()
        with_own_regions = train_on_digits(demo, "in_memory_of_its_own")
        assert service.until_ended(with_own_regions) == ["succeeded"]
        assert service.stop() == 0
        assert "each trainer allocates its own regions" in service.log.read_text()
        service.command = ["-m", "indb_tensile.worker.controller"]
        service.settings |= {
            "TENSILE_DEVICE": "emulated",
            "TENSILE_POLICY": "vanilla",
            "TENSILE_CAPACITY_BYTES": str(64 * MIB),
        }
        service.start()
        unplanned = train_on_digits(demo, "unplanned")
        assert service.until_ended(unplanned) == ["succeeded"]
    assert weights(service, killed) == weights(service, with_own_regions) == weights(service, unplanned)


@pytest.mark.nightly
@pytest.mark.parametrize("shared", [True, False], ids=["regions of the controller", "regions of its own"])
def test_training_paused_on_a_gpu_double_gives_up_every_region_and_publishes_the_same_bits(
    service: Service, shared: bool
) -> None:
    service.command = ["-c", CONTROLLER]
    service.settings |= {"TENSILE_SHARE_MEMORY": "true" if shared else "false"}
    service.start()
    with service.database.connect("demo") as demo:
        load(demo, "digits")
        undisturbed = train_on_digits(demo, "undisturbed")
        assert service.until_ended(undisturbed) == ["succeeded"]
        paused = train_on_digits(demo, "paused")
        wait_until_training(service, paused)
        demo.execute("select tensile_pause(%s)", (paused,))
        phase = "select phase = 'paused' from tensile.jobs where job_id = %s"
        service.until(lambda: service.value(phase, paused), "the job to leave the device")
        service.until(lambda: device_is_free(service), "the regions to come back")
        other = train_on_digits(demo, "other")
        assert service.until_ended(other) == ["succeeded"]
        demo.execute("select tensile_resume(%s)", (paused,))
        assert service.until_ended(paused) == ["succeeded"]
    assert service.stop() == 0
    log = service.log.read_text()
    assert "unplanned=0" in log
    assert "fake CUDA" not in log, "the driver's double reported a violated rule"
    assert service.value("select max(attempt) from tensile.jobs") == 1
    assert weights(service, paused) == weights(service, undisturbed) == weights(service, other)


@pytest.mark.nightly
def test_running_job_shrinks_for_another_program_whose_memory_is_really_free_and_keeps_its_bits(
    service: Service, tmp_path: Path
) -> None:
    others = tmp_path / "others"
    controller = start_beside(service, others)
    with service.database.connect("demo") as demo:
        load(demo, "digits")
        squeezed = train_on_digits(demo, "squeezed", epochs=150)
        wait_until_training(service, squeezed)
        assert physical_bytes(controller) == CAPACITY_BYTES
        others.write_text(str(14 * MIB))
        service.until(lambda: physical_bytes(controller) <= 10 * MIB, "the driver to have memory back")
        assert service.value("select state from tensile.jobs where job_id = %s", squeezed) == "running"
        others.write_text("0")
        service.until(lambda: physical_bytes(controller) == CAPACITY_BYTES, "the regions to have memory again")
        assert service.until_ended(squeezed) == ["succeeded"]
        assert service.value("select attempt from tensile.jobs where job_id = %s", squeezed) == 1
        undisturbed = train_on_digits(demo, "undisturbed", epochs=150)
        assert service.until_ended(undisturbed) == ["succeeded"]
    assert weights(service, squeezed) == weights(service, undisturbed)
    assert service.stop() == 0, service.log.read_text()[-4000:]
    log = service.log.read_text()
    assert "memory of other programs and of ranks leaves jobs a budget of 10485760 bytes now" in log
    assert "2097152 bytes of the device's memory are returned for other programs" in log
    assert "2097152 bytes of the device's memory are allocated again" in log
    assert "fake CUDA" not in log, "the driver's double reported a violated rule"


@pytest.mark.nightly
def test_trainer_killed_while_it_is_to_release_memory_delays_no_other_program_and_its_job_keeps_its_bits(
    service: Service, tmp_path: Path
) -> None:
    others = tmp_path / "others"
    controller = start_beside(service, others)
    with service.database.connect("demo") as demo:
        load(demo, "digits")
        killed = train_small(demo, "killed")
        wait_until_training(service, killed)
        trainers = child_pids(service, "tensile gpu_dou")  # the job's trainer and the spare trainer
        send(trainers, signal.SIGSTOP)
        others.write_text(str(18 * MIB))
        fallen = "memory of other programs and of ranks leaves jobs a budget of 6291456 bytes now"
        service.until(lambda: fallen in service.log.read_text(), "the budget to fall")
        assert physical_bytes(controller) == CAPACITY_BYTES  # the trainer that is stopped has the memory mapped
        send(trainers, signal.SIGKILL)
        service.until(lambda: physical_bytes(controller) <= 6 * MIB, "the driver to have memory back")
        assert service.until_ended(killed) == ["succeeded"]
        assert service.value("select attempt from tensile.jobs where job_id = %s", killed) == 2
        others.write_text("0")
        service.until(lambda: physical_bytes(controller) == CAPACITY_BYTES, "the regions to have memory again")
        undisturbed = train_small(demo, "undisturbed")
        assert service.until_ended(undisturbed) == ["succeeded"]
    assert weights(service, killed) == weights(service, undisturbed)
    assert service.stop() == 0, service.log.read_text()[-4000:]
    assert "fake CUDA" not in service.log.read_text(), "the driver's double reported a violated rule"


@pytest.mark.nightly
def test_controller_with_mps_does_not_start_without_a_daemon(service: Service, tmp_path: Path) -> None:
    completed = subprocess.run(
        [sys.executable, "-c", CONTROLLER],
        env=os.environ | service.settings | {"TENSILE_MPS": "true", "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode == 5, completed.stderr
    assert "mps (TENSILE_MPS) is on, but no daemon of NVIDIA's MPS answers" in completed.stderr


def train_on_digits(demo: psycopg.Connection, model: str, epochs: int = 6) -> int:
    return train(demo, model, "digits", epochs=epochs, batch_size=512, optimizer="adam")


def train_small(demo: psycopg.Connection, model: str) -> int:
    """Train a model that leaves most of the device free."""
    architecture = '{"type": "mlp", "hidden": [64]}'
    return train(demo, model, "digits", architecture=architecture, epochs=400, batch_size=128)


def start_beside(service: Service, others: Path) -> int:
    """Start a controller beside other programs, which use as many bytes as the file says. Return its process."""
    others.write_text("0")
    (service.directory / "trainer-footprints.json").write_text(json.dumps({"cuda:Fake GPU 0": MIB}))
    service.settings["OTHER_PROGRAMS"] = str(others)
    service.command = ["-m", "tests.e2e.gpu_double_controller"]
    service.start()
    assert service.process is not None
    return service.process.pid


def send(processes: list[int], number: signal.Signals) -> None:
    for process in processes:
        os.kill(process, number)
