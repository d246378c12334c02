"""The controller's process: reads the settings, builds the objects and runs the loop.

SIGHUP reads the budget from the settings again, and jobs shrink or grow to it. SIGTERM and SIGINT stop the
controller: its jobs return to the queue. Exit codes: 0 after these signals, else those of `errors.py` (2 for a wrong
setting, 4 without a database or for a database of another version, 5 without a device), and 70 for an internal error.
"""

import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

from indb_tensile import settings_loader
from indb_tensile._native import Passages
from indb_tensile.catalog.notify import SEARCH, Listener, Notification
from indb_tensile.catalog.pooling import refuse_pooled_sessions
from indb_tensile.config import Settings
from indb_tensile.controller.background_planner import BackgroundPlanner, ImprovementCancellation
from indb_tensile.controller.controller_loop import Controller, Mail
from indb_tensile.controller.fork_client import ForkServer
from indb_tensile.controller.garbage_collection import leave_modules_out
from indb_tensile.controller.heartbeat import Heartbeat
from indb_tensile.controller.housekeeping import CatalogSteps, Housekeeping, steps
from indb_tensile.controller.listener import ListenerThread
from indb_tensile.controller.mailbox import Mailbox
from indb_tensile.controller.policy_planner import PolicyPlanner
from indb_tensile.controller.records import CatalogRecords
from indb_tensile.controller.round_conditions import boundary_ns, runs_rounds
from indb_tensile.controller.round_players import RoundPlayers
from indb_tensile.controller.trainers import Trainers
from indb_tensile.device.allocator_shim import preload_environment
from indb_tensile.device.backend import (
    Chosen,
    Emulated,
    kind_of,
    named,
    refuse_network,
    uploads_ahead,
)
from indb_tensile.device.cuda import Gpu
from indb_tensile.errors import DatabaseError, TensileError
from indb_tensile.log import start_log
from indb_tensile.scheduler.admission.events import BudgetChange, ContentionChange, Stop
from indb_tensile.scheduler.admission.overheads import Overheads
from indb_tensile.scheduler.admission.pool import Pool, Sharing
from indb_tensile.scheduler.completion.contention import Contention
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.next_batch import BATCH_NAMES

from .companions import SERVICE, Companions
from .controller_device import (
    TakenDevice,
    child_environment,
    choose_device,
    known_contention,
    settings_for,
    take_device,
)
from .start_patience import sentences, with_patience

TRAINER = "indb_tensile.worker.trainer"

_LEAST_ENTERING = 2  # two, so that one job that waits for a lock or for memory does not delay its owner's other jobs

log = logging.getLogger("controller")


def main() -> int:
    """Run a controller until it is stopped. Returns the exit code."""
    start_log("controller")
    try:
        settings = settings_loader.load(os.environ)
        logging.getLogger().setLevel(settings.log_level.upper())
        for fault in settings_loader.unknown_variables(os.environ):
            log.warning("%s", fault)
        with_patience(_run, settings)
    except TensileError as error:
        log.error("%s", sentences(error))  # noqa: TRY400 - no traceback needed
        return error.exit_code
    except Exception:
        log.exception("the controller failed")
        return 70
    return 0


def _run(settings: Settings) -> None:
    """Build all objects, run the loop, and take the objects down again, whatever happens."""
    chosen = choose_device(settings)
    refuse_network(settings, chosen)
    set_names = settings_loader.configured_names(os.environ)
    device_name = settings.device if isinstance(chosen, Emulated) else named(chosen)
    settings = settings_for(chosen, settings)
    kind = kind_of(settings.device, settings.threads)
    mailbox: Mailbox[Mail] = Mailbox()
    with ExitStack() as stack:
        stack.callback(mailbox.close)  # called last on exit, after the threads that post have ended
        refuse_pooled_sessions(settings.dsn)
        records = stack.enter_context(closing(_connect_catalog(settings, kind, device_name, "controller")))
        pulse = stack.enter_context(closing(_connect_catalog(settings, kind, device_name, "heartbeat")))
        taken = take_device(chosen, settings, records, stack, fixed="capacity_bytes" in set_names)
        settings = taken.settings
        forks = stack.enter_context(closing(_fork_server(chosen, settings)))
        announce = None
        if taken.contention_pending:
            announce = _contention_reader(settings, taken.contention, records, mailbox)
        companions = Companions(settings, forks, records, announce)
        stack.callback(companions.stop)
        planner = stack.enter_context(closing(_make_planner(settings, taken.link, mailbox)))
        trainers = Trainers(
            forks=forks,
            module=TRAINER,
            device_fd=taken.ledger.fd,
            grace_s=settings.stop_grace_s,
            wake=mailbox,
            regions=taken.regions,
        )
        controller = Controller(
            pool=_make_pool(settings, taken, records.overheads()),
            planner=planner,
            records=records,
            trainers=trainers,
            memory=taken.memory(),
            rounds=RoundPlayers(Passages(taken.ledger.fd)),
            mailbox=mailbox,
            service=companions,
            poll_s=settings.poll_s,
            answer_s=settings.answer_s,
        )
        heartbeat = Heartbeat(
            pulse=pulse,
            beat_s=settings.beat_s,
            lease_s=settings.lease_s,
            claims=controller.held,
            tell=mailbox.post,
            stop_trainers=trainers.kill_all,
        )
        stack.callback(heartbeat.close)
        _start_threads(settings, mailbox, companions, stack)
        stack.callback(trainers.close)  # called first on exit: no trainer may run without a controller
        _listen_to_signals(mailbox, chosen, settings.capacity_bytes)
        leave_modules_out()
        controller.run(heartbeat)
    log.info("stopped")


def _start_threads(settings: Settings, mailbox: Mailbox[Mail], companions: Companions, stack: ExitStack) -> None:
    """Start the threads that listen to notifications and that clean up. They end with the stack."""
    notifications = Listener(settings.dsn, application_name="tensile listener")
    stack.callback(ListenerThread(notifications, partial(_pass_on, mailbox, companions)).close)
    _start_housekeeping(settings, stack, companions)


def _contention_reader(
    settings: Settings, known: Contention, records: CatalogRecords, mailbox: Mailbox[Mail]
) -> Callable[[], bool]:
    """Return what passes measured contention on to the loop if it is not `known`, and returns whether it could."""

    def announce() -> bool:
        nonlocal known
        try:
            stored, _ = known_contention(settings, records)
        except DatabaseError as error:
            log.debug("measured contention was not read: %s", error.message)
            return False
        if stored != known:  # else what jobs have taught meanwhile stays
            known = stored
            factors = ", ".join(f"{jobs} jobs {factor:.2f} times" for jobs, factor in stored.points if jobs > 1)
            log.info("how much jobs slow each other down is measured now: %s", factors)
            mailbox.post(ContentionChange(contention=stored))
        return True

    return announce


def _make_planner(settings: Settings, link: Link, mailbox: Mailbox[Mail]) -> BackgroundPlanner:
    """Return the planner, which plans on a thread of its own and posts its answers to the mailbox."""
    cancellation = ImprovementCancellation()
    planner = PolicyPlanner(
        link=link,
        policy=settings.policy,
        cancellation_check=cancellation.check,
        least_gain=settings.phases_gain,
        boundary_ns=boundary_ns(settings),
        host_bytes=settings.host_pool_bytes,
    )
    return BackgroundPlanner(planner, mailbox.post, cancellation)


def _fork_server(chosen: Chosen, settings: Settings) -> ForkServer:
    """Return the server from which all other processes are forked."""
    environment = child_environment(settings)
    # Without the preloaded allocator, tensors are in the ordinary memory of each trainer, and the ledger only counts
    # them.
    ordinary = not isinstance(chosen, Gpu) and not settings.share_memory
    return ForkServer(environment if ordinary else preload_environment(environment), _modules(settings))


def _listen_to_signals(mailbox: Mailbox[Mail], chosen: Chosen, capacity_bytes: int) -> None:
    """Install the signal handlers: SIGTERM and SIGINT stop the controller, SIGHUP reads the budget again."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: mailbox.post(Stop()))
    signal.signal(signal.SIGHUP, lambda *_: _reload_budget(mailbox, chosen, capacity_bytes))


def _pass_on(mailbox: Mailbox[Mail], companions: Companions, notification: Notification) -> None:
    """Pass a notification on to the loop, which starts the steward of searches if that is called."""
    if notification.kind == SEARCH:
        companions.steward.call()
    mailbox.post(notification)


def _start_housekeeping(settings: Settings, stack: ExitStack, companions: Companions) -> None:
    """Start the thread that cleans up once a minute. It ends with the stack."""
    chores = stack.enter_context(closing(CatalogSteps(settings.dsn)))
    housekeeping_steps = steps(
        chores,
        state_directory=Path(settings.state_dir),
        service_directory=Path(settings.service_directory) if settings.service_directory else None,
        host=socket.gethostname(),
        log_bytes=settings.log_bytes,
        log_files=settings.log_files,
        call_steward=companions.steward.call,
    )
    stack.enter_context(closing(Housekeeping(housekeeping_steps)))


def _reload_budget(mailbox: Mailbox[Mail], chosen: Chosen, capacity_bytes: int) -> None:
    """Read the settings again. Only the budget may change while the controller runs."""
    try:
        loaded, set_names = settings_loader.load(os.environ), settings_loader.configured_names(os.environ)
        if isinstance(chosen, Gpu):  # the free memory no longer includes the regions that this controller has made
            budget_bytes = loaded.budget_bytes if "budget_bytes" in set_names else capacity_bytes
        else:
            budget_bytes = settings_for(chosen, loaded).budget_bytes
    except TensileError as error:
        log.error("the settings are not changed: %s", error.message)  # noqa: TRY400 - no traceback needed
        return
    mailbox.post(BudgetChange(budget_bytes=min(budget_bytes, capacity_bytes)))


def _connect_catalog(settings: Settings, kind: str, device_name: str, purpose: str) -> CatalogRecords:
    return CatalogRecords(
        settings.dsn,
        application_name=f"tensile {purpose}",
        host=socket.gethostname(),
        pid=os.getpid(),
        device_kind=kind,
        device_name=device_name,
        policy=settings.policy,
        lease_s=settings.lease_s,
        interrupted_s=settings.interrupted_s,
        slots=settings.max_jobs,
        entering=_entering_jobs(settings),
        threads=settings.threads,
        makes_way=settings.sharing == Sharing.COMPLETION and settings.parked_jobs > 0,
        uses_nccl=settings.uses_nccl,
    )


def _entering_jobs(settings: Settings) -> int:
    return settings.entering_jobs or max(_LEAST_ENTERING, len(os.sched_getaffinity(0)))


def _make_pool(settings: Settings, taken: TakenDevice, overheads: Overheads) -> Pool:
    return Pool(
        budget_bytes=settings.budget_bytes,
        region_bytes=settings.region_bytes,
        host_pool_bytes=settings.host_pool_bytes,
        spare_trainers=settings.spare_trainers,
        max_jobs=settings.max_jobs,
        entering_jobs=_entering_jobs(settings),
        parked_jobs=settings.parked_jobs,
        moves_trained=settings.checkpoint_store != "local",
        drift_threshold=settings.drift_threshold,
        sharing=Sharing(settings.sharing),
        max_slowdown=settings.max_slowdown,
        first_step_s=settings.first_step_s,
        prepares_on_device=not settings.device.startswith("cuda"),
        batch=BATCH_NAMES if uploads_ahead(settings.device, cuda_graphs=settings.cuda_graphs) else (),
        link=taken.link,
        contention=taken.contention,
        overheads=overheads,
        phases=runs_rounds(settings, shared=taken.shared is not None),
        phases_ns=round(settings.phases_s * 1e9),
    )


def _modules(settings: Settings) -> tuple[str, ...]:
    """Return the modules that are certain to be forked."""
    return (SERVICE, TRAINER) if settings.has_service else (TRAINER,)


if __name__ == "__main__":
    sys.exit(main())
