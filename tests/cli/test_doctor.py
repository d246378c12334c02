"""Check `tensile doctor`: which faults it finds, and the remedy that it names for each."""

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from indb_tensile.cli import doctor
from indb_tensile.cli.doctor import device
from tests.cli.conftest import Done, Tensile
from tests.conftest import Database

pytestmark = pytest.mark.postgres


def checks_by_name(done: Done) -> dict[str, dict[str, Any]]:
    """Return the checks by name."""
    return {row["check"]: row for row in map(json.loads, done.out.splitlines())}


def test_doctor_without_a_database_checks_the_machine_and_names_the_first_step(tensile: Tensile) -> None:
    done = tensile("doctor", "--json")
    checks = checks_by_name(done)
    assert done.code == 1
    assert [name for name, row in checks.items() if row["ok"]] == [
        "python", "torch", "native library", "shared memory", "gpu", "rows of tables", "device",
            "device memory", "swap directory", "PostgreSQL"]  # fmt: skip
    assert checks["embedded cluster"]["mend"] == "tensile up"
    assert tensile.variables["TENSILE_STATE_DIR"] in checks["embedded cluster"]["found"]
    assert checks["database"]["mend"].startswith("run tensile up")


def test_every_fault_of_a_database_has_a_remedy(tensile: Tensile, database: Database) -> None:
    with database.connect("alice") as alice:
        alice.execute("create table secret (a int)")
        alice.execute("create table shared (a int)")
    with database.connect() as admin:
        admin.execute("alter role tensile_worker nologin")
        admin.execute("create or replace function tensile.catalog_digest() returns text return 'another'")
        admin.execute(
            """insert into tensile.workers (host, pid, device, version, lease_s)
               values ('elsewhere', 7, 'gpu', '0.0.9', 60)"""
        )
        # The first link has its configured rate, and half of that with copies both ways. The second link is too slow.
        admin.execute(
            """insert into tensile.device_links
                 (host, device_kind, way, beside, size_bytes, latency_ns, copy_ns, emulated_bytes_per_s, measured_at)
               select 'here', kind, way, beside, size, 2 * size, size * slow * case when beside then 2 else 1 end,
                      1000000000, '2026-11-21 10:00'
                 from (values ('cpu', 1), ('slow cpu', 2)) as d (kind, slow),
                      unnest('{out,in}'::tensile.copy_way[]) as way,
                      unnest('{f,t}'::boolean[]) as beside, unnest('{1000,100000}'::bigint[]) as size"""
        )
    try:
        done = tensile("doctor", "--json", "--dsn", database.dsn("alice"))
    finally:
        with database.connect() as admin:
            admin.execute("alter role tensile_worker login")
    checks = checks_by_name(done)
    assert done.code == 1
    assert "embedded cluster" not in checks
    assert {name: row["mend"] for name, row in checks.items() if not row["ok"]} == {
        "catalog": "continue with it; or, which deletes all models: tensile down --purge, then tensile up",
        "grants": "grant select on public.secret to tensile_reader;",
        "controller 1": "start it again from this version",
        "link of slow cpu on here": "start the controller again while this machine has less to do: it measures its "
        "link then",
        "worker's role": "As a superuser: alter role tensile_worker login;",
        "socket directory": "As a member of tensile_admin: "
        """select tensile_set_setting('socket_directory', '"/run/tensile"');""",
        "service": checks["service"]["mend"],
    }
    assert checks["grants"]["found"] == "tensile_reader may read 0 of the 2 tables that you may read"
    assert checks["reader"]["found"] == "tensile_reader can log in from here"
    assert "process 7 on elsewhere, gpu: version 0.0.9, not 0.2.0" in checks["controller 1"]["found"]

    assert checks["link of cpu on here"]["found"] == (
        "1000.0 MB/s out, 1000.0 MB/s in, 50% of that with copies both ways at once, measured 2026-11-21 10:00"
    )
    assert checks["link of slow cpu on here"]["found"].endswith("10:00: 50% of what it is set to")

    with database.connect("alice") as alice:
        alice.execute("grant select on secret to tensile_reader")
    assert checks_by_name(tensile("doctor", "--json", "--dsn", database.dsn("alice")))["grants"]["ok"] is True


@pytest.mark.nightly
def test_grants_of_version_0_1_0_have_statements_that_move_them(tensile: Tensile, database: Database) -> None:
    with database.connect() as admin:
        admin.execute(
            """create schema "my plot"; create table "my plot".t (a int); create table moved (a int);
               create table parts ("A" int, b int); grant usage on schema "my plot" to tensile_worker;
               grant select on "my plot".t, moved to tensile_worker; grant select on moved to tensile_reader;
               grant select ("A", b) on parts to tensile_worker"""
        )
        check = checks_by_name(tensile("doctor", "--json", "--dsn", database.dsn()))["earlier grants"]
        assert (check["ok"], check["found"]) == (False, "some are of version 0.1.0, to tensile_worker")
        assert check["mend"] == (
            'grant usage on schema "my plot" to tensile_reader; '
            'grant select on "my plot".t to tensile_reader; revoke select on "my plot".t from tensile_worker; '
            'grant select ("A", b) on public.parts to tensile_reader; '
            'revoke select ("A", b) on public.parts from tensile_worker;'
        )
        admin.execute(check["mend"])
    assert checks_by_name(tensile("doctor", "--json", "--dsn", database.dsn()))["earlier grants"]["ok"] is True


def test_reader_that_cannot_log_in_is_reported_with_a_remedy(tensile: Tensile, database: Database) -> None:
    dsn = database.cluster.dsn(user="nobody_maps_to_this", database=database.name)
    check = checks_by_name(
        tensile.with_variables(TENSILE_READER_DSN=dsn)("doctor", "--json", "--dsn", database.dsn())
    )["reader"]
    assert check["ok"] is False
    assert "authentication failed" in check["found"]
    assert "pg_ident.conf" in check["mend"]
    assert "TENSILE_READER_DSN" in check["mend"]


@pytest.mark.parametrize(
    ("settings", "name", "finding", "mend"),
    [
        (
            {"REGION_BYTES": "5000"},
            "settings",
            "region_bytes (TENSILE_REGION_BYTES) is 5000: a multiple",
            "correct the environment",
        ),
        ({"DEVICE": "cuda:7"}, "device", "device (TENSILE_DEVICE) is 'cuda:7', and ", ""),
        (
            {"DEVICE": "cpu", "RANK_NETWORK": "nccl"},
            "device",
            "rank_network (TENSILE_RANK_NETWORK) is nccl, and the device is not a GPU but cpu",
            "Set rank_network to host, or device to a GPU.",
        ),
        (
            {"BUDGET_BYTES": "1000GB", "CAPACITY_BYTES": "1000GB"},
            "device",
            "budget_bytes (TENSILE_BUDGET_BYTES) is 1073",
            "leaves memory",
        ),
        ({"SWAP_DIRECTORY": "/dev/shm"}, "swap directory", "/dev/shm is in memory", "TENSILE_SWAP_DIRECTORY"),
        (
            {"DEVICE": "emulated", "CAPACITY_BYTES": "1000GB"},
            "device memory",
            "the budget is 1024000 MB",
            "lower the budget",
        ),
        (
            {"DEVICE": "emulated", "MEMORY_DIRECTORY": "/nowhere"},
            "device memory",
            "it cannot be made in memory_directory /nowhere: No such file or directory",
            "name a directory in memory that you may write to, such as /dev/shm, or leave it empty",
        ),
        (
            {"DEVICE": "emulated", "MEMORY_DIRECTORY": "/proc"},
            "device memory",
            "memory_directory /proc: Operation not supported",
            "name a",
        ),
    ],
)
def test_settings_that_a_controller_would_refuse_are_reported(
    settings: dict[str, str], name: str, finding: str, mend: str
) -> None:
    rows = device({f"TENSILE_{setting}": value for setting, value in settings.items()})
    (row,) = [check for check in rows if not check["ok"]]
    assert row["check"] == name
    assert finding in row["found"]
    assert mend in row["mend"]


def test_a_variable_that_is_no_setting_is_named() -> None:
    first, *_ = device({"TENSILE_DEVICE": "emulated", "TENSILE_MAX_JOB": "2"})
    assert (first["check"], first["ok"], first["mend"]) == ("settings", False, "correct or unset the variable")
    assert first["found"].endswith("did you mean TENSILE_MAX_JOBS?")


def test_the_embedded_controllers_swap_directory_is_looked_for_in_its_own_state_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "settings.toml").write_text('device = "cpu"\n')
    monkeypatch.setenv("TENSILE_STATE_DIR", str(tmp_path))
    rows = {row["check"]: row for row in device(doctor._settings_environment())}
    assert f"the disk of {tmp_path}/swap" in rows["swap directory"]["found"]


def test_the_memory_and_the_disk_for_rows_are_shown(tmp_path: Path) -> None:
    settings = {"TENSILE_DEVICE": "emulated", "TENSILE_READ_LIMIT_BYTES": "64MB"}
    rows, *_ = device(settings | {"TENSILE_ROWS_DIRECTORY": str(tmp_path)})
    assert (rows["check"], rows["ok"]) == ("rows of tables", True)
    assert rows["found"].startswith(
        f"up to 64 MB of memory a trainer; larger tables go to a file in {tmp_path}, whose"
    )
    refused, *_ = device(settings | {"TENSILE_ROWS_DIRECTORY": "/dev/shm/rows"})
    assert (refused["ok"], refused["mend"]) == (False, "name a directory on a disk with TENSILE_ROWS_DIRECTORY")


def test_memory_directory_with_enough_space_is_ok() -> None:
    _, kind, row = device(
        {"TENSILE_DEVICE": "emulated", "TENSILE_MEMORY_DIRECTORY": "/dev/shm", "TENSILE_CAPACITY_BYTES": "1MB"}
    )
    assert kind["found"].startswith("an emulated GPU, not this machine's own speed")
    assert (row["ok"], row["mend"]) == (True, None)
    assert row["found"].endswith(" MB free in /dev/shm, of which the budget is 1 MB")


def test_database_without_the_catalog_needs_init(tensile: Tensile, database: Database) -> None:
    checks = checks_by_name(tensile("doctor", "--json", "--dsn", database.cluster.dsn(database="postgres")))
    assert checks["database"]["ok"] is True
    assert "tensile init --dsn 'dbname=postgres'" in checks["catalog"]["mend"]


def test_missing_grant_of_the_role_is_reported(tensile: Tensile, database: Database) -> None:
    with database.connect() as admin:
        admin.execute("revoke tensile_user from bob")
    try:
        checks = checks_by_name(tensile("doctor", "--json", "--dsn", database.dsn("bob")))
    finally:
        with database.connect() as admin:
            admin.execute("grant tensile_user to bob")
    assert "grant tensile_user to bob" in checks["catalog"]["mend"]


def test_output_for_people_has_a_mark_the_finding_and_the_remedy(tensile: Tensile, database: Database) -> None:
    done = tensile("doctor", "--dsn", database.dsn("demo"))
    lines = done.out.splitlines()
    assert any(line.startswith("ok      roles             all six") for line in lines)
    line_number = next(n for n, line in enumerate(lines) if line.startswith("MISSING controllers"))
    assert lines[line_number] == "MISSING controllers       0 alive"
    assert lines[line_number + 1] == " " * 26 + "mend: Start one: tensile up, or tensile controller."


LINK: dict[str, Any] = {
    "check": "link of emulated:AMD EPYC on a-host-of-mine",
    "ok": False,
    "found": "191.0 MB/s out, 190.2 MB/s in, 99% of that with copies both ways at once, measured 2026-11-21 10:00: "
    "50% of what it is set to",
    "mend": "start the controller again while this machine has less to do: it measures its link then",
}


def test_long_name_is_printed_on_its_own_line(monkeypatch: pytest.MonkeyPatch) -> None:
    console_output = io.StringIO()
    monkeypatch.setattr(doctor, "out", Console(file=console_output, soft_wrap=True, highlight=False))
    doctor._show(LINK)
    doctor._show({"check": "python", "ok": True, "found": "3.11.7", "mend": None})
    assert console_output.getvalue().splitlines() == [
        "MISSING link of emulated:AMD EPYC on a-host-of-mine",
        " " * 26 + LINK["found"],
        " " * 26 + "mend: " + LINK["mend"],
        "ok      python            3.11.7",
    ]


def test_lines_are_folded_between_words_at_the_width_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    console_output = io.StringIO()
    monkeypatch.setattr(
        doctor, "out", Console(file=console_output, width=80, force_terminal=True, no_color=True, soft_wrap=True)
    )
    doctor._show(LINK)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", console_output.getvalue()).splitlines()
    assert max(map(len, lines)) <= 80
    assert all(line.startswith(" " * 26) for line in lines[1:])
    assert " ".join(line.strip() for line in lines[1:]) == f"{LINK['found']} mend: {LINK['mend']}"


def test_device_check_without_a_gpu_names_cpu_memory_and_disk() -> None:
    settings = {"TENSILE_DEVICE": "cpu", "TENSILE_TORCH_THREADS": "3", "TENSILE_SWAP_DIRECTORY": "/"}
    checks = {row["check"]: row for row in device(settings)}
    assert list(checks) == ["rows of tables", "device", "device memory", "swap directory"]
    assert "3 threads a job: TENSILE_DEVICE is cpu" in checks["device"]["found"]
    assert "the rest is for the database and the trainers" in checks["device memory"]["found"]
    assert "free on the disk of /, of which up to" in checks["swap directory"]["found"]
