"""Runs the process that computes baselines of published versions beside a controller, one after another."""

import logging

from indb_tensile.catalog.baseline_files import BaselineFiles
from indb_tensile.controller.fork_client import ForkedProcess, ForkServer
from indb_tensile.job import WorkerId

log = logging.getLogger("controller")

LOOK_S = 1.0  # between two looks for files


class BaselineProcess:
    """Starts a process when rows of a baseline wait. Times are monotonic seconds, given by the caller.

    The process computes all baselines that wait, and ends. It runs only when a processor is idle, so it delays
    neither a job nor a prediction, and it has no access to the device.
    """

    def __init__(self, *, forks: ForkServer, module: str, files: BaselineFiles, look_s: float = LOOK_S) -> None:
        self._forks = forks
        self._module = module
        self._files = files
        self._look_s = look_s
        self._enabled = False
        self._process: ForkedProcess | None = None
        self._look_at_s = 0.0

    @property
    def asked(self) -> bool:
        """Whether a process runs or has been requested."""
        return self._process is not None

    def serve(self, worker: WorkerId | None) -> None:
        """Compute baselines while there is a worker."""
        self._enabled = worker is not None
        if not self._enabled:
            self.stop()

    def attend(self, now_s: float) -> None:
        """Notice that the process has ended, and start one if rows wait."""
        self._forks.receive()
        process = self._process
        if process is not None and process.over:
            code = None if process.failed else process.reap()
            if code != 0:
                log.warning("the process that computes baselines ended with code %s", code)
            self._process = None
        if self._process is None and self._enabled and now_s >= self._look_at_s:
            self._look_at_s = now_s + self._look_s
            if self._files.waiting():
                self._process = self._forks.ask(self._module, descriptors={})

    def stop(self) -> None:
        """Stop the process. The baseline that it computes is dropped."""
        process, self._process = self._process, None
        if process is not None:
            process.abandon()
