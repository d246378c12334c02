"""The processes that run beside a controller.

They are the service, the learner, the steward of searches, the one that fits baselines, and the one that measures how
much jobs slow each other down.
"""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

from indb_tensile import config
from indb_tensile.catalog.baseline_files import BaselineFiles
from indb_tensile.config import Settings
from indb_tensile.controller.baseline_process import BaselineProcess
from indb_tensile.controller.companion_process import CompanionProcess
from indb_tensile.controller.contention_process import ContentionProcess
from indb_tensile.controller.fork_client import ForkServer
from indb_tensile.controller.learner_process import LearnerProcess
from indb_tensile.controller.records import CatalogRecords
from indb_tensile.controller.service_process import NoService, ServiceProcess
from indb_tensile.controller.steward_process import StewardProcess
from indb_tensile.device.backend import CPU, EMULATED
from indb_tensile.device.hardware import cores
from indb_tensile.device.other_load import tolerated_cores
from indb_tensile.job import WorkerId

SERVICE = "indb_tensile.worker.service"
LEARNER = "indb_tensile.worker.learner"
BASELINE = "indb_tensile.worker.baseline"
CONTENTION = "indb_tensile.worker.measure_contention"
STEWARD = "indb_tensile.worker.search_steward"

Part = CompanionProcess | ServiceProcess | NoService

log = logging.getLogger("controller")


class Companions:
    """Starts and stops these processes together.

    `announce_contention` is called when some of the contention may have been measured. It is None if the controller
    needs no measurement.
    """

    def __init__(
        self,
        settings: Settings,
        forks: ForkServer,
        records: CatalogRecords,
        announce_contention: Callable[[], bool] | None,
    ) -> None:
        self.steward = StewardProcess(forks=forks, module=STEWARD)
        self._contention = (
            None
            if announce_contention is None
            else ContentionProcess(
                forks=forks,
                module=CONTENTION,
                announce=announce_contention,
                tolerated_cores=tolerated_cores(cores(), settings.survey_busy_cores),
            )
        )
        self._learner = _make_learner(settings, forks)
        self._parts: tuple[Part, ...] = (
            _make_service(settings, forks),
            _make_baseline(settings, forks, records),
            self.steward,
        )

    def serve(self, worker: WorkerId | None) -> None:
        """Let each process serve this worker from now on."""
        for part in self._all():
            part.serve(worker)

    def see_jobs(self, jobs: int) -> None:
        """Note the number of jobs of the controller. Contention is measured only while there are none."""
        if self._contention is not None:
            self._contention.see_jobs(jobs)

    def attend(self, now_s: float) -> None:
        """Start the processes that are due. The learner and the measurement of contention never run together."""
        for part in self._parts:
            part.attend(now_s)
        learns = self._learner is not None and self._learner.asked
        if self._contention is not None and not learns:
            self._contention.attend(now_s)
        waits = self._contention is not None and self._contention.holds_back_others(now_s)
        if self._learner is not None and (learns or not waits):
            self._learner.attend(now_s)

    def stop(self) -> None:
        """Stop all of them."""
        for part in self._all():
            part.stop()

    def _all(self) -> Iterator[Part]:
        yield from self._parts
        yield from (part for part in (self._learner, self._contention) if part is not None)


def _make_service(settings: Settings, forks: ForkServer) -> ServiceProcess | NoService:
    if not settings.has_service:
        log.warning(
            "no service is started: set %s to the directory of its socket, or %s",
            config.variable("service_directory"),
            config.variable("service_address"),
        )
        return NoService()
    return ServiceProcess(forks=forks, module=SERVICE, grace_s=settings.stop_grace_s)


def _make_learner(settings: Settings, forks: ForkServer) -> LearnerProcess | None:
    # The learner measures operators on the processor only.
    if not settings.survey_s or settings.device not in (CPU, EMULATED):
        return None
    return LearnerProcess(forks=forks, module=LEARNER)


def _make_baseline(settings: Settings, forks: ForkServer, records: CatalogRecords) -> BaselineProcess | NoService:
    if not settings.baseline:
        return NoService()
    files = BaselineFiles.of(Path(settings.state_dir), records.installation())
    return BaselineProcess(forks=forks, module=BASELINE, files=files)
