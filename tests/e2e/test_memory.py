"""A trainer that outgrows its control group: the kernel ends it, and the job says so and is not tried for ever.

The control group is a real one: a test that cannot make one skips and says why.
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
ROWS = 120_000  # of a thousand numbers each, which compress to nothing on disk and take 480 MB in memory
ELEMENTS = 1_000
MOUNTED = Path("/sys/fs/cgroup")
# In version 2 a group has processes or children, not both: the new one is made beside this process's own.
VERSIONS = (
    (MOUNTED / "memory", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
    (MOUNTED, "memory.max", "memory.swap.max"),
)


@pytest.fixture
def group() -> Iterator[Path]:
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
        _leave(path)
        return
    pytest.skip(f"no control group with a limit of memory can be made here: {'; '.join(reasons)}")


def _leave(path: Path) -> None:
    """Remove the group, whose processes end with the test."""
    end_s = time.monotonic() + 60
    while path.exists():
        for pid in (path / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                (path.parent / "cgroup.procs").write_text(pid)
        with contextlib.suppress(OSError):
            path.rmdir()
        if path.exists():
            assert time.monotonic() < end_s, f"{path} stays"
            time.sleep(0.02)


def _confine(service: Service, group: Path) -> None:
    """Move the controller and all that it has started; who is forked from now on is in the group, too."""
    assert service.process is not None
    family, processes = {service.process.pid}, list(all_processes())
    while grown := {process.pid for process in processes if process.parent in family} - family:
        family |= grown
    for pid in sorted(family):
        with contextlib.suppress(ProcessLookupError):
            (group / "cgroup.procs").write_text(str(pid))


def _table(service: Service) -> None:
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


def test_a_trainer_that_the_kernel_ends_for_memory_is_tried_once_more_and_then_the_job_says_so(
    service: Service, group: Path
) -> None:
    service.settings["TENSILE_READ_LIMIT_BYTES"] = "64GB"
    service.start()
    _table(service)
    # What is foretold is only as good as the statistics: with these, the table seems to have ten rows.
    service.connection.execute("update pg_class set reltuples = 10 where oid = 'wide'::regclass")
    _confine(service, group)
    job = _train(service)
    assert service.until_ended(job) == ["failed"]
    told = "select attempt, faults, error_sqlstate from tensile.jobs where job_id = %s"
    assert service.connection.execute(told, [job]).fetchone() == (2, 2, "53200")
    message = service.value("select error_message from tensile.jobs where job_id = %s", job)
    assert "the kernel ended its trainer for memory: it had " in message
    assert message.endswith(f" MB of {LIMIT_BYTES // MIB}.0 MB")
    hint = service.value("select error_hint from tensile.jobs where job_id = %s", job)
    for way in ("exclude", "sample", "read_limit_bytes", "more memory"):
        assert way in hint


def test_a_table_that_cannot_fit_the_control_group_is_refused_before_it_is_read(
    service: Service, group: Path
) -> None:
    service.start()
    _table(service)
    _confine(service, group)
    job = _train(service)
    assert service.until_ended(job) == ["failed"]
    attempt, message = service.connection.execute(
        "select attempt, error_message from tensile.jobs where job_id = %s", [job]
    ).fetchone() or (0, "")
    assert attempt == 1
    assert "the rows of table public.wide need about " in message
    assert f"more than the {LIMIT_BYTES // 2 // MIB}.0 MB that a trainer may use for them" in message
    foretold = service.value(
        "select max((detail ->> 'peak_bytes')::bigint) from tensile.job_events"
        " where job_id = %s and kind = 'reading'",
        job,
    )
    assert foretold > ROWS * ELEMENTS * 4
