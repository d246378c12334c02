"""Runs one process beside a controller repeatedly: the common part of learner, steward and baseline process."""

from abc import ABC, abstractmethod

from indb_tensile.controller.fork_client import ForkedProcess, ForkServer
from indb_tensile.job import WorkerId


class CompanionProcess(ABC):
    """Runs one process at a time while there is a worker. Times are monotonic seconds, given by the caller.

    A subclass decides when a process is started, and what to do after its end.
    """

    def __init__(self, *, forks: ForkServer, module: str) -> None:
        self._forks = forks
        self._module = module
        self._enabled = False
        self._process: ForkedProcess | None = None

    @property
    def asked(self) -> bool:
        """Whether a process runs or has been requested."""
        return self._process is not None

    @property
    def pid(self) -> int | None:
        """The process id of the running process."""
        return None if self._process is None else self._process.pid

    def serve(self, worker: WorkerId | None) -> None:
        """Run processes while there is a worker. Without one, another worker may use the device."""
        self._enabled = worker is not None
        if not self._enabled:
            self.stop()

    def attend(self, now_s: float) -> None:
        """Notice that the process has ended, and start one if it is due."""
        self._forks.receive()
        process = self._process
        if process is not None and process.over:
            self._process = None
            self._ended(None if process.failed else process.reap(), now_s)
        if self._process is None and self._enabled and self._is_due(now_s):
            self._process = self._forks.ask(self._module, descriptors={})

    def stop(self) -> None:
        """Stop the process and all processes that it started. What it has not stored is dropped."""
        process, self._process = self._process, None
        if process is not None:
            process.abandon()

    @abstractmethod
    def _is_due(self, now_s: float) -> bool:
        """Return whether a process is to be started now. If so, it is started."""

    @abstractmethod
    def _ended(self, code: int | None, now_s: float) -> None:
        """Note that the process has ended with this exit code; None if it could not be started."""
