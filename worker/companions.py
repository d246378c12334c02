"""The processes that run beside a controller: the service, learner, steward, and the one that fits baselines."""

import logging
from pathlib import Path

from indb_tensile import config
from indb_tensile.catalog.baseline_files import BaselineFiles
from indb_tensile.config import Settings
from indb_tensile.controller.baseline_process import BaselineProcess
from indb_tensile.controller.fork_client import ForkServer
from indb_tensile.controller.learner_process import LearnerProcess
from indb_tensile.controller.records import CatalogRecords
from indb_tensile.controller.service_process import NoService, ServiceProcess
from indb_tensile.controller.steward_process import StewardProcess
from indb_tensile.device.backend import CPU, EMULATED
from indb_tensile.job import WorkerId

SERVICE = "indb_tensile.worker.service"
LEARNER = "indb_tensile.worker.learner"
BASELINE = "indb_tensile.worker.baseline"
STEWARD = "indb_tensile.worker.search_steward"

log = logging.getLogger("controller")


class Companions:
    """Starts and stops these processes together."""

    def __init__(self, settings: Settings, forks: ForkServer, records: CatalogRecords) -> None:
        self.steward = StewardProcess(forks=forks, module=STEWARD)
        self._parts = (
            _make_service(settings, forks),
            _make_learner(settings, forks),
            _make_baseline(settings, forks, records),
            self.steward,
        )

    def serve(self, worker: WorkerId | None) -> None:
        """Let each process serve this worker from now on."""
        for part in self._parts:
            part.serve(worker)

    def attend(self, now_s: float) -> None:
        """Start the processes that are due."""
        for part in self._parts:
            part.attend(now_s)

    def stop(self) -> None:
        """Stop all of them."""
        for part in self._parts:
            part.stop()


def _make_service(settings: Settings, forks: ForkServer) -> ServiceProcess | NoService:
    if not settings.has_service:
        log.warning(
            "no service is started: set %s to the directory of its socket, or %s",
            config.variable("service_directory"),
            config.variable("service_address"),
        )
        return NoService()
    return ServiceProcess(forks=forks, module=SERVICE, grace_s=settings.stop_grace_s)


def _make_learner(settings: Settings, forks: ForkServer) -> LearnerProcess | NoService:
    # The learner measures operators on the processor only.
    if not settings.survey_s or settings.device not in (CPU, EMULATED):
        return NoService()
    return LearnerProcess(forks=forks, module=LEARNER)


def _make_baseline(settings: Settings, forks: ForkServer, records: CatalogRecords) -> BaselineProcess | NoService:
    if not settings.baseline:
        return NoService()
    files = BaselineFiles.of(Path(settings.state_dir), records.installation())
    return BaselineProcess(forks=forks, module=BASELINE, files=files)
