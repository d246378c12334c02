"""NVIDIA's Multi-Process Service (MPS): ends the GPU work of an MPS client before the process is killed.

Without MPS the processes of a device share it by time slices, and killing one does not affect the others. With MPS
their kernels run at the same time through one server. NVIDIA does not specify what happens to the other clients if a
client dies in the middle of a kernel, unless `terminate_client` has ended its work first.

MPS is used if its daemon runs before the controller starts; `tensile up --mps` starts one (cli/mps_daemon.py). If
another program kills a client (such as the kernel when memory runs out), its work cannot be ended first. Not yet
tried on a GPU.

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
ANSWER_TIMEOUT_S = 5.0  # time limit for one answer: the daemon waits until a running kernel ends


@dataclass(frozen=True, slots=True, kw_only=True)
class Mps:
    """The MPS control program, and the environment that selects the daemon."""

    program: str
    environment: Mapping[str, str]
    answer_timeout_s: float = ANSWER_TIMEOUT_S

    @classmethod
    def serving(cls, environment: Mapping[str, str]) -> "Mps | None":
        """Return an Mps if a daemon answers, else None."""
        program = shutil.which(PROGRAM, path=environment.get("PATH"))
        if program is None:
            return None
        mps = cls(program=program, environment=environment)
        return None if mps._send_command("get_server_list") is None else mps

    def quit(self) -> None:
        """Stop the daemon and its servers. Clients that still compute after `answer_timeout_s` are not waited for."""
        self._send_command(f"quit -t {self.answer_timeout_s:.0f}", self.answer_timeout_s * 2)

    def let_go(self, pid: int) -> None:
        """End this process's work on the GPU, so that it may be killed. Does nothing if it is not an MPS client."""
        for server in self._query_ids("get_server_list"):
            if (
                pid in self._query_ids(f"get_client_list {server}")
                and self._send_command(f"terminate_client {server} {pid}") is None
            ):
                log.error(
                    "MPS did not end the work of process %d: killing the process may end the work of others too", pid
                )

    def _query_ids(self, command: str) -> list[int]:
        return [int(word) for word in (self._send_command(command) or "").split() if word.isdecimal()]

    def _send_command(self, command: str, answer_timeout_s: float | None = None) -> str | None:
        """Send a command. Returns the daemon's answer, or None if the command failed or took too long."""
        # The command is read from a file, not from a pipe: writing to a program that ends before it reads raises
        # SIGPIPE, which would end a `tensile` command.
        with TemporaryFile() as command_file:
            command_file.write(f"{command}\n".encode())
            command_file.seek(0)
            try:
                process = subprocess.run(
                    (self.program,),
                    stdin=command_file,
                    env=self.environment,
                    capture_output=True,
                    text=True,
                    timeout=answer_timeout_s or self.answer_timeout_s,
                    check=False,
                )
            except (OSError, subprocess.TimeoutExpired):
                return None
        return process.stdout if process.returncode == 0 else None
