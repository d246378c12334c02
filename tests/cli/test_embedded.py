"""Check `tensile up` and `tensile down` with a real cluster and a real controller: repeated, concurrent, and after
crashes.
"""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from indb_tensile.catalog.install import SCRIPT, VERSION
from indb_tensile.cli.embedded import _check_ours
from indb_tensile.cli.launch_settings import unused_variable_notices
from indb_tensile.cluster import Cluster
from indb_tensile.errors import RequestError
from indb_tensile.state_directory import StateDirectory
from tests.catalog import released
from tests.cli.conftest import Tensile, ended, until
from tests.cli.mps_program import install_control_program
from tests.open_directory import open_directory

pytestmark = pytest.mark.postgres

LINKS = ("--link-out", "400MB", "--link-in", "400MB")  # with both rates, the link is not measured
OPTIONS = ("--device", "emulated", "--capacity", "64MB", "--spare-trainers", "1", *LINKS)


@pytest.fixture(scope="module")
def service() -> Iterator[Tensile]:
    """The command with a state directory of this module. Each test starts what it needs.

    The fixture kills the first start while initdb runs. The first test works with the remaining files.
    """
    with open_directory("suite-up-") as directory:
        command = Tensile({"TENSILE_STATE_DIR": str(directory / "state")})
        with command.start("up", *OPTIONS) as process:
            until(lambda: list(directory.glob("state/new-*/base")), "initdb to be under way")
            process.kill()
        assert not (directory / "state" / "data").exists()
        yield command
        done = command("down", "--purge")
        assert done.code == 0, done.err
        assert list(directory.iterdir()) == []


def start_embedded(service: Tensile, *options: str) -> dict[str, Any]:
    """Run `tensile up`, and return its JSON output."""
    done = service("up", *OPTIONS, "--json", *options)
    assert done.code == 0, done.err
    started: dict[str, Any] = json.loads(done.out)
    return started


def state_of(service: Tensile) -> StateDirectory:
    return StateDirectory(directory=Path(service.variables["TENSILE_STATE_DIR"]))


def cluster(service: Tensile) -> Cluster:
    return state_of(service).cluster()


def connect_as_superuser(service: Tensile) -> psycopg.Connection[Any]:
    """A superuser's connection to the embedded database."""
    return psycopg.connect(cluster(service).dsn(), autocommit=True)


def living_controllers(service: Tensile) -> list[int]:
    """Return the process ids of the controllers that are alive according to the database."""
    with connect_as_superuser(service) as connection:
        return [pid for (pid,) in connection.execute("select pid from tensile.stat_workers where alive order by 1")]


@pytest.mark.nightly
def test_second_up_changes_nothing(service: Tensile) -> None:
    first = start_embedded(service)
    settings = state_of(service).settings.read_text()
    second = start_embedded(service)
    assert second == first
    assert (first["capacity_bytes"], first["budget_bytes"], first["policy"]) == (64 << 20, 64 << 20, "tensile+")
    without_options = service("up", "--json")
    assert json.loads(without_options.out) == first
    assert state_of(service).settings.read_text() == settings
    assert without_options.err == f"the state is kept in {first['state']}: TENSILE_STATE_DIR says so\n"


def test_ordinary_role_can_work_at_once(service: Tensile) -> None:
    start_embedded(service)
    own_jobs = "select current_user, (select count(*) from tensile.stat_jobs)"
    assert service("psql", "-qAtc", own_jobs).out == "demo|0\n"
    assert service("psql", "-qAt", "-U", "postgres", "-c", "select current_user").out == "postgres\n"
    assert service("psql", "--role", "postgres", "-qAtc", "select current_database()").out == "tensile\n"
    assert service("models").err == "no model yet: select tensile_train('model', 'table')\n"
    done = service("doctor", "--json")
    checks = [json.loads(line) for line in done.out.splitlines()]
    # Whether the link is as fast as it is set to depends on what else this machine does while the controller starts.
    # The suite's directories are in memory where there is room, which is no place for the rows of large tables.
    passed_over = ("link of emulated:", "rows of tables")
    faults = [row for row in checks if not row["ok"] and not row["check"].startswith(passed_over)]
    assert faults == []
    assert done.code == (0 if all(row["ok"] for row in checks) else 1)
    assert {"database", "catalog", "roles", "reader", "its controller", "service"} <= {row["check"] for row in checks}


@pytest.mark.nightly
def test_changed_settings_restart_the_controller_and_are_kept(service: Tensile) -> None:
    first = start_embedded(service)
    other = start_embedded(service, "--budget", "32MB", "--policy", "liveness")
    assert 'budget_bytes = "32MB"\n' in state_of(service).settings.read_text()
    assert other["controller"] != first["controller"]
    assert (other["budget_bytes"], other["policy"]) == (32 << 20, "liveness")
    assert ended(first["controller"])
    assert living_controllers(service) == [other["controller"]]
    assert start_embedded(service) == other


@pytest.mark.nightly
def test_environment_variable_changes_the_controller_while_it_is_set(service: Tensile) -> None:
    first = start_embedded(service)
    done = service.with_variables(TENSILE_MAX_JOBS="1")("up", *OPTIONS, "--json")
    assert done.code == 0, done.err
    assert (
        "the settings differ: max_jobs is 1 (TENSILE_MAX_JOBS) and was 8; restarting the controller, its jobs "
        "resume from their last checkpoints\n"
        f"variables have effect only while they are set; write permanent settings into {state_of(service).settings}\n"
    ) in done.err
    assert json.loads(done.out)["controller"] != first["controller"]
    with connect_as_superuser(service) as connection:
        slots = connection.execute("select slots from tensile.workers where stopped_at is null").fetchall()
    assert slots == [(1,)]
    without_variable = service("up", *OPTIONS, "--json")
    assert "the settings differ: max_jobs is 8 and was 1; restarting the controller" in without_variable.err


@pytest.mark.nightly
def test_option_takes_precedence_over_the_variable_of_the_same_setting(service: Tensile) -> None:
    done = service.with_variables(TENSILE_POLICY="vanilla")("up", *OPTIONS, "--policy", "liveness", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["policy"] == "liveness"
    assert start_embedded(service, "--policy", "tensile+")["policy"] == "tensile+"


def test_unused_variables_are_named(tmp_path: Path) -> None:
    own = tmp_path / "settings.toml"
    assert (
        unused_variable_notices({"TENSILE_MAX_JOBS": "1", "TENSILE_CONFIG": str(own), "TENSILE_DSN": ""}, own) == []
    )
    assert unused_variable_notices({"TENSILE_DSN": "host=there", "TENSILE_CONFIG": "mine.toml"}, own) == [
        "TENSILE_DSN is not used: the embedded database has its own",
        f"TENSILE_CONFIG is not used, except for its state_dir: the settings of the embedded controller are in {own}",
    ]
    assert unused_variable_notices({"TENSILE_MAX_JOB": "1"}, own) == [
        "the environment variable TENSILE_MAX_JOB has no effect, because there is no such setting; "
        "did you mean TENSILE_MAX_JOBS?"
    ]


def test_files_of_a_controller_in_the_state_directory_may_be_removed(tmp_path: Path) -> None:
    ours = ("controller.log", "controller.toml", "controller.log.1", "postgres.log.5", "checkpoints")
    for name in (*ours, "controller-1.pid", "controller-1.log.2", "baselines"):
        (tmp_path / name).mkdir()
    _check_ours(tmp_path)
    (tmp_path / "thesis.log").mkdir()
    with pytest.raises(RequestError, match=r"contains a file that tensile did not create: thesis\.log"):
        _check_ours(tmp_path)


@pytest.mark.nightly
def test_mps_is_refused_without_a_gpu_or_the_program_and_changes_nothing(service: Tensile) -> None:
    first = start_embedded(service)
    before = state_of(service).settings.read_text()
    done = service("up", "--mps")
    assert done.code == 2
    assert "--mps is for a GPU, and the device is emulated" in done.err
    without_program = service("up", "--device", "auto", "--mps")
    assert without_program.code == 6
    assert "--mps needs the program nvidia-cuda-mps-control" in without_program.err
    assert state_of(service).settings.read_text() == before
    assert start_embedded(service) == first


@pytest.mark.nightly
def test_up_and_down_start_and_end_the_mps_daemon(service: Tensile, tmp_path: Path) -> None:
    control, with_mps = state_of(service).mps / "control", service.with_variables(**install_control_program(tmp_path))
    options = ("up", "--device", "auto", "--capacity", "64MB", "--spare-trainers", "1", "--json")
    first = with_mps(*options, "--mps")
    assert first.code == 0, first.err
    assert control.exists()
    environment = Path(f"/proc/{json.loads(first.out)['controller']}/environ").read_bytes().split(b"\0")
    assert f"CUDA_MPS_PIPE_DIRECTORY={state_of(service).mps}".encode() in environment
    assert json.loads(with_mps("up", "--json").out) == json.loads(first.out), "the option --mps is kept"
    assert with_mps("up", "--no-mps", "--json").code == 0
    assert not control.exists()
    assert with_mps("up", "--mps", "--json").code == 0
    assert with_mps("down").code == 0
    assert not control.exists()


@pytest.mark.nightly
def test_invalid_settings_change_nothing(service: Tensile) -> None:
    first = start_embedded(service)
    settings = state_of(service).settings
    before = settings.read_text()
    for options, message in ((("--budget", "1GB"), "budget_bytes"), (("--capacity", "1kB"), "capacity_bytes")):
        done = service("up", *options)
        assert done.code == 2
        assert message in done.err
    without_gpu = service("up", "--device", "cuda:99")
    assert without_gpu.code == 5
    assert "device (TENSILE_DEVICE) is 'cuda:99'" in without_gpu.err
    assert settings.read_text() == before
    settings.write_text("capacity_bytes = \n")
    with_damaged_file = service("up")
    assert with_damaged_file.code == 2
    assert f"the settings file {settings} is not TOML" in with_damaged_file.err
    checks = [json.loads(line) for line in service("doctor", "--json").out.splitlines()]
    (settings_check,) = [row for row in checks if row["check"] == "settings"]
    assert (settings_check["ok"], settings_check["mend"]) == (False, f"correct {settings}")
    settings.write_text(before)
    assert start_embedded(service) == first


@pytest.mark.nightly
def test_killed_controller_is_replaced_and_its_lease_ended(service: Tensile) -> None:
    first = start_embedded(service)
    os.kill(first["controller"], signal.SIGKILL)
    until(lambda: ended(first["controller"]), "the controller to be gone")
    checks = [json.loads(line) for line in service("doctor", "--json").out.splitlines()]
    assert {"check": "its controller", "ok": False, "found": "does not run", "mend": "tensile up"} in checks
    second = start_embedded(service)
    assert second["controller"] != first["controller"]
    assert living_controllers(service) == [second["controller"]]


@pytest.mark.nightly
def test_killed_server_is_started_again(service: Tensile) -> None:
    start_embedded(service)
    server = int((cluster(service).data / "postmaster.pid").read_text().splitlines()[0])
    os.kill(server, signal.SIGKILL)
    until(lambda: ended(server), "the server to be gone")
    without_server = service("jobs")
    assert without_server.code == 4
    assert "tensile up starts the embedded one" in without_server.err
    start_embedded(service)
    assert service("jobs").code == 0


@pytest.mark.nightly
def test_controller_that_ends_at_its_start_is_reported_with_its_log(service: Tensile) -> None:
    start_embedded(service)
    with connect_as_superuser(service) as connection:
        connection.execute("revoke connect on database tensile from public")
    try:
        done = service("up", "--policy", "vanilla")
    finally:
        with connect_as_superuser(service) as connection:
            connection.execute("grant connect on database tensile to public")
    assert done.code == 6
    assert "tensile: the controller ended while it was starting\n  detail: " in done.err
    assert 'permission denied for database "tensile"' in done.err
    assert str(state_of(service).controller().log) in done.err
    start_embedded(service, "--policy", "tensile+")


@pytest.mark.nightly
def test_catalog_from_another_source_is_reported(service: Tensile) -> None:
    start_embedded(service)
    with connect_as_superuser(service) as connection:
        row = connection.execute("select tensile.catalog_digest()").fetchone()
        assert row is not None
        replace = "create or replace function tensile.catalog_digest() returns text immutable return {}"
        connection.execute(psycopg.sql.SQL(replace).format(psycopg.sql.Literal("another")))
        done = service("up")
        connection.execute(psycopg.sql.SQL(replace).format(psycopg.sql.Literal(row[0])))
    assert done.code == 0
    assert "warning: the catalog was installed from another source of the same version" in done.err
    assert "tensile down --purge, then tensile up" in done.err
    assert "warning" not in service("up").err


@pytest.mark.nightly
def test_database_of_an_older_release_is_upgraded_and_its_queue_runs(service: Tensile) -> None:
    start_embedded(service)
    assert service("down").code == 0
    cluster(service).start()
    with psycopg.connect(cluster(service).dsn(database="postgres"), autocommit=True) as connection:
        connection.execute("drop database tensile with (force)")
        connection.execute("drop role tensile_reader, tensile_data")
        connection.execute("create database tensile")
    with connect_as_superuser(service) as connection:
        released.install(connection, "0.1.0", SCRIPT)
        connection.execute("grant create on schema public to demo; grant pg_read_all_data to tensile_worker")
    with psycopg.connect(cluster(service).dsn(user="demo"), autocommit=True) as demo:
        demo.execute("create table public.t (a float8, y float8)")
        demo.execute("insert into t select i, 2 * i from generate_series(1, 50) as i")
        row = demo.execute(
            "select tensile_train('doubled', 't', target => 'y', hyperparams => '{\"epochs\": 1}')"
        ).fetchone()
    assert row is not None
    cluster(service).stop()

    start_embedded(service)

    assert service("wait", str(row[0]), "--timeout", "120").code == 0
    with connect_as_superuser(service) as connection:
        assert connection.execute("select tensile.catalog_version()").fetchone() == (VERSION,)
        checks = connection.execute("select state::text, error_message from tensile.stat_jobs").fetchall()
        assert checks == [("succeeded", None)]


@pytest.mark.nightly
def test_down_stops_everything_and_concurrent_ups_start_it_once(service: Tensile) -> None:
    first = start_embedded(service)
    with connect_as_superuser(service) as connection:
        connection.execute("create table if not exists kept (n int)")
    done = service("down")
    assert (done.code, done.err) == (0, "stopped\n")
    assert ended(first["controller"])
    assert not cluster(service).running()
    assert service("down").err == "nothing was running\n"
    assert service("down", "--json").out == '{"stopped": false, "removed": null}\n'

    with service.start("up", "--json") as first_process, service.start("up", "--json") as other:
        started = [json.loads(process.communicate()[0]) for process in (first_process, other)]
    assert started[0] == started[1]
    assert living_controllers(service) == [started[0]["controller"]]
    with connect_as_superuser(service) as connection:
        connection.execute("select from kept")


@pytest.mark.nightly
def test_long_logs_are_rotated_at_the_next_start(service: Tensile) -> None:
    first = start_embedded(service)
    os.kill(first["controller"], signal.SIGKILL)
    until(lambda: ended(first["controller"]), "the controller to be gone")
    with (state_of(service).directory / "postgres.log").open("ab") as log:
        log.write(b"a line\n" * 2_000_000)
    start_embedded(service)
    assert (state_of(service).directory / "postgres.log.1").stat().st_size >= 14_000_000
    assert (state_of(service).directory / "postgres.log").stat().st_size < 1_000_000
