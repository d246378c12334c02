"""Chooses the device of a controller, measures what plans need to know of it, and takes its memory."""

import logging
import os
import sys
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from indb_tensile import config, settings_loader
from indb_tensile.catalog.device_contention import contention_of, numbers_to_measure
from indb_tensile.config import Settings
from indb_tensile.controller.device_ledger import DeviceMemory
from indb_tensile.controller.device_room import Headroom, RoomLimits
from indb_tensile.controller.gpu_regions import GpuRegions, broker
from indb_tensile.controller.link_rates import emulated_link, measure_apart, measured_copies, measuring_exit_code
from indb_tensile.controller.load_gauge import Gauge, GpuGauge, NoGauge
from indb_tensile.controller.mps import Mps
from indb_tensile.controller.records import CatalogRecords
from indb_tensile.controller.shared_regions import SharedRegions
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
    torch_architectures,
    torch_cuda,
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
from indb_tensile.errors import DeviceError
from indb_tensile.scheduler.completion.contention import Contention, of_cores
from indb_tensile.scheduler.link import CopyMeasurement, Link, link_of, nominal_or_measured

# Two jobs on one GPU are assumed to slow each other down by half until they have been measured side by side: a guess
# between no slowdown and turns, so that a first pair is tried.
_GPU_CONTENTION = ((1, 1.0), (2, 1.5))

log = logging.getLogger("controller")


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenDevice:
    """A device whose memory the controller has taken, with the settings that follow from it.

    `contention_pending` says that the contention is to be measured while no job runs. `regions` hand out a GPU's
    memory, `shared` are those of them that all trainers share, and `headroom` follows the room that other programs
    leave. They are None for another device.
    """

    settings: Settings
    kind: str
    link: Link
    contention: Contention
    contention_pending: bool
    ledger: Ledger
    gauge: Gauge
    regions: GpuRegions | None = None
    shared: SharedRegions | None = None
    headroom: Headroom | None = None

    def memory(self) -> DeviceMemory:
        """Return the memory as the controller's loop grants it."""
        return DeviceMemory(
            self.ledger, kind=self.kind, gauge=self.gauge, headroom=self.headroom, regions=self.shared
        )


def take_device(
    chosen: Chosen, settings: Settings, records: CatalogRecords, stack: ExitStack, *, fixed: bool
) -> TakenDevice:
    """Measure the device and take its memory until the stack ends. `fixed`: a setting gives the capacity."""
    kind = kind_of(settings.device, settings.threads)
    link = _measure_link(settings, records)
    contention, pending = first_contention(settings, records)  # before this process takes the device's memory
    settings = replace(settings, link_out_bytes_per_s=link.out_bytes_per_s, link_in_bytes_per_s=link.in_bytes_per_s)
    regions: GpuRegions | None = None
    shared: SharedRegions | None = None
    gauge: Gauge = NoGauge()
    headroom: Headroom | None = None
    if isinstance(chosen, Gpu):
        regions, shared, gauge, settings = _prepare_gpu(chosen, settings, stack, fixed=fixed)
        headroom = _make_headroom(settings, kind, shared=shared is not None, fixed=fixed)
    ledger = stack.enter_context(_create_ledger(settings))
    if isinstance(chosen, Emulated):
        link = _measure_emulated_link(ledger, link, records)
    return TakenDevice(
        settings=settings,
        kind=kind,
        link=link,
        contention=contention,
        contention_pending=pending,
        ledger=ledger,
        gauge=gauge,
        regions=regions,
        shared=shared,
        headroom=headroom,
    )


def choose_device(settings: Settings) -> Chosen:
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


def settings_for(chosen: Chosen, settings: Settings) -> Settings:
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


def _fit_to_free_memory(gpu: Gpu, settings: Settings, set_names: frozenset[str]) -> Settings:
    """Return the settings adjusted to the memory that is free on a GPU now, if its driver reports that."""
    free_bytes, nvml = None, Nvml.start()
    if isinstance(nvml, Nvml):
        with nvml, suppress(DeviceError):
            reading = nvml.read(gpu.uuid)
            free_bytes = reading.total_bytes - reading.used_bytes
    footprint_bytes = FootprintFile(Path(settings.state_dir)).read(kind_of(named(gpu), settings.threads))
    return fit_to_gpu(settings, gpu, set_names, free_bytes=free_bytes, footprint_bytes=footprint_bytes)


def _measure_link(settings: Settings, records: CatalogRecords) -> Link:
    """Return the rates of the link: measured for a GPU or a disk, set or derived for an emulated device."""
    environment = child_environment(settings)
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


def _measure_emulated_link(ledger: Ledger, nominal: Link, records: CatalogRecords) -> Link:
    """Measure an emulated link and return the rates that plans may rely on. The catalog stores the measurements."""
    copies = measure_emulated(ledger, nominal)
    records.save_links(copies, nominal)
    link = nominal_or_measured(link_of(copies), nominal)
    if link is not nominal:
        log.warning("this machine is slower than the emulated link, and plans use the measured rates: %s", link)
    return link


def known_contention(settings: Settings, records: CatalogRecords) -> tuple[Contention, bool]:
    """Return by how much jobs slow each other down, and whether all of it was measured.

    What was not measured is estimated: from the number of cores, or as some value for a GPU. Where jobs compute on
    processors, the contention has the number of cores that they share.
    """
    measured = records.contention()
    numbers = {row.jobs for row in measured}
    complete = numbers.issuperset(numbers_to_measure(settings.max_jobs))
    if _is_gpu(settings):
        return contention_of(measured) if numbers - {1} else Contention(points=_GPU_CONTENTION), complete
    threads = min(cores(), settings.threads)
    contention = contention_of(measured, threads) if numbers - {1} else of_cores(cores(), settings.threads)
    return replace(contention, cores=cores()), complete


def first_contention(settings: Settings, records: CatalogRecords) -> tuple[Contention, bool]:
    """Return the contention that decisions begin with, and whether it is to be measured while no job runs.

    That of a GPU is measured now, if this kind was never measured, because the controller takes its memory next. That
    of processors is measured while no job runs (controller/contention_process.py).
    """
    known, complete = known_contention(settings, records)
    if complete or not settings.survey_s:
        return known, False
    if not _is_gpu(settings):
        log.info("how much jobs slow each other down is estimated, until it is measured while no job runs")
        return known, True
    if measuring_exit_code(_worker_command("measure_contention"), child_environment(settings)):
        log.warning("how much jobs slow each other down is assumed, because it could not be measured")
    return known_contention(settings, records)[0], False


def _is_gpu(settings: Settings) -> bool:
    return settings.device.startswith("cuda")


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


def child_environment(settings: Settings) -> dict[str, str]:
    """Return the environment of started processes: the current settings, even if the settings file changes later.

    Threads wait in them as in trainers, so that what they measure holds for trainers.
    """
    kept = {k: v for k, v in os.environ.items() if k != config.CONFIG_VARIABLE}
    return with_short_waits(kept | settings.environment())


def _worker_command(name: str) -> tuple[str, ...]:
    return (sys.executable, "-m", f"indb_tensile.worker.{name}")
