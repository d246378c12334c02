"""The device that a benchmark runs on, all of which is one job's: emulated, or a GPU.

An emulated one is a machine with its clock slowed down: its link's rates come from the very step that runs on it, so
the step is captured and timed first. On a GPU the device comes first, since all memory that torch takes there comes
from it, and the link is measured. Regions, ledger and addresses are those of a controller's trainer on both. Nothing
here has run on a GPU yet, only on a double of its driver.
"""

import argparse
import os
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from threading import Thread

from indb_tensile.bench.trial import Subject, Trial
from indb_tensile.bench.turnover import scaled, simulated_turnover
from indb_tensile.errors import RequestError
from indb_tensile.executor.backend import EMULATED, choose, region_bytes_of, speed_of, torch_architectures, torch_cuda
from indb_tensile.executor.bandwidth import SIZES_BYTES, measure_copies
from indb_tensile.executor.capture import CapturedStep
from indb_tensile.executor.cuda import CudaBroker, CudaDevice, CudaRegions, Gpu, probe
from indb_tensile.executor.device import REGION_BYTES, EmulatedDevice, Ledger
from indb_tensile.executor.hardware import memory
from indb_tensile.executor.opening import Opened, open_device, torch_device
from indb_tensile.executor.placer import Placer
from indb_tensile.executor.serving import Serving
from indb_tensile.executor.state import HOST
from indb_tensile.scheduler.link import Link, link_of
from indb_tensile.scheduler.machines import MACHINES, REFERENCE, Machine, Pace, latencies, machine, slowed
from indb_tensile.scheduler.peak import LIVENESS, peak, vanilla_peak

UNTHROTTLED = Link(out_bytes_per_s=10**13, in_bytes_per_s=10**13)
_REGIONS = 64  # of what a step needs, at least: so that whole regions are little more than its peak
_LINK_ITERATIONS = 3  # by which a step's pace is told


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """On what is run: `emulated`, standing for a machine, or a GPU as the setting `device` names it.

    With `turnover` (bench/turnover.py) an emulated link is as wide as gives the step that one, not the machine's.
    """

    device: str = EMULATED
    stands_for: Machine = REFERENCE
    turnover: float | None = None

    @property
    def emulated(self) -> bool:
        """Whether no GPU is asked for."""
        return self.device == EMULATED

    @property
    def named(self) -> str:
        """What rows say of it."""
        return self.stands_for.name if self.emulated else self.device


def add_target(parser: argparse.ArgumentParser) -> None:
    """The arguments that `target` reads."""
    parser.add_argument("--device", default=EMULATED, help="emulated, cuda or cuda:N")
    parser.add_argument(
        "--machine", choices=MACHINES, default=REFERENCE.name, help="what an emulated device stands for"
    )


def target(given: argparse.Namespace) -> Target:
    """What was asked for. Raises RequestError for a device of no kind."""
    if re.fullmatch(rf"{EMULATED}|cuda(:\d+)?", given.device) is None:
        raise RequestError(
            f"--device is '{given.device}', which is no device", hint=f"Give {EMULATED}, cuda or cuda:N."
        )
    return Target(device=given.device, stands_for=machine(given.machine))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rig:
    """A captured step, and the device that it was captured for.

    `grant` says how much of the device the job has from now on: empty regions beyond that go back at once.
    """

    step: CapturedStep
    opened: Opened
    link: Link
    grant: Callable[[int], int]
    capacity_bytes: int
    spare_bytes: int | None = (
        None  # beyond its peak, in which a plan may be placed; a sixteenth of the step's without
    )
    launch_ns: int  # of starting one operator

    def reset_high_water(self) -> None:
        """Start new marks at the present use."""
        self.opened.device.reset_high_water()
        if self.opened.serving is not None:
            self.opened.serving.reset_high_water()

    def peak_bytes(self, counted_bytes: int) -> int:
        """The most that was taken since then: what the ledger counted, on a GPU what torch was served."""
        served = self.opened.serving
        if isinstance(self.opened.device, CudaDevice) and served is not None:
            return served.served().high_water_bytes
        return counted_bytes

    def outside_bytes(self) -> int | None:
        """What torch has beside the job's regions, such as cuBLAS's workspace; None where there is no such thing."""
        device = self.opened.device
        return device.outside_bytes() if isinstance(device, CudaDevice) else None

    def placer(self, step: CapturedStep | None = None) -> Placer:
        """Puts this or another step's tensors where plans say; on an emulated device only in a preloaded process."""
        return _placer(self.opened, step or self.step, self.spare_bytes)

    def trial(self, subject: Subject, *, sample_every: int = 1, placer: Placer | None = None) -> Trial:
        """The step with the state that this subject starts with, its tensors at their planned addresses."""
        return Trial(subject, self.step, self.opened, sample_every=sample_every, placer=placer or self.placer())


@contextmanager
def set_up(where: Target, subject: Subject, *, throttled: bool = True) -> Iterator[Rig]:
    """The subject's step on its device. Raises DeviceError where a GPU is asked for and cannot be used.

    Where an emulated link is not throttled, plans are made for it all the same, and are only sooner done.
    """
    with _emulated(where, subject, throttled=throttled) if where.emulated else _gpu(where, subject) as made:
        yield made


@contextmanager
def _emulated(where: Target, subject: Subject, *, throttled: bool) -> Iterator[Rig]:
    step = subject.capture()
    link = slowed_link(subject, step, where.stands_for, _LINK_ITERATIONS)
    if where.turnover is not None:
        link = scaled(link, where.turnover / simulated_turnover(step.graph, where.stands_for))
    capacity_bytes = 2 * vanilla_peak(step.graph)
    region_bytes = max(REGION_BYTES, 1 << ((peak(step.graph, LIVENESS) // _REGIONS).bit_length() - 1))
    with lent(link if throttled else UNTHROTTLED, capacity_bytes, region_bytes) as (opened, grant):
        yield Rig(
            step=step,
            opened=opened,
            link=link,
            grant=grant,
            capacity_bytes=opened.device.usage().granted_bytes,
            launch_ns=speed_of(EMULATED).launch_ns,
        )


@contextmanager
def _gpu(where: Target, subject: Subject) -> Iterator[Rig]:
    """Half of the GPU's memory is ours; torch's own ways, in a process of their own, have the other half."""
    gpu = _chosen(where.device)
    region_bytes = region_bytes_of(gpu)
    count = gpu.memory_bytes // 2 // region_bytes
    name, place = f"cuda:{gpu.ordinal}", torch_device(f"cuda:{gpu.ordinal}")
    host_bytes = memory().size_bytes // 2
    with Ledger.create(count * region_bytes, region_bytes, 1, 1, None, host_bytes) as ledger:
        slot, epoch = ledger.claim_slot(os.getpid())
        ledger.grant(slot, count * region_bytes)
        regions = _handed_over(CudaBroker(gpu.ordinal, region_bytes, count), gpu.ordinal) if gpu.shareable else None
        with open_device(name, (ledger.fd, slot, epoch), host_bytes, regions, place) as opened:
            link = link_of(measure_copies(opened.device, SIZES_BYTES[-1]))
            yield Rig(
                step=subject.capture(opened.torch_device),
                opened=opened,
                link=link,
                grant=partial(ledger.grant, slot),
                capacity_bytes=count * region_bytes,
                spare_bytes=region_bytes,  # as a controller's trainer has it
                launch_ns=speed_of(name).launch_ns,
            )


def _placer(opened: Opened, step: CapturedStep, spare_bytes: int | None = None) -> Placer:
    """Packing is not perfect, and an emulated device's regions are many and small."""
    least_bytes = max(REGION_BYTES, peak(step.graph, LIVENESS) // 16)
    return Placer(opened.serving, region_bytes=least_bytes if spare_bytes is None else spare_bytes)


def _chosen(device: str) -> Gpu:
    """The GPU of that name. Raises DeviceError where it cannot be used."""
    chosen = choose(device, probe(), torch_cuda(), torch_architectures)
    assert isinstance(chosen, Gpu)  # what was not asked for is not chosen
    return chosen


def _handed_over(broker: CudaBroker, ordinal: int) -> CudaRegions:
    """The broker's regions, through a socket as a trainer gets them."""
    here, there = socket.socketpair()
    with here, there:
        sender = Thread(target=broker.send, args=(here.fileno(),))
        sender.start()
        regions = CudaRegions(ordinal, there.fileno())
        sender.join()
    return regions


# --- emulated ------------------------------------------------------------------------------------------------------


@contextmanager
def emulated(link: Link, capacity_bytes: int, host_bytes: int | None = None) -> Iterator[Opened]:
    """A device with such a link, all of which is one job's, and so much host memory, or four times the device's."""
    with lent(link, capacity_bytes, host_bytes=host_bytes) as (opened, _):
        yield opened


@contextmanager
def lent(
    link: Link, capacity_bytes: int, region_bytes: int = REGION_BYTES, host_bytes: int | None = None
) -> Iterator[tuple[Opened, Callable[[int], int]]]:
    """The same, and how much of it the job has from now on."""
    whole_bytes = -(-capacity_bytes // region_bytes) * region_bytes
    with Ledger.create(whole_bytes, region_bytes, link.out_bytes_per_s, link.in_bytes_per_s) as ledger:
        slot, epoch = ledger.claim_slot(1)
        ledger.grant(slot, whole_bytes)
        with EmulatedDevice(ledger.fd, slot, epoch, 4 * whole_bytes if host_bytes is None else host_bytes) as device:
            yield emulated_on(device), partial(ledger.grant, slot)


def emulated_on(device: EmulatedDevice) -> Opened:
    """Such a device, opened for a trial."""
    return Opened(device=device, serving=Serving.of(device.hook_address()), torch_device=HOST)


def slowed_link(subject: Subject, step: CapturedStep, stands_for: Machine, iterations: int) -> Link:
    """The machine's link, slowed down as this very step is slower here than there by its roofline.

    The fastest of the iterations counts: others may be using the processor, and rows of one run have one link.
    """
    with emulated(UNTHROTTLED, 2 * vanilla_peak(step.graph)) as opened:
        trial = Trial(subject, step, opened, placer=_placer(opened, step))
        trial.run(LIVENESS, 1)
        here_ns = min(trial.measured().iteration_ns for _ in range(iterations))
        trial.runner.close()
    return slowed(stands_for, Pace(here_ns=here_ns, there_ns=sum(latencies(step.graph, stands_for))))
