"""Check the systemd units of examples/: what they set, and that systemd reads them."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from indb_tensile import settings_loader

_UNITS = sorted((Path(__file__).parents[2] / "examples").glob("*.service"))


@pytest.mark.parametrize("unit", _UNITS, ids=lambda unit: unit.name)
def test_unit_sets_only_settings_that_a_controller_accepts(unit: Path) -> None:
    pairs = re.findall(r'^Environment="(\w+)=(.*)"$', unit.read_text(), re.MULTILINE)
    environ = {name: value.replace("%i", "1") for name, value in pairs}
    assert settings_loader.unknown_variables(environ) == ()
    settings = settings_loader.load(environ)
    expected = ("cuda:1", 2) if "@" in unit.name else ("auto", 1)
    assert (settings.device, settings.devices) == expected


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze, which checks units")
@pytest.mark.parametrize("unit", _UNITS, ids=lambda unit: unit.name)
def test_systemd_reads_the_unit_without_a_warning(unit: Path, tmp_path: Path) -> None:
    instance = tmp_path / unit.name.replace("@", "@1")
    present = re.sub(r"(?m)^ExecStart=\S+", "ExecStart=/bin/true", unit.read_text())  # the program is not installed
    (tmp_path / unit.name).write_text(present)
    instance.write_text(present)
    done = subprocess.run(["systemd-analyze", "verify", str(instance)], capture_output=True, text=True, check=False)
    complaints = [line for line in done.stderr.splitlines() if instance.name in line]
    assert (complaints, done.returncode) == ([], 0)
