"""Check which settings `tensile up` keeps for the next start, and for which device."""

from pathlib import Path
from typing import Any

import pytest

from indb_tensile.cli.settings_file import check_mps, kept_settings, text_of, warn_of_old_sizes, without_imitation
from indb_tensile.cli.state_directory import StateDirectory
from indb_tensile.config import Settings
from indb_tensile.errors import RequestError


def write_settings(directory: Path, text: str) -> Path:
    path = directory / "settings.toml"
    path.write_text(text)
    return path


def test_settings_written_by_hand_are_kept(tmp_path: Path) -> None:
    assert text_of(kept_settings(tmp_path / "none.toml", {})) == ""
    settings = write_settings(tmp_path, '# by hand\nlog_level = "warning"\nbudget_bytes = 5\nbeat_s = 0.5\n')
    kept_options = text_of(kept_settings(settings, {"budget_bytes": 7, "policy": "vanilla", "mps": True}))
    assert kept_options == 'beat_s = 0.5\nbudget_bytes = 7\nlog_level = "warning"\nmps = true\npolicy = "vanilla"\n'


def test_sizes_and_links_of_one_device_are_removed_for_another_device(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    emulated = 'budget_bytes = 5\ncapacity_bytes = 9\ndevice = "emulated"\nlink_out_bytes_per_s = 4\nmax_jobs = 3\n'
    settings = write_settings(tmp_path, emulated)
    assert kept_settings(settings, {"policy": "liveness"})["budget_bytes"] == 5
    assert capsys.readouterr().err == ""
    assert kept_settings(settings, {"device": "cuda", "capacity_bytes": 100}) == {
        "device": "cuda",
        "capacity_bytes": 100,
        "max_jobs": 3,
    }
    assert capsys.readouterr().err == (
        "the device was emulated and is cuda: these settings of emulated are removed: "
        "budget_bytes = 5, link_out_bytes_per_s = 4\n"
    )


def test_options_of_the_emulated_device_are_removed_for_another_device(capsys: pytest.CaptureFixture[str]) -> None:
    kept_options: dict[str, Any] = {"emulate": "h200", "link_in_bytes_per_s": 3, "max_jobs": 3}
    assert without_imitation(kept_options, Settings(device="emulated"), kept_options) == kept_options
    assert capsys.readouterr().err == ""
    assert without_imitation(kept_options, Settings(device="auto"), {"emulate": "h200"}) == {"max_jobs": 3}
    assert capsys.readouterr().err == (
        "--emulate: only for the emulated device, and the device is auto; add --device emulated to use it\n"
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
