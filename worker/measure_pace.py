"""A process that measures once how much slower this machine is than the GPU that it emulates, and then ends.

The controller starts it if the catalog has no measurement. Exit codes are those of the controller.
"""

import logging
import os

import psycopg
import torch

from indb_tensile import settings_loader
from indb_tensile.catalog import device_speed
from indb_tensile.catalog.connection import WORK_LOCK_TIMEOUT_MS, Session
from indb_tensile.controller.parent_death import die_with_parent
from indb_tensile.device.backend import kind_of
from indb_tensile.errors import TensileError
from indb_tensile.executor.latency.reference_step import measure_pace
from indb_tensile.log import start_log
from indb_tensile.scheduler.timing.machines import machine

log = logging.getLogger("pace")


def main() -> int:
    """Measure the pace and store it. Returns the exit code."""
    settings = settings_loader.load(os.environ)
    start_log("pace", settings.log_level.upper())
    try:
        die_with_parent()
        torch.set_num_threads(settings.threads)
        kind = kind_of(settings.device, settings.threads)
        pace = measure_pace(machine(settings.emulate))
        with Session(settings.dsn, application_name="tensile pace", lock_timeout_ms=WORK_LOCK_TIMEOUT_MS) as session:
            session.run(lambda c: device_speed.save_pace(c, kind, settings.emulate, pace))
    except (TensileError, psycopg.Error) as error:
        log.error("the speed of this machine was not measured: %s", error)  # noqa: TRY400 - no traceback needed
        return error.exit_code if isinstance(error, TensileError) else 1
    log.info("a step of %d us on %s takes %d us here", pace.there_ns // 1000, settings.emulate, pace.here_ns // 1000)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
