"""A trainer's process: trains one job, or predicts a relation for it (predicting/prediction_run.py).

It is forked with its modules imported, and waits until a job is assigned.

It ends when its controller ends. A cancelled job is ended by a signal, for which no handler is needed: the controller
frees all device memory of a dead trainer, and every write to the catalog is guarded by the claim.
"""

import contextlib
import errno
import logging
import os
import socket

import psycopg
import torch

from indb_tensile import config, settings_loader
from indb_tensile.catalog.fault_origin import is_database_fault
from indb_tensile.controller.parent_death import die_with_parent
from indb_tensile.device.cuda import CudaRegions, ordinal
from indb_tensile.errors import (
    DeviceLostError,
    HandedOverError,
    HeldTrialError,
    LostClaimError,
    MemoryLimitError,
    NoRoomToParkError,
    OutgrownMemoryError,
    RankLostError,
    RequestError,
    StorageError,
    TensileError,
)
from indb_tensile.job import Blame, JobId
from indb_tensile.log import start_log
from indb_tensile.messages import Assign, Failed, Finished, Ready, TrainerLink

from .predicting.prediction_run import PredictionRun
from .training import niceness
from .training.inbox import Inbox
from .training.run import TrainingRun

_RESOURCE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE)

log = logging.getLogger("trainer")


def main() -> int:
    """Train one job. Returns the exit code."""
    settings = settings_loader.load(os.environ)
    inherited = config.inherited_descriptors(os.environ)
    start_log("trainer", settings.log_level.upper())
    die_with_parent()
    niceness.prepare()
    link = TrainerLink(socket.socket(fileno=inherited.link_fd))
    inbox = Inbox(link)
    link.send(Ready(pid=os.getpid()))
    return _serve(settings, inherited, link, inbox, inbox.expect(Assign))


def _map_regions(settings: config.Settings, inherited: config.InheritedDescriptors) -> CudaRegions | None:
    """Map a GPU's regions, or return None if there are none to map.

    They are mapped when a job is assigned, because mapping needs a CUDA context, which a spare trainer must not have.
    Raises DeviceError if the GPU or the controller is gone.
    """
    if inherited.regions_fd is None:
        return None
    try:
        return CudaRegions(ordinal(settings.device), inherited.regions_fd)
    finally:
        os.close(inherited.regions_fd)


def _serve(
    settings: config.Settings,
    inherited: config.InheritedDescriptors,
    link: TrainerLink,
    inbox: Inbox,
    assigned: Assign,
) -> int:
    job = assigned.job.job
    torch.set_num_threads(assigned.job.threads)
    predicts = assigned.job.spec.predict is not None
    closing_s: float | None = None
    try:
        regions = _map_regions(settings, inherited) if assigned.job.spec.takes_device else None
    except TensileError as error:
        _report(link, job, error, Blame.OTHERS)
        return error.exit_code
    try:
        if predicts:
            PredictionRun(settings, link, assigned.job).run()
        elif not assigned.job.spec.takes_device:
            # Imported here because scikit-learn's models take time and memory that trainers of networks do not need.
            from .training.estimator_run import EstimatorRun

            EstimatorRun(settings, link, assigned).run()
        else:
            closing_s = TrainingRun(settings, inherited.device_fd, link, inbox, assigned, regions).run()
    except LostClaimError as error:
        log.warning("job %s: %s", job, error)  # another worker has the job now, so the controller gets no message
        return error.exit_code
    except TensileError as error:
        _report(link, job, error, blame_of(error))
        return error.exit_code
    except psycopg.Error as error:
        _report(link, job, _from_database(error), blame_of(error))
        return 1
    except Exception as error:
        log.exception("job %s", job)
        _report(link, job, TensileError(f"the trainer failed: {type(error).__name__}: {error}"), blame_of(error))
        return 1
    link.send(Finished(job=job, closing_s=closing_s))
    return 0


def _report(link: TrainerLink, job: JobId, error: TensileError, blame: Blame = Blame.JOB) -> None:
    log.log(logging.INFO if isinstance(error, HeldTrialError) else logging.WARNING, "job %s: %s", job, error)
    with contextlib.suppress(OSError):  # the controller is gone, and this process ends too
        link.send(
            Failed(
                job=job,
                sqlstate=error.sqlstate,
                message=error.message,
                detail=error.detail,
                hint=error.hint,
                retry=not isinstance(error, RequestError),
                lost=isinstance(error, DeviceLostError),
                blame=blame,
                needs_bytes=error.needs_bytes if isinstance(error, MemoryLimitError) else None,
            )
        )


def blame_of(error: Exception) -> Blame:
    """Return what caused the error: the job itself, others (database, device, full disk), its memory, or nobody."""
    if isinstance(error, HandedOverError | NoRoomToParkError | HeldTrialError):
        return Blame.NOBODY
    if isinstance(error, OutgrownMemoryError):
        return Blame.MEMORY if error.known else Blame.NOBODY
    if isinstance(error, DeviceLostError | RankLostError | StorageError) or is_database_fault(error):
        return Blame.OTHERS
    if isinstance(error, OSError) and error.errno in _RESOURCE_ERRORS:
        return Blame.OTHERS
    return Blame.JOB


def _from_database(error: psycopg.Error) -> TensileError:
    reported = TensileError(
        error.diag.message_primary or str(error).strip(),
        detail=error.diag.message_detail or "",
        hint=error.diag.message_hint or "",
    )
    reported.sqlstate = error.sqlstate or "08006"
    return reported
