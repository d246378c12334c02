"""Settings come from variables and from a file, with PostgreSQL's units. What is no setting is named."""

import re
from dataclasses import fields, replace
from pathlib import Path

import pytest

from indb_tensile.config import OTHER_PREFIXES, OTHER_VARIABLES, Settings, setting_rules, variable
from indb_tensile.errors import RequestError
from indb_tensile.settings_loader import (
    configured_names,
    configured_state_directory,
    load,
    unknown_variables,
)

ROOT = Path(__file__).parents[1]


def written(directory: Path, text: str) -> dict[str, str]:
    """An environment that names a settings file with this text."""
    path = directory / "tensile.toml"
    path.write_text(text)
    return {"TENSILE_CONFIG": str(path)}


def test_without_anything_the_defaults_hold() -> None:
    assert load({}) == replace(Settings(), state_dir=str(Path.cwd() / ".tensile"))


def test_every_setting_can_be_given_by_its_variable() -> None:
    settings = Settings(
        dsn="dbname=x",
        reader_dsn="host=/tmp user=tensile_reader",
        read_limit_bytes=1 << 30,
        rows_directory="/var/rows",
        device="emulated",
        devices=2,
        capacity_bytes=1 << 30,
        budget_bytes=1 << 29,
        region_bytes=1 << 16,
        memory_directory="/dev/shm",
        swap_directory="/var/tmp",
        emulate="h200",
        link_out_bytes_per_s=10**9,
        link_in_bytes_per_s=2 * 10**9,
        host_pool_bytes=1 << 31,
        lease_s=9.5,
        beat_s=0.5,
        poll_s=2.0,
        spare_trainers=3,
        max_jobs=5,
        sharing="any_price",
        max_slowdown=4.0,
        first_step_s=60.0,
        phases=True,
        phases_gain=1.2,
        phases_s=60.0,
        entering_jobs=3,
        parked_jobs=2,
        policy="liveness",
        drift_threshold=0.5,
        checkpoint_s=5.0,
        checkpoint_store="local",
        checkpoint_catalog_s=60.0,
        stop_grace_s=1.0,
        answer_s=60.0,
        start_patience_s=5.0,
        interrupted_s=3600.0,
        rank_address="10.0.0.7",
        rank_network="nccl",
        rank_timeout_s=30.0,
        service_directory="/run/tensile",
        service_address="[fd00::7]:7443",
        service_tls_directory="/etc/tensile/tls",
        service_host_name="gpu1.example.org",
        service_client_name="db1.example.org",
        state_dir="/var/lib/tensile",
        survey_s=3.0,
        survey_busy_cores=1.5,
        baseline=False,
        log_level="debug",
        log_bytes=1 << 20,
        log_files=2,
        share_memory=False,
        strict=True,
        cuda_graphs=False,
        mps=True,
        torch_threads=2,
    )
    defaults = Settings()
    assert all(getattr(settings, f.name) != getattr(defaults, f.name) for f in fields(Settings))
    assert load(settings.environment()) == settings


def test_the_environment_goes_before_the_file(tmp_path: Path) -> None:
    path = tmp_path / "tensile.toml"
    path.write_text('budget_bytes = "512MB"\nmax_jobs = 3\nlease_s = 20\n')
    settings = load({"TENSILE_CONFIG": str(path), "TENSILE_MAX_JOBS": "4"})
    assert (settings.budget_bytes, settings.max_jobs, settings.lease_s) == (512 << 20, 4, 20.0)


def test_a_budget_alone_is_held_against_the_memory_of_the_device_that_is_found_later() -> None:
    assert load({"TENSILE_BUDGET_BYTES": "3GB"}).budget_bytes == 3 << 30
    for environment in ({"TENSILE_DEVICE": "emulated"}, {"TENSILE_CAPACITY_BYTES": "2GB"}):
        with pytest.raises(RequestError, match="at most the capacity of 2147483648 bytes is needed"):
            load({"TENSILE_BUDGET_BYTES": "3GB"} | environment)


def test_a_capacity_without_a_budget_may_be_used_in_full() -> None:
    settings = load({"TENSILE_CAPACITY_BYTES": "1GB"})
    assert (settings.capacity_bytes, settings.budget_bytes) == (1 << 30, 1 << 30)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("lease_s", "soon", "TENSILE_LEASE_S is 'soon': a duration is needed, such as 15s or 10min"),
        ("lease_s", "nan", "TENSILE_LEASE_S is 'nan': a duration is needed, such as 15s or 10min"),
        ("budget_bytes", "much", "TENSILE_BUDGET_BYTES is 'much': a size is needed, such as 512MB or 2GB"),
        ("max_jobs", "0", "max_jobs (TENSILE_MAX_JOBS) is 0: a whole number from 1 to 64 is needed"),
        ("max_jobs", "2.5", "TENSILE_MAX_JOBS is '2.5': a whole number is needed"),
        (
            "policy",
            "magic",
            "policy (TENSILE_POLICY) is 'magic': one of tensile+, tensile, liveness, vanilla is needed",
        ),
        ("lease_s", "2", "lease_s (TENSILE_LEASE_S) is 2.0: at least three beats of 1.0 s is needed"),
        (
            "region_bytes",
            "5000",
            "region_bytes (TENSILE_REGION_BYTES) is 5000: a multiple of a page of 4096 bytes is needed",
        ),
        ("budget_bytes", "100kB", "at least one region of 1048576 bytes is needed"),
    ],
)
def test_a_wrong_value_names_variable_value_and_range(name: str, value: str, message: str) -> None:
    with pytest.raises(RequestError) as raised:
        load({variable(name): value})
    assert message in raised.value.message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lease = 3", "has no setting of the name 'lease'"),
        ("lease_s = = 3", "is not TOML"),
        ("max_jobs = true", "max_jobs in "),
        ("max_jobs = 1.5", "max_jobs in "),
        ("lease_s = [1]", "lease_s in "),
    ],
)
def test_a_wrong_file_names_what_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "tensile.toml"
    path.write_text(text)
    with pytest.raises(RequestError) as raised:
        load({"TENSILE_CONFIG": str(path)})
    assert message in raised.value.message
    assert str(path) in raised.value.message


def test_a_missing_file_is_named() -> None:
    with pytest.raises(RequestError) as raised:
        load({"TENSILE_CONFIG": "/nowhere/tensile.toml"})
    assert raised.value.message == "the settings file /nowhere/tensile.toml cannot be read: No such file or directory"


@pytest.mark.parametrize("device", ["auto", "cpu", "emulated", "cuda", "cuda:0", "cuda:11"])
def test_a_device_is_chosen_by_kind_and_number(device: str) -> None:
    assert load({"TENSILE_DEVICE": device}).device == device


def test_a_device_of_no_kind_is_refused() -> None:
    with pytest.raises(
        RequestError, match="device \\(TENSILE_DEVICE\\) is 'gpu': auto, cpu, emulated, cuda, or cuda:"
    ):
        load({"TENSILE_DEVICE": "gpu"})


def test_what_was_given_is_told_from_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "tensile.toml"
    path.write_text("max_jobs = 3\n")
    environment = {"TENSILE_CONFIG": str(path), "TENSILE_CAPACITY_BYTES": "2GB", "PATH": "/bin"}
    assert configured_names(environment) == {"capacity_bytes", "max_jobs"}


@pytest.mark.parametrize("setting", ["lease_s = '20s'", "lease_s = 20", "lease_s = '20000 ms'", "lease_s = '20'"])
def test_a_duration_in_a_file_may_have_a_unit(tmp_path: Path, setting: str) -> None:
    assert load(written(tmp_path, setting)).lease_s == 20.0


def test_a_duration_in_a_variable_may_have_a_unit() -> None:
    assert load({"TENSILE_CHECKPOINT_CATALOG_S": "10min"}).checkpoint_catalog_s == 600.0
    with pytest.raises(RequestError, match=r"TENSILE_LEASE_S\) is 7200.0: a duration from 0.3 to 3600 seconds"):
        load({"TENSILE_LEASE_S": "2h"})


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("lease", "Did you mean lease_s?"),
        ("max-jobs", "Did you mean max_jobs?"),
        ("MAX_JOBS", "Did you mean max_jobs?"),
        ("budgetbytes", "Did you mean budget_bytes?"),
        ("colour", f"The settings are {', '.join(rule.name for rule in setting_rules())}."),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_name(tmp_path: Path, key: str, hint: str) -> None:
    with pytest.raises(RequestError) as raised:
        load(written(tmp_path, f"max_jobs = 3\n{key} = 3\n"))
    assert raised.value.message.endswith(f"tensile.toml has no setting of the name {key!r}")
    assert raised.value.hint == hint


def test_a_text_is_checked_before_it_is_in_the_file(tmp_path: Path) -> None:
    environment = {"TENSILE_CONFIG": str(tmp_path / "none.toml")}
    assert load(environment, file_text="max_jobs = 3").max_jobs == 3
    with pytest.raises(RequestError, match=r"none.toml has no setting of the name 'jobs'"):
        load(environment, file_text="jobs = 3")


def test_an_unknown_variable_is_named_with_the_nearest_setting() -> None:
    environment = {"TENSILE_MAX_JOB": "3", "TENSILE_COLOUR": "red", "TENSILE_LEASE_S": "9", "HOME": "/root"}
    assert unknown_variables(environment) == (
        "the environment variable TENSILE_COLOUR has no effect, because there is no such setting",
        "the environment variable TENSILE_MAX_JOB has no effect, because there is no such setting; "
        "did you mean TENSILE_MAX_JOBS?",
    )
    assert load(environment).max_jobs == Settings().max_jobs


def test_no_variable_that_the_sources_read_is_called_unknown() -> None:
    sources = [path for folder in ("indb_tensile", "worker", "examples") for path in (ROOT / folder).rglob("*")]
    read = {
        name
        for path in sources
        if path.suffix in (".py", ".sh", ".service")
        for name in re.findall(r"\bTENSILE_[A-Z_]*[A-Z]\b", path.read_text(encoding="utf-8"))
    }
    assert {name for name in OTHER_VARIABLES if not name.startswith("TENSILE_SERVICE")} & read
    assert unknown_variables(dict.fromkeys(read, "")) == ()
    assert unknown_variables(dict.fromkeys((prefix + "X" for prefix in OTHER_PREFIXES), "")) == ()
    assert unknown_variables(Settings().environment()) == ()


def test_the_state_directory_is_that_of_the_variable_else_of_the_file(tmp_path: Path) -> None:
    assert configured_state_directory({}) is None
    assert configured_state_directory(written(tmp_path, "max_jobs = 3")) is None
    named = written(tmp_path, 'state_dir = "/var/lib/tensile"\n')
    assert configured_state_directory(named) == (Path("/var/lib/tensile"), f"state_dir in {named['TENSILE_CONFIG']}")
    assert load(named).state_dir == "/var/lib/tensile"
    both = named | {"TENSILE_STATE_DIR": "elsewhere"}
    assert configured_state_directory(both) == (Path.cwd() / "elsewhere", "TENSILE_STATE_DIR")
    assert load(both).state_dir == str(Path.cwd() / "elsewhere")


def test_a_relative_state_directory_in_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"state_dir in .*tensile.toml is 'state': an absolute path is needed"):
        load(written(tmp_path, 'state_dir = "state"\n'))
