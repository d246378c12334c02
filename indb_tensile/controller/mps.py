"""NVIDIA's Multi-Process Service (MPS), where it serves the GPU: what a client computes is ended before it is killed.

Without MPS the processes of a device take turns on it, by time slices, and whoever is killed takes no one along. With
it their kernels run beside each other, by way of one server; NVIDIA leaves open what becomes of the others where a
client dies in the middle of a kernel, unless `terminate_client` has ended its work first.
Whoever starts the daemon before the controller has chosen it, and `tensile up --mps` starts one (cli/mps_daemon.py).
For a process that somebody else kills (the system, for lack of memory) nothing can be done. Not yet tried on a GPU.

Source: NVIDIA, Multi-Process Service: the commands of nvidia-cuda-mps-control, and client termination.
"""

import logging
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from tempfile import TemporaryFile

log = logging.getLogger("controller")

PROGRAM = "nvidia-cuda-mps-control"
PATIENCE_S = 5.0  # for one answer: a kernel that is under way ends first


@dataclass(frozen=True, slots=True, kw_only=True)
class Mps:
    """The control daemon's program, and the environment that says which daemon."""

    program: str
    environment: Mapping[str, str]
    patience_s: float = PATIENCE_S

    @classmethod
    def serving(cls, environment: Mapping[str, str]) -> "Mps | None":
        """MPS where its daemon answers; None where there is none."""
        program = shutil.which(PROGRAM, path=environment.get("PATH"))
        if program is None:
            return None
        found = cls(program=program, environment=environment)
        return None if found._ask("get_server_list") is None else found

    def quit(self) -> None:
        """Tell the daemon to end, its servers with it; clients that compute after `patience_s` are not waited for."""
        self._ask(f"quit -t {self.patience_s:.0f}", self.patience_s * 2)

    def let_go(self, pid: int) -> None:
        """End what this process computes, so that it may be killed; nothing where it is no client."""
        for server in self._numbers("get_server_list"):
            if (
                pid in self._numbers(f"get_client_list {server}")
                and self._ask(f"terminate_client {server} {pid}") is None
            ):
                log.error("MPS did not end the work of process %d: killing it may end others' work too", pid)

    def _numbers(self, command: str) -> list[int]:
        return [int(word) for word in (self._ask(command) or "").split() if word.isdecimal()]

    def _ask(self, command: str, patience_s: float | None = None) -> str | None:
        """What the daemon answers; None where it does not, in time."""
        # From a file: SIGPIPE would end a command that writes to a program which ends before it reads.
        with TemporaryFile() as asked:
            asked.write(f"{command}\n".encode())
            asked.seek(0)
            try:
                done = subprocess.run(
                    (self.program,),
                    stdin=asked,
                    env=self.environment,
                    capture_output=True,
                    text=True,
                    timeout=patience_s or self.patience_s,
                    check=False,
                )
            except (OSError, subprocess.TimeoutExpired):
                return None
        return done.stdout if done.returncode == 0 else None
