"""Starts and ends the daemon of NVIDIA's Multi-Process Service (MPS), for `tensile up --mps` and `tensile down`.

The daemon's pipes and logs are in directories below the state directory. Environment variables with these directories
make a process a client of the daemon; only the controller and its trainers get them. controller/mps.py describes how
clients are served, and how a client is ended before it is killed. This module was not yet run on a GPU.
"""

import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from indb_tensile.controller.mps import PROGRAM, Mps
from indb_tensile.errors import UnavailableError
from indb_tensile.state_directory import StateDirectory

_TIMEOUT_S = 10.0
_POLL_S = 0.05


def environment(place: StateDirectory) -> dict[str, str]:
    """Return the environment variables that make a process a client of this daemon."""
    return {"CUDA_MPS_PIPE_DIRECTORY": str(place.mps), "CUDA_MPS_LOG_DIRECTORY": str(place.mps / "log")}


def find_program(variables: Mapping[str, str]) -> str:
    """Return the path of the daemon's program. Raises UnavailableError if it is not installed."""
    program = shutil.which(PROGRAM, path=variables.get("PATH"))
    if program is None:
        raise UnavailableError(
            f"--mps needs the program {PROGRAM}, and no directory of PATH has it",
            hint="It comes with NVIDIA's driver (Debian: nvidia-cuda-mps). Without it: tensile up --no-mps",
        )
    return program


def start(place: StateDirectory, variables: Mapping[str, str]) -> None:
    """Start the daemon unless it runs. Raises UnavailableError if MPS is missing or the daemon does not start."""
    own = {**variables, **environment(place)}
    program = find_program(own)
    if Mps.serving(own) is not None:
        return
    (place.mps / "log").mkdir(mode=0o700, parents=True, exist_ok=True)
    # The output goes to a file, because a pipe would stay open for as long as the daemon runs.
    with _output(place).open("wb") as output:
        done = subprocess.run(
            (program, "-d"), env=own, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False, cwd="/"
        )
    if done.returncode != 0 or not _wait_until(serving=True, variables=own):
        raise UnavailableError(
            f"{PROGRAM} -d ended with exit code {done.returncode}, and no daemon answers",
            detail=_output(place).read_text(errors="replace").strip(),
            hint=f"Its logs are in {place.mps / 'log'}. Without MPS: tensile up --no-mps",
        )


def end(place: StateDirectory, variables: Mapping[str, str]) -> bool:
    """End the daemon of this state directory, after its clients have ended. Returns False if none runs.

    Raises UnavailableError if the daemon does not end.
    """
    if not place.mps.is_dir():
        return False
    own = {**variables, **environment(place)}
    mps = Mps.serving(own)
    if mps is None:
        return False
    mps.quit()
    if not _wait_until(serving=False, variables=own):
        raise UnavailableError(
            f"the daemon of MPS in {place.mps} did not end within {_TIMEOUT_S:.0f} s",
            hint=f"End its clients: echo get_server_list | CUDA_MPS_PIPE_DIRECTORY={place.mps} {PROGRAM}",
        )
    return True


def _wait_until(*, serving: bool, variables: Mapping[str, str]) -> bool:
    deadline_s = time.monotonic() + _TIMEOUT_S
    while (Mps.serving(variables) is not None) != serving:
        if time.monotonic() > deadline_s:
            return False
        time.sleep(_POLL_S)
    return True


def _output(place: StateDirectory) -> Path:
    return place.mps / "log" / "start.log"
