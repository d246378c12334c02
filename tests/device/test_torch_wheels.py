"""The builds of torch that run on each GPU. The set-up script and the package must agree on them."""

import os
import subprocess
from pathlib import Path

import pytest

from indb_tensile.device.torch_wheels import Capability, installation_hint, runs_on

ROOT = Path(__file__).parents[2]
HOPPER_BUILD = ("sm_75", "sm_80", "sm_86", "sm_90", "compute_90")


@pytest.mark.parametrize(
    ("capability", "with_ptx", "without"),
    [
        ((7, 0), False, False),
        ((7, 5), True, True),
        ((8, 0), True, True),
        ((8, 9), True, True),  # by the binary for 8.6
        ((9, 0), True, True),
        ((12, 0), True, False),
    ],
)
def test_a_binary_runs_on_later_minor_versions_and_ptx_on_every_later_version(
    capability: Capability, *, with_ptx: bool, without: bool
) -> None:
    assert runs_on(HOPPER_BUILD, capability, compiles_ptx=True) == with_ptx
    assert runs_on(HOPPER_BUILD, capability, compiles_ptx=False) == without


def test_a_build_for_one_architecture_runs_on_this_architecture_alone() -> None:
    assert runs_on(("sm_90a",), (9, 0), compiles_ptx=True)
    assert not runs_on(("sm_100a", "compute_100a"), (10, 3), compiles_ptx=True)
    assert not runs_on(("gfx90a",), (9, 0), compiles_ptx=True)


def shell(source: str, **variables: str) -> str:
    """Return the output of a shell that has sourced the set-up script."""
    done = subprocess.run(
        ["sh", "-euc", f". examples/setup.sh; {source}"],
        cwd=ROOT,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout


CASES = [(470, 11040), (525, 12000), (570, 12080), (580, 13000), (610, 13030)]


@pytest.mark.parametrize(("driver", "cuda"), CASES)
@pytest.mark.parametrize("capability", [(3, 7), (6, 1), (7, 0), (7, 5), (9, 0), (12, 0)])
def test_the_set_up_script_installs_the_build_that_the_package_names(
    driver: int, cuda: int, capability: Capability
) -> None:
    build = shell(f"torch_build {driver}.65.06 {capability[0]}.{capability[1]}")
    assert ("pip install torch" in installation_hint(cuda, capability)) == (build != "cpu")
    assert build == "cpu" or build in installation_hint(cuda, capability)


def test_the_driver_version_is_read_from_nvidia_smi_from_proc_or_from_the_directory_of_wsl(tmp_path: Path) -> None:
    proprietary = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023"
    opened = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (root@host)"
    version = tmp_path / "version"
    for text, expected in ((proprietary, "535.104.05"), (opened, "580.65.06")):
        version.write_text(f"{text}\nGCC version:  gcc version 12.2.0\n")
        output = shell("nvidia_driver", nvidia_proc=str(version), PATH=_without_nvidia(tmp_path))
        assert output.strip() == expected
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho '570.86.15, 8.9'\n")
    smi.chmod(0o755)
    path = _without_nvidia(tmp_path)
    assert shell('printf %s "$wsl_library"') == "/usr/lib/wsl/lib"
    assert shell(f"wsl_library={tmp_path}; torch_of_this_machine", PATH=path) == "torch==2.13.0+cu126"
    assert shell("torch_of_this_machine", PATH=f"{tmp_path}:{path}") == "torch==2.13.0+cu126"
    smi.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed'; exit 9\n")
    output = shell("torch_of_this_machine", PATH=f"{tmp_path}:{path}", nvidia_proc=str(tmp_path / "none"))
    assert output == "torch==2.13.0+cpu"


def _without_nvidia(tmp_path: Path) -> str:
    """Return a search path with the script's commands and without nvidia-smi."""
    tools = tmp_path / "tools"
    tools.mkdir(exist_ok=True)
    for name in ("sh", "sed", "head", "tr"):
        if not (tools / name).exists():
            (tools / name).symlink_to(next(p for d in ("/usr/bin", "/bin") if (p := Path(d) / name).exists()))
    return str(tools)
