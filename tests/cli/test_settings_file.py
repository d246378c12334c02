"""Check which settings `tensile up` keeps for the next start, and for which device."""

from pathlib import Path
from typing import Any

import pytest

from indb_tensile.cli.settings_file import (
    SettingsDocument,
    check_device_of_sizes,
    check_mps,
    check_settings,
    document_of,
    remove_imitation,
    store_options,
    warn_of_old_sizes,
    with_named_device,
)
from indb_tensile.config import Settings
from indb_tensile.errors import RequestError
from indb_tensile.state_directory import StateDirectory


def stored(text: str, options: dict[str, Any]) -> SettingsDocument:
    """A file of this text after `tensile up` with these options."""
    document = SettingsDocument(text)
    store_options(document, options)
    return document


def test_options_are_stored_without_a_file(tmp_path: Path) -> None:
    assert document_of(tmp_path / "none.toml").text == ""
    assert stored("", {"policy": "vanilla", "budget_bytes": "2GB", "mps": True}).text == (
        'budget_bytes = "2GB"\nmps = true\npolicy = "vanilla"\n'
    )


def test_comments_order_and_units_of_a_file_are_kept() -> None:
    text = '# by hand\nlog_level = "warning"  # quiet\n\n# memory\ncapacity_bytes = "2GB"\nanswer_s = "10min"'
    assert stored(text, {"capacity_bytes": "3GB", "policy": "vanilla"}).text == (
        '# by hand\nlog_level = "warning"  # quiet\n\n# memory\ncapacity_bytes = "3GB"\nanswer_s = "10min"\n'
        'policy = "vanilla"\n'
    )


def test_a_text_that_no_ascii_holds_is_stored_as_toml() -> None:
    assert SettingsDocument(stored("", {"memory_directory": "/\N{SNOWMAN}\U0001f600"}).text).settings == {
        "memory_directory": "/\N{SNOWMAN}\U0001f600"
    }


@pytest.mark.parametrize("name", ["dsn", "reader_dsn", "service_directory", "state_dir"])
def test_a_setting_that_the_embedded_controller_sets_itself_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "settings.toml"
    path.write_text(f'{name} = "/elsewhere"\n')
    with pytest.raises(RequestError, match=f"sets {name}, but the embedded controller has its own {name}"):
        document_of(path)


def test_a_file_that_is_not_toml_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_text("capacity_bytes = \n")
    with pytest.raises(RequestError, match=rf"the settings file {path} is not TOML"):
        document_of(path)


def test_settings_are_checked_under_the_name_of_their_file(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    assert check_settings('budget_bytes = "2GB"', path, {}).budget_bytes == 2 << 30
    with pytest.raises(RequestError, match=rf"the settings file {path} has no setting of the name 'lease'"):
        check_settings("lease = 3", path, {})
    assert list(tmp_path.iterdir()) == []


def test_sizes_and_links_of_one_device_are_not_kept_for_another(capsys: pytest.CaptureFixture[str]) -> None:
    emulated = (
        'budget_bytes = "5MB"\ncapacity_bytes = 9\ndevice = "emulated"\nlink_out_bytes_per_s = 4\nmax_jobs = 3\n'
    )
    assert stored(emulated, {"policy": "liveness"}).settings["budget_bytes"] == "5MB"
    assert capsys.readouterr().err == ""
    assert stored(emulated, {"device": "cuda", "capacity_bytes": 100}).settings == {
        "device": "cuda",
        "capacity_bytes": 100,
        "max_jobs": 3,
    }
    assert capsys.readouterr().err == (
        "the device was emulated and is cuda: these settings of emulated are removed: "
        "budget_bytes = 5MB, link_out_bytes_per_s = 4\n"
    )


def test_options_of_the_emulated_device_are_not_kept_for_another(capsys: pytest.CaptureFixture[str]) -> None:
    text = 'emulate = "h200"\nlink_in_bytes_per_s = 3\nmax_jobs = 3\n'
    document = SettingsDocument(text)
    remove_imitation(document, Settings(device="emulated"), document.settings)
    assert document.text == text
    assert capsys.readouterr().err == ""
    remove_imitation(document, Settings(device="auto"), {"emulate": "h200"})
    assert document.text == "max_jobs = 3\n"
    assert capsys.readouterr().err == (
        "--emulate: only for the emulated device, and the device is auto; add --device emulated to use it\n"
    )


def test_device_of_a_variable_is_stored_with_sizes_for_it(capsys: pytest.CaptureFixture[str]) -> None:
    emulated = {"TENSILE_DEVICE": "emulated"}
    assert with_named_device({"capacity_bytes": 9}, emulated) == {"capacity_bytes": 9, "device": "emulated"}
    assert capsys.readouterr().err == (
        "the device emulated of TENSILE_DEVICE is stored too, because these settings are for it: capacity_bytes\n"
    )
    assert with_named_device({"capacity_bytes": 9}, {}) == {"capacity_bytes": 9}
    assert with_named_device({"policy": "liveness"}, emulated) == {"policy": "liveness"}
    assert with_named_device({"budget_bytes": 9, "device": "cuda"}, emulated) == {"budget_bytes": 9, "device": "cuda"}
    assert capsys.readouterr().err == ""


def test_variable_gives_no_gpu_the_stored_sizes_of_the_emulated_device() -> None:
    document, path = SettingsDocument('capacity_bytes = "1GB"\ndevice = "emulated"\nmax_jobs = 3\n'), Path("s.toml")
    check_device_of_sizes(document, Settings(device="emulated:1"), path, {})
    check_device_of_sizes(document, Settings(device="cuda"), path, {"TENSILE_CAPACITY_BYTES": "2GB"})
    check_device_of_sizes(SettingsDocument('capacity_bytes = "1GB"\n'), Settings(device="cuda"), path, {})
    with pytest.raises(RequestError) as refused:
        check_device_of_sizes(document, Settings(device="cuda"), path, {})
    assert (refused.value.message, refused.value.hint) == (
        "TENSILE_DEVICE is cuda, and s.toml has settings of the device emulated: capacity_bytes = 1GB",
        "Change the device with tensile up --device cuda, which removes these settings.",
    )


def test_old_sizes_for_a_newly_found_gpu_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state_directory, kept_options = StateDirectory(directory=tmp_path), {"budget_bytes": 5, "max_jobs": 2}
    warn_of_old_sizes(state_directory, {"device": "emulated:x", "budget_bytes": 5}, kept_options, {})
    warn_of_old_sizes(state_directory, {"device": "cuda:H200", "budget_bytes": 5}, kept_options, {"budget_bytes": 5})
    assert capsys.readouterr().err == ""
    warn_of_old_sizes(state_directory, {"device": "cuda:H200", "budget_bytes": 5}, kept_options, {})
    assert capsys.readouterr().err == (
        f"jobs on cuda:H200 have a budget of 5 bytes, because {state_directory.settings} has budget_bytes = 5 from "
        "an earlier start; remove these lines to use all memory of the GPU\n"
    )


@pytest.mark.parametrize("device", ["cpu", "emulated"])
def test_mps_is_refused_without_a_gpu(device: str) -> None:
    check_mps(Settings(device="auto", mps=True))
    with pytest.raises(RequestError, match=f"--mps is for a GPU, and the device is {device}"):
        check_mps(Settings(device=device, mps=True))
