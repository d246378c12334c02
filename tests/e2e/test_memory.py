"""Check jobs whose rows exceed the memory of their trainer's control group.

They train from a file. Where that file takes memory too, the kernel kills the trainer, and the job fails with the
reason after a second attempt.

The control group is real. A test that cannot create one skips with the reason.
"""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from indb_tensile.bench.harness.processes.limited_memory import limited_memory
from indb_tensile.bench.harness.processes.process_table import all_processes
from tests.e2e.conftest import MIB, Service

pytestmark = pytest.mark.postgres

LIMIT_BYTES = 320 * MIB
ROWS = 120_000  # with 1,000 equal numbers each: little on disk because of compression, but 480 MB in memory
ELEMENTS = 1_000


@pytest.fixture
def control_group() -> Iterator[Path]:
    """A control group with LIMIT_BYTES of memory and no swap space."""
    with limited_memory(LIMIT_BYTES) as group:
        if group is None:
            pytest.skip("no control group with a memory limit can be created")
        yield group


def _move_into_group(service: Service, control_group: Path) -> None:
    """Move the controller and its descendants into the group. Processes that they fork later are in it too."""
    assert service.process is not None
    family, processes = {service.process.pid}, list(all_processes())
    while descendants := {process.pid for process in processes if process.parent in family} - family:
        family |= descendants
    for pid in sorted(family):
        with contextlib.suppress(ProcessLookupError):
            (control_group / "cgroup.procs").write_text(str(pid))


def _create_table(service: Service) -> None:
    connection = service.connection
    connection.execute(
        f"create table wide as select array_fill(i::real, array[{ELEMENTS}]) as a, random() as y"
        f"  from generate_series(1, {ROWS}) as i"
    )
    connection.execute("grant select on wide to tensile_reader; analyze wide")


def _train(service: Service) -> int:
    job = service.value("select tensile_train('wide', 'wide', 'y', hyperparams => '{\"epochs\": 1}')")
    assert isinstance(job, int)
    return job


@pytest.mark.nightly
def test_job_fails_after_two_kills_of_its_trainer_for_lack_of_memory(service: Service, control_group: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="suite-rows-", dir="/dev/shm") as in_memory:
        service.settings |= {"TENSILE_READ_LIMIT_BYTES": "1MB", "TENSILE_ROWS_DIRECTORY": in_memory}
        service.start()
        _create_table(service)
        _move_into_group(service, control_group)
        job = _train(service)
        assert service.until_ended(job) == ["failed"]
        assert list(Path(in_memory).iterdir()) == []
    outcome = "select attempt, faults, error_sqlstate from tensile.jobs where job_id = %s"
    assert service.connection.execute(outcome, [job]).fetchone() == (2, 2, "53200")
    message = service.value("select error_message from tensile.jobs where job_id = %s", job)
    assert "the kernel ended its trainer for memory: it had " in message
    assert message.endswith(f" MB of {LIMIT_BYTES // MIB}.0 MB")
    hint = service.value("select error_hint from tensile.jobs where job_id = %s", job)
    for remedy in ("exclude", "sample", "read_limit_bytes", "more memory"):
        assert remedy in hint


@pytest.mark.nightly
@pytest.mark.parametrize("analyzed", [True, False], ids=["analyzed", "statistics of ten rows"])
def test_table_too_large_for_the_control_group_is_trained_from_a_file(
    service: Service, control_group: Path, tmp_path: Path, analyzed: bool
) -> None:
    service.settings["TENSILE_ROWS_DIRECTORY"] = str(tmp_path)  # the state directory may be in memory
    service.start()
    _create_table(service)
    if not analyzed:
        service.connection.execute("update pg_class set reltuples = 10 where oid = 'wide'::regclass")
    _move_into_group(service, control_group)
    job = _train(service)
    assert service.until_ended(job) == ["succeeded"]
    assert service.value("select attempt from tensile.jobs where job_id = %s", job) == 1
    predicted_bytes = service.value(
        "select max((detail ->> 'peak_bytes')::bigint) from tensile.job_events"
        " where job_id = %s and kind = 'reading'",
        job,
    )
    assert predicted_bytes > ROWS * ELEMENTS * 4
