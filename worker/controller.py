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
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from indb_tensile import config, settings_loader
from indb_tensile._native import Passages
from indb_tensile.catalog.device_contention import contention_of
from indb_tensile.catalog.notify import SEARCH, Listener, Notification
from indb_tensile.catalog.pooling import refuse_pooled_sessions
from indb_tensile.config import Settings
from indb_tensile.controller.background_planner import BackgroundPlanner, ImprovementCancellation
from indb_tensile.controller.controller_loop import Controller, Mail
from indb_tensile.controller.device_ledger import DeviceMemory
from indb_tensile.controller.device_room import Headroom, RoomLimits
from indb_tensile.controller.fork_client import ForkServer
from indb_tensile.controller.garbage_collection import leave_modules_out
from indb_tensile.controller.gpu_regions import GpuRegions, broker
from indb_tensile.controller.heartbeat import Heartbeat
from indb_tensile.controller.housekeeping import CatalogSteps, Housekeeping, steps
from indb_tensile.controller.link_rates import emulated_link, measure_apart, measured_copies, measuring_exit_code
from indb_tensile.controller.listener import ListenerThread
from indb_tensile.controller.load_gauge import Gauge, GpuGauge, NoGauge
from indb_tensile.controller.mailbox import Mailbox
from indb_tensile.controller.mps import Mps
from indb_tensile.controller.policy_planner import PolicyPlanner
from indb_tensile.controller.records import CatalogRecords
from indb_tensile.controller.round_conditions import boundary_ns, runs_rounds
from indb_tensile.controller.round_players import RoundPlayers
from indb_tensile.controller.shared_regions import SharedRegions
from indb_tensile.controller.trainers import Trainers
from indb_tensile.device.allocator_shim import preload_environment
from indb_tensile.device.backend import (
    CPU,
    EMULATED,
    Chosen,
    Cpu,
    Emulated,
    choose,
    fit_to_gpu,
    is_emulated,
    kind_of,
    named,
    refuse_network,
    torch_architectures,
    torch_cuda,
    uploads_ahead,
)
from indb_tensile.device.bandwidth import measure_cpu, measure_emulated
from indb_tensile.device.cuda import Absence, Gpu, Gpus, NoGpu, probe
from indb_tensile.device.hardware import (
    cores,
    is_in_memory,
    processor,
    share_of_machine,
    with_pinned_pool,
    within_machine,
)
from indb_tensile.device.ledger import Ledger
from indb_tensile.device.nvml import Nvml
from indb_tensile.device.trainer_footprint import FootprintFile
from indb_tensile.device.waiting_threads import with_short_waits
from indb_tensile.errors import DeviceError, TensileError
from indb_tensile.log import start_log
from indb_tensile.scheduler.admission.events import BudgetChange, Stop
from indb_tensile.scheduler.admission.overheads import Overheads
from indb_tensile.scheduler.admission.pool import Pool, Sharing
from indb_tensile.scheduler.completion.contention import Contention, of_cores
from indb_tensile.scheduler.link import CopyMeasurement, Link, link_of, nominal_or_measured
from indb_tensile.scheduler.memory.next_batch import BATCH_NAMES

from .companions import SERVICE, Companions
from .start_patience import sentences, with_patience

TRAINER = "indb_tensile.worker.trainer"

# Two jobs on one GPU are assumed to slow each other down by half until they have been measured side by side: a guess
# between no slowdown and turns, so that a first pair is tried.
_GPU_CONTENTION = ((1, 1.0), (2, 1.5))
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
    chosen = _choose_device(settings)
    refuse_network(settings, chosen)
    set_names = settings_loader.configured_names(os.environ)
    device_name = settings.device if isinstance(chosen, Emulated) else named(chosen)
    settings = _settings_for(chosen, settings)
    kind = kind_of(settings.device, settings.threads)
    mailbox: Mailbox[Mail] = Mailbox()
    with ExitStack() as stack:
        stack.callback(mailbox.close)  # called last on exit, after the threads that post have ended
        refuse_pooled_sessions(settings.dsn)
        records = stack.enter_context(closing(_connect_catalog(settings, kind, device_name, "controller")))
        pulse = stack.enter_context(closing(_connect_catalog(settings, kind, device_name, "heartbeat")))
        link = _measure_link(settings, records)
        contention = _contention(settings, records)  # before this process takes the device's memory
        settings = replace(
            settings, link_out_bytes_per_s=link.out_bytes_per_s, link_in_bytes_per_s=link.in_bytes_per_s
        )
        regions: GpuRegions | None = None
        shared: SharedRegions | None = None
        gauge: Gauge = NoGauge()
        headroom: Headroom | None = None
        if isinstance(chosen, Gpu):
            fixed = "capacity_bytes" in set_names
            regions, shared, gauge, settings = _prepare_gpu(chosen, settings, stack, fixed=fixed)
            headroom = _make_headroom(settings, kind, shared=shared is not None, fixed=fixed)
        ledger = stack.enter_context(_create_ledger(settings))
        if isinstance(chosen, Emulated):
            link = _measure_emulated_link(ledger, link, records)
        forks = stack.enter_context(closing(_fork_server(chosen, settings)))
        companions = Companions(settings, forks, records)
        stack.callback(companions.stop)
        planner = stack.enter_context(closing(_make_planner(settings, link, mailbox)))
        trainers = Trainers(
            forks=forks,
            module=TRAINER,
            device_fd=ledger.fd,
            grace_s=settings.stop_grace_s,
            wake=mailbox,
            regions=regions,
        )
        controller = Controller(
            pool=_make_pool(settings, contention, records.overheads(), link, shared=shared is not None),
            planner=planner,
            records=records,
            trainers=trainers,
            memory=DeviceMemory(ledger, kind=kind, gauge=gauge, headroom=headroom, regions=shared),
            rounds=RoundPlayers(Passages(ledger.fd)),
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
        notifications = Listener(settings.dsn, application_name="tensile listener")
        stack.callback(ListenerThread(notifications, partial(_pass_on, mailbox, companions)).close)
        _start_housekeeping(settings, stack, companions)
        stack.callback(trainers.close)  # called first on exit: no trainer may run without a controller
        _listen_to_signals(mailbox, chosen, settings.capacity_bytes)
        leave_modules_out()
        controller.run(heartbeat)
    log.info("stopped")


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
    environment = _environment(settings)
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


def _prepare_gpu(
    gpu: Gpu, settings: Settings, stack: ExitStack, *, fixed: bool
) -> tuple[GpuRegions, SharedRegions | None, Gauge, Settings]:
    """Prepare a GPU.

    Returns its regions, those that the controller has made for all trainers, a gauge of its load, and the adjusted
    settings. The regions and the gauge end with the stack.

    If the capacity is not `fixed` by a setting, there are as many regions as the device really gives.
    """
    nvml = Nvml.start()
    mps = Mps.serving(os.environ)
    if settings.mps and mps is None:
        raise DeviceError(
            f"mps ({config.variable('mps')}) is on, but no daemon of NVIDIA's MPS answers",
            hint="Use tensile up --mps, start the daemon (nvidia-cuda-mps-control -d) first, or turn mps off.",
        )
    log.info("jobs %s", "run at the same time, by MPS" if mps else "share the device by time slices, without MPS")
    made, capacity_bytes = broker(
        gpu,
        region_bytes=settings.region_bytes,
        capacity_bytes=settings.capacity_bytes,
        least_bytes=settings.capacity_bytes if fixed else settings.region_bytes,
        shares=settings.share_memory,
        mapper=_worker_command("probe_sharing"),
    )
    settings = replace(
        settings, capacity_bytes=capacity_bytes, budget_bytes=min(settings.budget_bytes, capacity_bytes)
    )
    shared = None if made is None else stack.enter_context(closing(SharedRegions(made, settings.region_bytes)))
    gauge: Gauge = NoGauge()
    if isinstance(nvml, Nvml):
        gauge = GpuGauge(stack.enter_context(nvml), gpu.uuid, regions=shared)
    return GpuRegions(gpu, nvml, shared, mps), shared, gauge, settings


def _make_headroom(settings: Settings, kind: str, *, shared: bool, fixed: bool) -> Headroom:
    """Return the object that follows the room on the device and stores measured footprints of trainers."""
    footprints = FootprintFile(Path(settings.state_dir))
    limits = RoomLimits(
        budget_bytes=settings.budget_bytes,
        capacity_bytes=settings.capacity_bytes,
        region_bytes=settings.region_bytes,
        max_jobs=settings.max_jobs,
        shared=shared,
        fixed=fixed,
    )
    return Headroom(limits, footprints.read(kind), partial(footprints.keep, kind))


def _fit_to_free_memory(gpu: Gpu, settings: Settings, set_names: frozenset[str]) -> Settings:
    """Return the settings adjusted to the memory that is free on a GPU now, if its driver reports that."""
    free_bytes, nvml = None, Nvml.start()
    if isinstance(nvml, Nvml):
        with nvml, suppress(DeviceError):
            reading = nvml.read(gpu.uuid)
            free_bytes = reading.total_bytes - reading.used_bytes
    footprint_bytes = FootprintFile(Path(settings.state_dir)).read(kind_of(named(gpu), settings.threads))
    return fit_to_gpu(settings, gpu, set_names, free_bytes=free_bytes, footprint_bytes=footprint_bytes)


def _choose_device(settings: Settings) -> Chosen:
    """Choose the device and log the choice. Raises DeviceError if the configured device is not available."""
    probed = settings.device != CPU and not is_emulated(settings.device)
    gpus = probe() if probed else NoGpu(why=Absence.NO_DEVICE, reason="", hint="")
    chosen = choose(settings.device, gpus, torch_cuda(), torch_architectures)
    match chosen:
        case Gpu():
            log.info("the device is %s with %d bytes", chosen.name, chosen.memory_bytes)
        case Emulated():
            log.info("the device is emulated: %s", chosen.reason)
        case Cpu() if isinstance(gpus, Gpus) or gpus.is_fault:
            log.warning("the device is this machine's %s: %s. %s", processor(), chosen.reason, chosen.hint)
        case Cpu():
            log.info("the device is this machine's %s: %s", processor(), chosen.reason)
    return chosen


def _settings_for(chosen: Chosen, settings: Settings) -> Settings:
    """Return the settings adjusted to the device. Every process of this controller gets them."""
    set_names = settings_loader.configured_names(os.environ)
    match chosen:
        case Gpu():
            settings = with_pinned_pool(_fit_to_free_memory(chosen, settings, set_names), set_names)
        case Cpu():
            settings = share_of_machine(settings, set_names)
        case Emulated():
            settings = within_machine(settings)
    return replace(settings, device=named(chosen), torch_threads=settings.threads)


def _measure_swap(settings: Settings) -> tuple[CopyMeasurement, ...]:
    """Create the swap directory if it is missing and measure copies to its disk. Raises DeviceError."""
    directory = Path(settings.swap_directory)
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise DeviceError(
            f"swap_directory ({config.variable('swap_directory')}) {directory} cannot be created: {error.strerror}",
            hint="Name a directory on a disk that the controller may write to.",
        ) from error
    if is_in_memory(settings.swap_directory):
        log.warning(
            "swap_directory %s is in memory, so swapping to it saves no memory. Name a directory on a disk.",
            directory,
        )
    log.info(
        "jobs have %d bytes of memory, %d threads each, and swap to %s, at most %d bytes",
        settings.budget_bytes,
        settings.threads,
        directory,
        settings.host_pool_bytes,
    )
    return measure_cpu(settings.swap_directory)


def _measure_link(settings: Settings, records: CatalogRecords) -> Link:
    """Return the rates of the link: measured for a GPU or a disk, set or derived for an emulated device."""
    environment = _environment(settings)
    if settings.device == EMULATED:
        link = emulated_link(
            settings, records.pace, lambda: measure_apart(_worker_command("measure_pace"), environment)
        )
    else:  # a disk or a GPU's link is measured, whatever rates are set
        host = settings.device == CPU
        copies = (
            _measure_swap(settings)
            if host
            else measured_copies(settings.device, _worker_command("measure_link"), environment)
        )
        records.save_links(copies, None)
        link = link_of(copies)
    log.info("the links copy %d bytes/s out and %d in", link.out_bytes_per_s, link.in_bytes_per_s)
    return link


def _measure_emulated_link(ledger: Ledger, nominal: Link, records: CatalogRecords) -> Link:
    """Measure an emulated link and return the rates that plans may rely on. The catalog stores the measurements."""
    copies = measure_emulated(ledger, nominal)
    records.save_links(copies, nominal)
    link = nominal_or_measured(link_of(copies), nominal)
    if link is not nominal:
        log.warning("this machine is slower than the emulated link, and plans use the measured rates: %s", link)
    return link


def _create_ledger(settings: Settings) -> Ledger:
    """Create the device's ledger. The memory of a GPU is not in the ledger's file."""
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
    """Read the settings again. Only the budget may change while the controller runs."""
    try:
        loaded, set_names = settings_loader.load(os.environ), settings_loader.configured_names(os.environ)
        if isinstance(chosen, Gpu):  # the free memory no longer includes the regions that this controller has made
            budget_bytes = loaded.budget_bytes if "budget_bytes" in set_names else capacity_bytes
        else:
            budget_bytes = _settings_for(chosen, loaded).budget_bytes
    except TensileError as error:
        log.error("the settings are not changed: %s", error.message)  # noqa: TRY400 - no traceback needed
        return
    mailbox.post(BudgetChange(budget_bytes=min(budget_bytes, capacity_bytes)))


def _environment(settings: Settings) -> dict[str, str]:
    """Return the environment of started processes: the current settings, even if the settings file changes later.

    Threads wait in them as in trainers, so that what they measure holds for trainers.
    """
    kept = {k: v for k, v in os.environ.items() if k != config.CONFIG_VARIABLE}
    return with_short_waits(kept | settings.environment())


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


def _make_pool(settings: Settings, contention: Contention, overheads: Overheads, link: Link, *, shared: bool) -> Pool:
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
        link=link,
        contention=contention,
        overheads=overheads,
        phases=runs_rounds(settings, shared=shared),
        phases_ns=round(settings.phases_s * 1e9),
    )


def _contention(settings: Settings, records: CatalogRecords) -> Contention:
    """Return by how much jobs slow each other down, until running jobs have corrected it.

    It is measured when a kind of device is first used. If that fails, or no time was set for it, it is assumed.
    """
    measured = records.contention()
    if not measured and settings.survey_s > 0:
        if measuring_exit_code(_worker_command("measure_contention"), _environment(settings)):
            log.warning("by how much jobs slow each other down is assumed, because it could not be measured")
        measured = records.contention()
    on_gpu = settings.device.startswith("cuda")
    if measured:
        return contention_of(measured, 1 if on_gpu else min(cores(), settings.threads))
    return Contention(points=_GPU_CONTENTION) if on_gpu else of_cores(cores(), settings.threads)


def _modules(settings: Settings) -> tuple[str, ...]:
    """Return the modules that are certain to be forked."""
    return (SERVICE, TRAINER) if settings.has_service else (TRAINER,)


def _worker_command(name: str) -> tuple[str, ...]:
    return (sys.executable, "-m", f"indb_tensile.worker.{name}")


if __name__ == "__main__":
    sys.exit(main())
