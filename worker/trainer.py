"""A trainer: one process, one job. Forked from a process that has imported what takes long, it waits to be assigned.

Its end is its controller's: it dies with it, and a cancel is a signal that needs no handler here, since everything
on the device is given back by the controller's crash protocol and everything in the catalog is guarded by the claim.
"""

import contextlib
import errno
import logging
import os
import socket

import psycopg
import torch

from indb_tensile import config
from indb_tensile.catalog.outage import is_databases
from indb_tensile.errors import DeviceLostError, LostClaimError, RequestError, StorageError, TensileError
from indb_tensile.executor.cuda import CudaRegions, ordinal
from indb_tensile.job import Blame, JobId
from indb_tensile.link import Assign, Failed, Finished, Link, Ready
from indb_tensile.log import start_log

from .serving.processes import die_with_parent
from .training import niceness
from .training.inbox import Inbox
from .training.run import TrainingRun

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE)

log = logging.getLogger("trainer")


def main() -> int:
    """Serve one job; return the exit code."""
    settings = config.load(os.environ)
    inherited = config.inheritance(os.environ)
    start_log("trainer", settings.log_level.upper())
    die_with_parent()
    niceness.prepare()
    link = Link(socket.socket(fileno=inherited.link_fd))
    inbox = Inbox(link)
    link.send(Ready(pid=os.getpid()))
    return _serve(settings, inherited, link, inbox, inbox.expect(Assign))


def _mapped(settings: config.Settings, inherited: config.Inheritance) -> CudaRegions | None:
    """A GPU's regions, mapped when there is a job: the context that this takes is no spare trainer's.

    Raises DeviceError where the GPU is gone, or its controller.
    """
    if inherited.regions_fd is None:
        return None
    try:
        return CudaRegions(ordinal(settings.device), inherited.regions_fd)
    finally:
        os.close(inherited.regions_fd)


def _serve(
    settings: config.Settings,
    inherited: config.Inheritance,
    link: Link,
    inbox: Inbox,
    assigned: Assign,
) -> int:
    job = assigned.job.job
    torch.set_num_threads(assigned.job.threads)
    try:
        regions = _mapped(settings, inherited)
    except TensileError as error:
        _report(link, job, error, Blame.OTHERS)
        return error.exit_code
    try:
        TrainingRun(settings, inherited.device_fd, link, inbox, assigned, regions).go()
    except LostClaimError as error:
        log.warning("job %s: %s", job, error)  # somebody else goes on with it: there is nobody to tell
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
    link.send(Finished(job=job))
    return 0


def _report(link: Link, job: JobId, error: TensileError, blame: Blame = Blame.JOB) -> None:
    log.warning("job %s: %s", job, error)
    with contextlib.suppress(OSError):  # the controller is gone, and so are we
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
            )
        )


def blame_of(error: Exception) -> Blame:
    """Whether what ended a training is the job's own fault, or that of the database, the device or a full disk."""
    if isinstance(error, DeviceLostError | StorageError) or is_databases(error):
        return Blame.OTHERS
    if isinstance(error, OSError) and error.errno in _FULL:
        return Blame.OTHERS
    return Blame.JOB


def _from_database(error: psycopg.Error) -> TensileError:
    told = TensileError(
        error.diag.message_primary or str(error).strip(),
        detail=error.diag.message_detail or "",
        hint=error.diag.message_hint or "",
    )
    told.sqlstate = error.sqlstate or "08006"
    return told
