"""The methods that the controller's loop needs of the heartbeat and of the processes beside the controller."""

from typing import Protocol

from indb_tensile.job import WorkerId


class HeartbeatControl(Protocol):
    """The methods of the heartbeat that the loop uses."""

    def serve(self, worker: WorkerId, registered_s: float) -> None:
        """Renew the lease of this worker from now on."""
        ...

    def beat_now(self) -> None:
        """Send a heartbeat at once."""
        ...


class ServiceControl(Protocol):
    """The methods of the service process, and of others beside the controller, that the loop uses."""

    def serve(self, worker: WorkerId | None) -> None:
        """Serve this worker from now on; None stops the service."""
        ...

    def see_jobs(self, jobs: int) -> None:
        """Note the number of jobs that this controller has now."""
        ...

    def attend(self, now_s: float) -> None:
        """Notice that the process has ended, and start it if it is due."""
        ...
