"""Check trainings whose rows are in a file: kills, cancels, a full disk, and tables of many columns.

A file of rows has no name. Nothing of it may be left when its trainer has ended, however it ended. By day
tests/learning/test_row_storage.py compares the bits of rows in a file with those in memory.
"""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.conftest import Database
from tests.e2e.conftest import Service
from tests.e2e.trainings import child_pids, train, wait_until_training, weights

pytestmark = pytest.mark.postgres

SMALL = '{"type": "mlp", "hidden": [32], "dropout": 0.1}'
READING = (
    "select detail from tensile.job_events where job_id = %s and kind = 'reading' order by event_id desc limit 1"
)
FAILURE = "select error_sqlstate, error_message, error_hint from tensile.jobs where job_id = %s"
READS = "select phase = 'reading' from tensile.jobs where job_id = %s"


@pytest.fixture
def demo(database: Database) -> Iterator[psycopg.Connection]:
    with database.connect("demo") as connection:
        yield connection


def make_table(demo: psycopg.Connection, rows: int, columns: int) -> None:
    listed = ", ".join(f"(random() * {n + 1})::real as c{n}" for n in range(columns))
    demo.execute("select setseed(0.5)")
    demo.execute(
        f"create table numbers as select i as id, {listed}, i % 3 as y from generate_series(1, {rows}) as i".encode()
    )
    demo.execute("alter table numbers add primary key (id)")
    demo.execute("grant select on numbers to tensile_reader")


def files_of_rows(service: Service) -> list[str]:
    """Return the files in the directory of rows, with and without names, that exist or are open."""
    directory = service.directory / "rows"
    files = [str(path) for path in directory.iterdir()] if directory.exists() else []
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            target = str(descriptor.readlink())
            if target.startswith(str(directory)):
                files.append(target)
    return files


@pytest.mark.nightly
def test_a_training_from_a_file_ends_with_the_same_bits_after_a_kill(
    service: Service, demo: psycopg.Connection
) -> None:
    service.settings["TENSILE_READ_LIMIT_BYTES"] = "1kB"
    service.start()
    make_table(demo, rows=3000, columns=12)
    undisturbed = train(demo, "undisturbed", "numbers", architecture=SMALL)
    assert service.until_ended(undisturbed) == ["succeeded"]
    job = train(demo, "killed", "numbers", architecture=SMALL)
    wait_until_training(service, job)
    for trainer in child_pids(service, "tensile trainer"):
        os.kill(trainer, signal.SIGKILL)
    assert service.until_ended(job) == ["succeeded"]
    assert service.value("select attempt from tensile.jobs where job_id = %s", job) == 2
    assert weights(service, job) == weights(service, undisturbed)
    assert service.value(READING, job)["in_file"]
    service.until(lambda: not files_of_rows(service), "the file of the rows to be gone")


@pytest.mark.nightly
def test_a_training_goes_on_with_the_same_bits_after_the_limit_has_changed(
    service: Service, demo: psycopg.Connection
) -> None:
    """The rows have more than one window of the shuffle (64 MB)."""
    service.start()
    make_table(demo, rows=150_000, columns=200)
    undisturbed = train(demo, "undisturbed", "numbers", architecture=SMALL, batch_size=1024)
    assert service.until_ended(undisturbed) == ["succeeded"]
    assert not service.value(READING, undisturbed)["in_file"]
    job = train(demo, "changed", "numbers", architecture=SMALL, batch_size=1024)
    wait_until_training(service, job)
    service.kill()
    service.settings["TENSILE_READ_LIMIT_BYTES"] = "1MB"
    service.start()
    assert service.until_ended(job) == ["succeeded"]
    assert service.value(READING, job)["in_file"]
    assert weights(service, job) == weights(service, undisturbed)


@pytest.mark.nightly
@pytest.mark.parametrize("ended_by", ["cancel", "kill of the controller", "kill of the trainer"])
def test_a_read_that_is_interrupted_leaves_nothing(service: Service, demo: psycopg.Connection, ended_by: str) -> None:
    service.settings["TENSILE_READ_LIMIT_BYTES"] = "1MB"
    service.start()
    make_table(demo, rows=400_000, columns=40)
    job = train(demo, "interrupted", "numbers", architecture=SMALL, epochs=1)
    service.until(lambda: service.value(READS, job) and files_of_rows(service), "the table to be read")
    if ended_by == "cancel":
        demo.execute("select tensile_cancel(%s)", (job,))
        assert service.until_ended(job) == ["cancelled"]
    elif ended_by == "kill of the controller":
        service.kill()
        service.start()
        assert service.until_ended(job) == ["succeeded"]
    else:
        for trainer in child_pids(service, "tensile trainer"):
            os.kill(trainer, signal.SIGKILL)
        assert service.until_ended(job) == ["succeeded"]
    service.until(lambda: not files_of_rows(service), "the file of the rows to be gone")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MB."""
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", tmp_path], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"no small file system can be mounted: {done.stderr.strip()}")
    yield tmp_path
    subprocess.run(["umount", "-l", tmp_path], check=True)


@pytest.mark.nightly
def test_a_disk_that_is_too_small_fails_the_job_with_the_way_out(
    service: Service, demo: psycopg.Connection, small_disk: Path
) -> None:
    service.settings |= {"TENSILE_READ_LIMIT_BYTES": "1MB", "TENSILE_ROWS_DIRECTORY": str(small_disk)}
    service.start()
    make_table(demo, rows=100_000, columns=20)
    # By its size the table is refused before it is read. With these statistics it seems to have ten rows.
    for number, statistics in enumerate(["select", "update pg_class set reltuples = 10 where relname = 'numbers'"]):
        service.connection.execute(statistics.encode())
        job = train(demo, f"full{number}", "numbers", architecture=SMALL)
        assert service.until_ended(job) == ["failed"]
        state, message, hint = service.connection.execute(FAILURE, [job]).fetchone() or ("", "", "")
        assert state == "53100"
        expected = (
            "for the rows of large tables is full" if number else f"on the disk of {small_disk}, and 8.0 MB are"
        )
        assert expected in message
        assert "TENSILE_ROWS_DIRECTORY" in hint
        service.until(lambda: not list(small_disk.iterdir()), "the file to be gone")
        assert os.statvfs(small_disk).f_bavail == os.statvfs(small_disk).f_blocks


@pytest.mark.nightly
@pytest.mark.parametrize(("rows", "columns"), [(3000, 1598), (50_000, 500)])
@pytest.mark.parametrize("limit", ["0", "1MB"], ids=["in memory", "in a file"])
def test_a_wide_table_trains_predicts_and_evaluates(
    service: Service, demo: psycopg.Connection, rows: int, columns: int, limit: str
) -> None:
    service.settings["TENSILE_READ_LIMIT_BYTES"] = limit
    service.start()
    make_table(demo, rows=rows, columns=columns)
    job = train(demo, "wide", "numbers", architecture=SMALL, epochs=1, batch_size=512)
    assert service.until_ended(job) == ["succeeded"]
    assert service.value(READING, job)["in_file"] == (limit != "0")
    predicted = demo.execute(
        "select tensile_predict_label('wide', n) from numbers as n order by id limit 3"
    ).fetchall()
    assert {label for (label,) in predicted} <= {"0", "1", "2"}
    called = "select key ->> 'id' as id, label from tensile_predict_table('wide', 'numbers')"
    counted = demo.execute(
        f"select count(*), count(label), count(distinct id) from ({called}) as p".encode()
    ).fetchone()
    assert counted == (rows, rows, rows)
    stored = demo.execute("select tensile_predict_into('wide', 'numbers', 'wide_answers')").fetchone()
    assert stored is not None
    assert service.until_ended(stored[0]) == ["succeeded"], service.log.read_text()
    differences = (
        f"select count(*), count(*) filter (where a.label <> p.label) from wide_answers as a join ({called}) as p"
    )
    compared = demo.execute(f"{differences} on p.id = a.id::text".encode()).fetchone()
    assert compared is not None
    # Networks compute other last digits in other batches, so a label of two equal chances may differ.
    assert (compared[0], compared[1] <= rows // 1000) == (rows, True)
    metrics: dict[str, float] = dict(demo.execute("select * from tensile_evaluate('wide', 'numbers')").fetchall())
    assert 0 <= metrics["accuracy"] <= 1
