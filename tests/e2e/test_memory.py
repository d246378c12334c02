"""Check a job whose trainer exceeds the memory of its control group: the kernel kills the trainer, and the job fails
with the reason after a second attempt.

The control group is real. A test that cannot create one skips with the reason.
"""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from indb_tensile.bench.harness.chaos_processes import all_processes
from tests.e2e.conftest import MIB, Service

pytestmark = pytest.mark.postgres

LIMIT_BYTES = 320 * MIB
ROWS = 120_000  # with 1,000 equal numbers each: little on disk because of compression, but 480 MB in memory
ELEMENTS = 1_000
MOUNTED = Path("/sys/fs/cgroup")
# The files of versions 1 and 2. A group of version 2 has processes or children but not both, so the new group is
# created in the root and not in this process's own group.
VERSIONS = (
    (MOUNTED / "memory", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
    (MOUNTED, "memory.max", "memory.swap.max"),
)


@pytest.fixture
def control_group() -> Iterator[Path]:
    """A control group with LIMIT_BYTES of memory and no swap space."""
    reasons = []
    for root, name, swap in VERSIONS:
        path = root / f"tensile-test-{os.getpid()}"
        try:
            path.mkdir()
        except OSError as error:
            reasons.append(f"{path}: {error.strerror}")
            continue
        try:
            (path / name).write_text(str(LIMIT_BYTES))
            with contextlib.suppress(OSError):
                (path / swap).write_text(str(LIMIT_BYTES if name == "memory.limit_in_bytes" else 0))
        except OSError as error:
            reasons.append(f"{path / name}: {error.strerror}")
            path.rmdir()
            continue
        yield path
        _remove_group(path)
        return
    pytest.skip(f"no control group with a memory limit can be created: {'; '.join(reasons)}")


def _remove_group(path: Path) -> None:
    """Remove the group. Its processes end with the test."""
    end_s = time.monotonic() + 60
    while path.exists():
        for pid in (path / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                (path.parent / "cgroup.procs").write_text(pid)
        with contextlib.suppress(OSError):
            path.rmdir()
        if path.exists():
            assert time.monotonic() < end_s, f"{path} cannot be removed"
            time.sleep(0.02)


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
    service.settings["TENSILE_READ_LIMIT_BYTES"] = "64GB"
    service.start()
    _create_table(service)
    # The estimate before reading depends on the statistics. With these, the table seems to have ten rows.
    service.connection.execute("update pg_class set reltuples = 10 where oid = 'wide'::regclass")
    _move_into_group(service, control_group)
    job = _train(service)
    assert service.until_ended(job) == ["failed"]
    outcome = "select attempt, faults, error_sqlstate from tensile.jobs where job_id = %s"
    assert service.connection.execute(outcome, [job]).fetchone() == (2, 2, "53200")
    message = service.value("select error_message from tensile.jobs where job_id = %s", job)
    assert "the kernel ended its trainer for memory: it had " in message
    assert message.endswith(f" MB of {LIMIT_BYTES // MIB}.0 MB")
    hint = service.value("select error_hint from tensile.jobs where job_id = %s", job)
    for remedy in ("exclude", "sample", "read_limit_bytes", "more memory"):
        assert remedy in hint


@pytest.mark.nightly
def test_table_too_large_for_the_control_group_is_refused_before_it_is_read(
    service: Service, control_group: Path
) -> None:
    service.start()
    _create_table(service)
    _move_into_group(service, control_group)
    job = _train(service)
    assert service.until_ended(job) == ["failed"]
    attempt, message = service.connection.execute(
        "select attempt, error_message from tensile.jobs where job_id = %s", [job]
    ).fetchone() or (0, "")
    assert attempt == 1
    assert "the rows of table public.wide need about " in message
    assert f"more than the {LIMIT_BYTES // 2 // MIB}.0 MB that a trainer may use for them" in message
    predicted_bytes = service.value(
        "select max((detail ->> 'peak_bytes')::bigint) from tensile.job_events"
        " where job_id = %s and kind = 'reading'",
        job,
    )
    assert predicted_bytes > ROWS * ELEMENTS * 4
