"""A controller and its trainers on the back end for a GPU, on a double of its driver.

The double's device memory is the host's: torch computes on the CPU in tensors that the preloaded shim places at
addresses of the device. Everything else is what a machine with a GPU runs: its choice, the broker and the regions
handed over sockets, a job's regions mapped into one range, lanes on streams, and the crash protocol.
"""

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
from tests.e2e.test_training import children, device_is_free, in_training, load, train, weights
from tests.native.cuda_double import ROOT, build

pytestmark = pytest.mark.postgres

# What a user starts, but for two facts: that torch has CUDA, and where it then computes.
TRAINER = "tests.e2e.gpu_double_trainer"
CONTROLLER = (
    "import sys\n"
    "from indb_tensile.worker import controller\n"
    f"controller.TRAINER = {TRAINER!r}\n"
    "controller.torch_cuda = lambda: '12.8'\n"
    "sys.exit(controller.main())\n"
)
CAPACITY_BYTES = 12 * MIB  # of the 14.4 that the step needs unplanned


@pytest.fixture
def service(database: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    driver = build(tmp_path_factory.mktemp("driver"))
    with service_on(database) as made:
        made.settings |= {
            "TENSILE_DEVICE": "auto",
            "LD_LIBRARY_PATH": f"{driver.parent}:{os.environ.get('LD_LIBRARY_PATH', '')}",
            "FAKE_CUDA_HOST_COMPUTES": "1",
            "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]),
            "TENSILE_CAPACITY_BYTES": str(CAPACITY_BYTES),
            "TENSILE_REGION_BYTES": str(2 * MIB),
        }
        yield made


def test_a_job_on_a_gpus_double_survives_a_kill_and_ends_with_the_bits_of_an_unplanned_one(service: Service) -> None:
    service.command = ["-c", CONTROLLER]
    service.start()
    with service.database.connect("demo") as demo:
        load(demo, "digits")
        killed = digits(demo, "on_gpu")
        in_training(service, killed)
        for trainer in children(service, "tensile gpu_dou"):  # the job's, and the spare one
            os.kill(trainer, signal.SIGKILL)
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
        assert re.search(rf"job {killed}: waited [\d.e-]+ s of [\d.e-]+ for its \d+ batches", log)
        assert "as a CUDA graph" in log, "it says of each step whether it is recorded, or why not"
        assert "fake CUDA" not in log, "the driver's rules were kept"
        service.settings |= {"TENSILE_SHARE_MEMORY": "false"}
        service.start()
        private = digits(demo, "in_memory_of_its_own")
        assert service.until_ended(private) == ["succeeded"]
        assert service.stop() == 0
        assert "each trainer allocates its own regions" in service.log.read_text()
        service.command = ["-m", "indb_tensile.worker.controller"]
        service.settings |= {
            "TENSILE_DEVICE": "emulated",
            "TENSILE_POLICY": "vanilla",
            "TENSILE_CAPACITY_BYTES": str(64 * MIB),
        }
        service.start()
        unplanned = digits(demo, "unplanned")
        assert service.until_ended(unplanned) == ["succeeded"]
    assert weights(service, killed) == weights(service, private) == weights(service, unplanned)


def test_a_controller_that_is_to_have_mps_does_not_start_where_no_daemon_answers(
    service: Service, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CONTROLLER],
        env=os.environ | service.settings | {"TENSILE_MPS": "true", "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 5, done.stderr
    assert "mps (TENSILE_MPS) is on, but no daemon of NVIDIA's MPS answers" in done.stderr


def digits(demo: psycopg.Connection, model: str) -> int:
    return train(demo, model, "digits", epochs=6, batch_size=512, optimizer="adam")
