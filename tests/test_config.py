"""Check how settings are read from the environment and from a settings file, and how a trainer reads its inherited
descriptors.
"""

from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile import config
from indb_tensile.config import InheritedDescriptors, Settings, inherited_descriptors, load, parse_bytes, variable
from indb_tensile.errors import RequestError


def test_defaults_apply_without_environment_and_file() -> None:
    assert load({}) == Settings()


def test_every_setting_is_read_from_its_variable() -> None:
    settings = Settings(
        dsn="dbname=x",
        reader_dsn="host=/tmp user=tensile_reader",
        read_limit_bytes=1 << 30,
        device="emulated",
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
        entering_jobs=3,
        policy="liveness",
        drift_threshold=0.5,
        checkpoint_s=5.0,
        checkpoint_store="local",
        checkpoint_catalog_s=60.0,
        stop_grace_s=1.0,
        answer_s=60.0,
        start_patience_s=5.0,
        interrupted_s=3600.0,
        service_directory="/run/tensile",
        state_dir="/var/lib/tensile",
        survey_s=3.0,
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


def test_environment_overrides_the_file(tmp_path: Path) -> None:
    path = tmp_path / "tensile.toml"
    path.write_text('budget_bytes = "512MB"\nmax_jobs = 3\nlease_s = 20\n')
    settings = load({"TENSILE_CONFIG": str(path), "TENSILE_MAX_JOBS": "4"})
    assert (settings.budget_bytes, settings.max_jobs, settings.lease_s) == (512 << 20, 4, 20.0)


def test_budget_is_compared_with_a_known_capacity_only() -> None:
    """The device of device = 'auto' is detected later, so its capacity is not known here."""
    assert load({"TENSILE_BUDGET_BYTES": "3GB"}).budget_bytes == 3 << 30
    for environment in ({"TENSILE_DEVICE": "emulated"}, {"TENSILE_CAPACITY_BYTES": "2GB"}):
        with pytest.raises(RequestError, match="at most the capacity of 2147483648 bytes is needed"):
            load({"TENSILE_BUDGET_BYTES": "3GB"} | environment)


def test_budget_defaults_to_the_capacity() -> None:
    settings = load({"TENSILE_CAPACITY_BYTES": "1GB"})
    assert (settings.capacity_bytes, settings.budget_bytes) == (1 << 30, 1 << 30)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("1536", 1536),
        ("512kB", 512 << 10),
        ("1.5 GB", 3 << 29),
        ("2GiB", 2 << 30),
        ("1TB", 1 << 40),
        ("7B", 7),
        ("9007199254740993kB", 9007199254740993 << 10),
    ],
)
def test_sizes_are_read_as_in_postgresql(text: str, size_bytes: int) -> None:
    assert parse_bytes(text) == size_bytes


@given(st.integers(0, 1 << 70))
def test_number_without_unit_is_bytes(size_bytes: int) -> None:
    assert parse_bytes(str(size_bytes)) == size_bytes


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("lease_s", "soon", "TENSILE_LEASE_S is 'soon': a number of seconds is needed"),
        ("lease_s", "nan", "TENSILE_LEASE_S is 'nan': a number of seconds is needed"),
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
def test_refused_value_names_variable_value_and_range(name: str, value: str, message: str) -> None:
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
def test_refused_file_names_its_path_and_the_fault(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "tensile.toml"
    path.write_text(text)
    with pytest.raises(RequestError) as raised:
        load({"TENSILE_CONFIG": str(path)})
    assert message in raised.value.message
    assert str(path) in raised.value.message


def test_missing_file_is_named() -> None:
    with pytest.raises(RequestError) as raised:
        load({"TENSILE_CONFIG": "/nowhere/tensile.toml"})
    assert raised.value.message == "the settings file /nowhere/tensile.toml cannot be read: No such file or directory"


def test_trainer_reads_its_inherited_descriptors() -> None:
    on_cpu = InheritedDescriptors(link_fd=5, device_fd=6)
    assert inherited_descriptors(on_cpu.environment()) == on_cpu
    on_gpu = InheritedDescriptors(link_fd=5, device_fd=6, regions_fd=7)
    assert inherited_descriptors(on_gpu.environment()) == on_gpu
    assert on_gpu.descriptors == on_cpu.descriptors | {"TENSILE_REGIONS_FD": 7}


@pytest.mark.parametrize("device", ["auto", "cpu", "emulated", "cuda", "cuda:0", "cuda:11"])
def test_device_is_chosen_by_kind_and_number(device: str) -> None:
    assert load({"TENSILE_DEVICE": device}).device == device


def test_unknown_device_is_refused() -> None:
    with pytest.raises(
        RequestError, match="device \\(TENSILE_DEVICE\\) is 'gpu': auto, cpu, emulated, cuda, or cuda:"
    ):
        load({"TENSILE_DEVICE": "gpu"})


def test_configured_names_omit_settings_left_at_their_defaults(tmp_path: Path) -> None:
    path = tmp_path / "tensile.toml"
    path.write_text("max_jobs = 3\n")
    environment = {"TENSILE_CONFIG": str(path), "TENSILE_CAPACITY_BYTES": "2GB", "PATH": "/bin"}
    assert config.configured_names(environment) == {"capacity_bytes", "max_jobs"}


def test_trainer_without_inherited_descriptors_is_refused() -> None:
    with pytest.raises(RequestError) as raised:
        inherited_descriptors({})
    assert raised.value.message == "TENSILE_LINK_FD is '': the number of an open file descriptor is needed"
    assert "started by a controller" in raised.value.hint


def test_every_field_has_a_kind() -> None:
    assert list(config._KINDS) == [f.name for f in fields(Settings)]
