"""The controller's process: settings to objects to the loop.

SIGHUP reads the budget from the settings again, and jobs shrink or grow to it. SIGTERM and SIGINT end the
controller: its jobs go back to the queue. Exit codes: 0 after those, else as in `errors.py` (2 for a wrong setting,
4 without a database or with one of another version, 5 without a device), 70 for a fault of ours.
"""

import logging
import os
import signal
import socket
import sys
import time
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from indb_tensile import config
from indb_tensile.catalog.connection import UnreachableError, answers
from indb_tensile.catalog.notify import Listener
from indb_tensile.catalog.pooling import refuse_pooled_sessions
from indb_tensile.config import Settings
from indb_tensile.controller.forkserver import ForkServer
from indb_tensile.controller.gauge import Gauge, GpuGauge, NoGauge
from indb_tensile.controller.headroom import Headroom, Limits
from indb_tensile.controller.heartbeat import Heartbeat
from indb_tensile.controller.housekeeping import CatalogChores, Housekeeping, steps
from indb_tensile.controller.learner import LearnerProcess
from indb_tensile.controller.listener import ListenerThread
from indb_tensile.controller.loop import Controller, Mail
from indb_tensile.controller.mailbox import Mailbox
from indb_tensile.controller.memory import DeviceMemory
from indb_tensile.controller.mps import Mps
from indb_tensile.controller.pace import emulated_link, measure_apart, measured_copies
from indb_tensile.controller.planning import PolicyPlanner
from indb_tensile.controller.records import CatalogRecords
from indb_tensile.controller.regions import GpuRegions, broker
from indb_tensile.controller.service import NoService, ServiceProcess
from indb_tensile.controller.thinking import Patience, ThinkingPlanner
from indb_tensile.controller.trainers import Trainers
from indb_tensile.errors import DeviceError, TensileError
from indb_tensile.executor.backend import (
    CPU,
    EMULATED,
    Chosen,
    Cpu,
    Emulated,
    choose,
    fitted,
    kind_of,
    named,
    torch_architectures,
    torch_cuda,
)
from indb_tensile.executor.bandwidth import measure_cpu, measure_emulated
from indb_tensile.executor.cuda import Absence, Gpu, Gpus, NoGpu, probe
from indb_tensile.executor.device import Ledger
from indb_tensile.executor.hardware import (
    is_in_memory,
    processor,
    share_of_machine,
    with_pinned_pool,
    within_machine,
)
from indb_tensile.executor.headroom import KeptFootprints
from indb_tensile.executor.nvml import Nvml
from indb_tensile.executor.serving import preloading
from indb_tensile.job import WorkerId
from indb_tensile.log import start_log
from indb_tensile.scheduler.admission.facts import BudgetChange, Stop
from indb_tensile.scheduler.admission.pool import Pool
from indb_tensile.scheduler.link import Copying, Link, link_of, trusted

TRAINER = "indb_tensile.worker.trainer"
SERVICE = "indb_tensile.worker.service"
LEARNER = "indb_tensile.worker.learner"

_START_PAUSE_S = 2.0
_LEAST_ENTERING = 2  # so that a job that waits for a lock or for memory holds up no other of its owner

log = logging.getLogger("controller")


def main() -> int:
    """Run a controller until it is told to stop; return the exit code."""
    start_log("controller")
    try:
        settings = config.load(os.environ)
        logging.getLogger().setLevel(settings.log_level.upper())
        _run_patiently(settings)
    except TensileError as error:
        log.error("%s", _sentences(error))  # noqa: TRY400 - it says all there is to know
        return error.exit_code
    except Exception:
        log.exception("the controller failed")
        return 70
    return 0


def _sentences(error: TensileError) -> str:
    return " ".join(f"{part.rstrip('.')}." for part in (error.message, error.detail, error.hint) if part)


def _run_patiently(settings: Settings) -> None:
    """Run; where the database goes away before all is built, wait for it and begin anew.

    A server that starts up or shuts down is waited for as long as that takes, one that does not answer for
    `start_patience_s`. One that accepts connections and still refuses this role, password or database is not.
    """
    silent_s, refusals = 0.0, 0
    while True:
        try:
            return _run(settings)
        except UnreachableError as error:
            answer = answers(settings.dsn)
            silent_s = silent_s + _START_PAUSE_S if answer is None else 0.0
            refusals += answer is True  # the first may be of a server that has just come back
            if silent_s > settings.start_patience_s or refusals > 1:
                raise
            log.warning("%s Trying again until the database answers.", _sentences(error))
        time.sleep(_START_PAUSE_S)


def _run(settings: Settings) -> None:
    """Build everything, hand it to the loop, and take it down again, whatever happens."""
    chosen = _choose(settings)
    given = config.given(os.environ)
    settings = _on(chosen, settings)
    kind = kind_of(settings.device, settings.threads)
    mailbox: Mailbox[Mail] = Mailbox()
    with ExitStack() as stack:
        refuse_pooled_sessions(settings.dsn)
        records = stack.enter_context(closing(_records(settings, kind, "controller")))
        pulse = stack.enter_context(closing(_records(settings, kind, "heartbeat")))
        link = _link(settings, records)
        settings = replace(
            settings, link_out_bytes_per_s=link.out_bytes_per_s, link_in_bytes_per_s=link.in_bytes_per_s
        )
        regions: GpuRegions | None = None
        gauge: Gauge = NoGauge()
        headroom: Headroom | None = None
        if isinstance(chosen, Gpu):
            regions, gauge, settings = _gpu(chosen, settings, stack, fixed="capacity_bytes" in given)
            headroom = _headroom(settings, kind, shared=regions.handed_over)
        ledger = stack.enter_context(_ledger(settings))
        if isinstance(chosen, Emulated):
            link = _borne_out(ledger, link, records)
        forks = stack.enter_context(closing(_fork_server(chosen, settings)))
        service, learner = _service(settings, forks), _learner(settings, forks)
        for part in (service, learner):
            stack.callback(part.stop)
        patience = Patience()
        planner = ThinkingPlanner(
            PolicyPlanner(link=link, policy=settings.policy, heed=patience.heed, host_bytes=settings.host_pool_bytes),
            mailbox.post,
            patience,
        )
        stack.callback(planner.close)
        trainers = Trainers(
            forks=forks,
            module=TRAINER,
            device_fd=ledger.fd,
            grace_s=settings.stop_grace_s,
            wake=mailbox,
            regions=regions,
        )
        controller = Controller(
            pool=_pool(settings),
            planner=planner,
            records=records,
            trainers=trainers,
            memory=DeviceMemory(ledger, kind=kind, gauge=gauge, headroom=headroom),
            mailbox=mailbox,
            service=_Both(service, learner),
            poll_s=settings.poll_s,
            answer_s=settings.answer_s,
        )
        heartbeat = Heartbeat(
            pulse=pulse,
            beat_s=settings.beat_s,
            lease_s=settings.lease_s,
            held=controller.held,
            tell=mailbox.post,
            stop_trainers=trainers.kill_all,
        )
        stack.callback(heartbeat.close)
        listener = ListenerThread(Listener(settings.dsn, application_name="tensile listener"), mailbox.post)
        stack.callback(listener.close)
        _keep_house(settings, stack)
        stack.callback(trainers.close)  # before all else: nothing may run that nobody looks after
        _listen_to_signals(mailbox, chosen, settings.capacity_bytes)
        controller.run(heartbeat)
    log.info("stopped")


def _fork_server(chosen: Chosen, settings: Settings) -> ForkServer:
    """The process that trainers and services are forked from."""
    environment = _environment(settings)
    # Without the shim tensors are in the ordinary memory of each trainer, and the ledger counts them.
    ordinary = not isinstance(chosen, Gpu) and not settings.share_memory
    return ForkServer(environment if ordinary else preloading(environment), _modules(settings))


def _listen_to_signals(mailbox: Mailbox[Mail], chosen: Chosen, capacity_bytes: int) -> None:
    """SIGTERM and SIGINT stop the controller, SIGHUP reads the budget again."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: mailbox.post(Stop()))
    signal.signal(signal.SIGHUP, lambda *_: _reload_budget(mailbox, chosen, capacity_bytes))


def _keep_house(settings: Settings, stack: ExitStack) -> None:
    """Tidy up once a minute, for as long as the stack stands."""
    chores = stack.enter_context(closing(CatalogChores(settings.dsn)))
    tidying = steps(
        chores,
        state_directory=Path(settings.state_dir),
        host=socket.gethostname(),
        log_bytes=settings.log_bytes,
        log_files=settings.log_files,
    )
    stack.enter_context(closing(Housekeeping(tidying)))


def _gpu(gpu: Gpu, settings: Settings, stack: ExitStack, *, fixed: bool) -> tuple[GpuRegions, Gauge, Settings]:
    """A GPU's regions, what its driver says of it for as long as the stack stands, and the settings that came of it.

    Where the capacity is not `fixed`, the regions are as many as the device really gives.
    """
    nvml = Nvml.start()
    mps = Mps.serving(os.environ)
    if settings.mps and mps is None:
        raise DeviceError(
            f"mps ({config.variable('mps')}) is on, and no daemon of NVIDIA's MPS answers",
            hint="Start the controller by tensile up --mps, or its daemon before it (-d), or turn mps off.",
        )
    log.info("jobs %s", "compute beside each other, by MPS" if mps else "take turns on the device: there is no MPS")
    shared, capacity_bytes = broker(
        gpu,
        region_bytes=settings.region_bytes,
        capacity_bytes=settings.capacity_bytes,
        least_bytes=settings.capacity_bytes if fixed else settings.region_bytes,
        shares=settings.share_memory,
        mapper=_worker("mapping"),
    )
    settings = replace(
        settings, capacity_bytes=capacity_bytes, budget_bytes=min(settings.budget_bytes, capacity_bytes)
    )
    gauge: Gauge = NoGauge()
    if isinstance(nvml, Nvml):
        made_bytes = None if shared is None else capacity_bytes
        gauge = GpuGauge(stack.enter_context(nvml), gpu.uuid, regions_bytes=made_bytes)
    return GpuRegions(gpu, nvml, shared, mps), gauge, settings


def _headroom(settings: Settings, kind: str, *, shared: bool) -> Headroom:
    """Follows what the device has room for, and keeps what a trainer is measured to take."""
    kept = KeptFootprints(Path(settings.state_dir))
    limits = Limits(
        budget_bytes=settings.budget_bytes,
        capacity_bytes=settings.capacity_bytes,
        region_bytes=settings.region_bytes,
        max_jobs=settings.max_jobs,
        shared=shared,
    )
    return Headroom(limits, kept.read(kind), partial(kept.keep, kind))


def _fitted(gpu: Gpu, settings: Settings, given: frozenset[str]) -> Settings:
    """The settings for a GPU by what it has free now, as far as its driver tells."""
    free_bytes, nvml = None, Nvml.start()
    if isinstance(nvml, Nvml):
        with nvml, suppress(DeviceError):
            reading = nvml.read(gpu.uuid)
            free_bytes = reading.total_bytes - reading.used_bytes
    footprint_bytes = KeptFootprints(Path(settings.state_dir)).read(kind_of(named(gpu), settings.threads))
    return fitted(settings, gpu, given, free_bytes=free_bytes, footprint_bytes=footprint_bytes)


def _choose(settings: Settings) -> Chosen:
    """The device to run on, said once in the log. Raises DeviceError where the one that is set cannot be had."""
    asked = settings.device not in (CPU, EMULATED)
    found = probe() if asked else NoGpu(why=Absence.NO_DEVICE, reason="", hint="")
    chosen = choose(settings.device, found, torch_cuda(), torch_architectures)
    match chosen:
        case Gpu():
            log.info("the device is %s with %d bytes", chosen.name, chosen.memory_bytes)
        case Emulated():
            log.info("the device is emulated: %s", chosen.reason)
        case Cpu() if isinstance(found, Gpus) or found.is_fault:
            log.warning("the device is this machine's %s: %s. %s", processor(), chosen.reason, chosen.hint)
        case Cpu():
            log.info("the device is this machine's %s: %s", processor(), chosen.reason)
    return chosen


def _on(chosen: Chosen, settings: Settings) -> Settings:
    """The settings for that device, which every process of this controller gets."""
    given = config.given(os.environ)
    match chosen:
        case Gpu():
            settings = with_pinned_pool(_fitted(chosen, settings, given), given)
        case Cpu():
            settings = share_of_machine(settings, given)
        case Emulated():
            settings = within_machine(settings)
    return replace(settings, device=named(chosen), torch_threads=settings.threads)


def _swap(settings: Settings) -> tuple[Copying, ...]:
    """The disk beyond the links, as it is measured in a directory that is there from now on. Raises DeviceError."""
    place = Path(settings.swap_directory)
    try:
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise DeviceError(
            f"swap_directory ({config.variable('swap_directory')}) {place} cannot be made: {error.strerror}",
            hint="Name a directory on a disk that the controller may write to.",
        ) from error
    if is_in_memory(settings.swap_directory):
        log.warning("swap_directory %s is in memory: what is swapped there saves none. Name one on a disk.", place)
    log.info(
        "jobs have %d bytes of memory, %d threads each, and swap to %s, at most %d bytes",
        settings.budget_bytes,
        settings.threads,
        place,
        settings.host_pool_bytes,
    )
    return measure_cpu(settings.swap_directory)


def _link(settings: Settings, records: CatalogRecords) -> Link:
    """The link of a GPU or to a disk as it is measured, where no rate is set, or the one that is emulated."""
    environment = _environment(settings)
    if settings.device == EMULATED:
        link = emulated_link(settings, records.pace, lambda: measure_apart(_worker("pace"), environment))
    else:  # a disk, or a GPU's link, is as fast as it is, whatever rate is set
        host = settings.device == CPU
        copies = _swap(settings) if host else measured_copies(settings.device, _worker("link"), environment)
        records.save_links(copies, None)
        link = link_of(copies)
    log.info("the links copy %d bytes/s out and %d in", link.out_bytes_per_s, link.in_bytes_per_s)
    return link


def _borne_out(ledger: Ledger, nominal: Link, records: CatalogRecords) -> Link:
    """An emulated link as plans may count on it; the catalog keeps what was measured."""
    copies = measure_emulated(ledger, nominal)
    records.save_links(copies, nominal)
    link = trusted(link_of(copies), nominal)
    if link is not nominal:
        log.warning("this machine does not keep up with its links, and plans count on less: %s", link)
    return link


def _ledger(settings: Settings) -> Ledger:
    """The account of the device. A GPU's memory is its own: nothing of it is in the ledger's file."""
    has_memory = settings.device in (CPU, EMULATED)
    return Ledger.create(
        settings.capacity_bytes,
        settings.region_bytes,
        settings.link_out_bytes_per_s,
        settings.link_in_bytes_per_s,
        settings.memory_directory if has_memory else None,
        settings.host_pool_bytes,
    )


def _reload_budget(mailbox: Mailbox[Mail], chosen: Chosen, capacity_bytes: int) -> None:
    """Read the settings anew; only the budget may change while the controller runs."""
    try:
        loaded, given = config.load(os.environ), config.given(os.environ)
        if isinstance(chosen, Gpu):  # what is free now is less what this controller has made
            budget_bytes = loaded.budget_bytes if "budget_bytes" in given else capacity_bytes
        else:
            budget_bytes = _on(chosen, loaded).budget_bytes
    except TensileError as error:
        log.error("the settings stay as they are: %s", error.message)  # noqa: TRY400 - one line says it all
        return
    mailbox.post(BudgetChange(budget_bytes=min(budget_bytes, capacity_bytes)))


def _environment(settings: Settings) -> dict[str, str]:
    """What processes are started with: these settings, whatever a file says meanwhile."""
    return {k: v for k, v in os.environ.items() if k != config.CONFIG_VARIABLE} | settings.environment()


def _records(settings: Settings, kind: str, purpose: str) -> CatalogRecords:
    return CatalogRecords(
        settings.dsn,
        application_name=f"tensile {purpose}",
        host=socket.gethostname(),
        pid=os.getpid(),
        device_kind=kind,
        policy=settings.policy,
        lease_s=settings.lease_s,
        interrupted_s=settings.interrupted_s,
        slots=settings.max_jobs,
        entering=_entering_jobs(settings),
        threads=settings.threads,
    )


def _entering_jobs(settings: Settings) -> int:
    return settings.entering_jobs or max(_LEAST_ENTERING, len(os.sched_getaffinity(0)))


def _pool(settings: Settings) -> Pool:
    return Pool(
        budget_bytes=settings.budget_bytes,
        region_bytes=settings.region_bytes,
        host_pool_bytes=settings.host_pool_bytes,
        spare_trainers=settings.spare_trainers,
        max_jobs=settings.max_jobs,
        entering_jobs=_entering_jobs(settings),
        drift_threshold=settings.drift_threshold,
    )


def _modules(settings: Settings) -> tuple[str, ...]:
    """What will be forked for certain."""
    return (SERVICE, TRAINER) if settings.service_directory else (TRAINER,)


def _service(settings: Settings, forks: ForkServer) -> ServiceProcess | NoService:
    if not settings.service_directory:
        log.warning("no service: set %s to where its socket shall be", config.variable("service_directory"))
        return NoService()
    return ServiceProcess(forks=forks, module=SERVICE, grace_s=settings.stop_grace_s)


def _learner(settings: Settings, forks: ForkServer) -> LearnerProcess | NoService:
    if not settings.survey_s or settings.device not in (CPU, EMULATED):  # it measures the processor's operators
        return NoService()
    return LearnerProcess(forks=forks, module=LEARNER)


class _Both:
    """The service and the learner, told the same."""

    def __init__(self, *parts: ServiceProcess | LearnerProcess | NoService) -> None:
        self._parts = parts

    def serve(self, worker: WorkerId | None) -> None:
        """Each serves this worker from now on."""
        for part in self._parts:
            part.serve(worker)

    def attend(self, now_s: float) -> None:
        """Start what is due."""
        for part in self._parts:
            part.attend(now_s)


def _worker(name: str) -> tuple[str, ...]:
    return (sys.executable, "-m", f"indb_tensile.worker.{name}")


if __name__ == "__main__":
    sys.exit(main())
