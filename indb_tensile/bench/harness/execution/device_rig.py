"""Sets up the device that a benchmark runs on, all of which belongs to one job: emulated, or a GPU.

An emulated device stands for a machine that is slowed down until the step takes as long as it takes here. The rates
of its link are the machine's, divided by the same factor, so the step is captured and timed first. On a GPU the
device is opened first, since all memory that torch takes there comes from it, and the link is measured. Regions,
ledger and addresses are those of a controller's trainer on both. docs/user/gpu.md says what has run on a real GPU;
the tests use a double of its driver.
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

from indb_tensile.bench.harness.execution.trial import StepTrial, TrainingSubject
from indb_tensile.bench.harness.execution.turnover import scaled, simulated_turnover
from indb_tensile.device.allocator_shim import ArenaServing
from indb_tensile.device.backend import EMULATED, choose, region_bytes_of, speed_of, torch_architectures, torch_cuda
from indb_tensile.device.bandwidth import SIZES_BYTES, measure_copies
from indb_tensile.device.cuda import CudaBroker, CudaDevice, CudaRegions, Gpu, probe
from indb_tensile.device.device import REGION_BYTES, EmulatedDevice
from indb_tensile.device.hardware import memory
from indb_tensile.device.ledger import Ledger
from indb_tensile.errors import RequestError
from indb_tensile.executor.capture.step_capture import CapturedStep
from indb_tensile.executor.run.open_device import OpenDevice, open_device, torch_device
from indb_tensile.executor.run.placer import Placer
from indb_tensile.executor.run.state import HOST
from indb_tensile.scheduler.link import Link, link_of
from indb_tensile.scheduler.memory.peak import LIVENESS, peak, vanilla_peak
from indb_tensile.scheduler.timing.machines import MACHINES, REFERENCE, Machine, StepTimes, latencies, machine, slowed

UNTHROTTLED = Link(out_bytes_per_s=10**13, in_bytes_per_s=10**13)
_REGIONS = 64  # least number of regions for a step, so that whole regions exceed its peak by little
_LINK_ITERATIONS = 3  # iterations that measure a step's pace


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTarget:
    """The device to run on: `emulated`, which stands for a machine, or a GPU as the setting `device` names it.

    With `turnover` (bench/harness/execution/turnover.py) an emulated link has the bandwidth at which the step has
    that turnover, not the machine's.
    """

    device: str = EMULATED
    stands_for: Machine = REFERENCE
    turnover: float | None = None

    @property
    def emulated(self) -> bool:
        """Return whether the device is emulated."""
        return self.device == EMULATED

    @property
    def named(self) -> str:
        """Return the device's name in rows."""
        return self.stands_for.name if self.emulated else self.device


def add_target(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that `target` reads."""
    parser.add_argument("--device", default=EMULATED, help="emulated, cuda or cuda:N")
    parser.add_argument(
        "--machine", choices=MACHINES, default=REFERENCE.name, help="machine that an emulated device stands for"
    )


def target(options: argparse.Namespace) -> RunTarget:
    """Return the target from the arguments. Raises RequestError for an unknown device."""
    if re.fullmatch(rf"{EMULATED}|cuda(:\d+)?", options.device) is None:
        raise RequestError(
            f"--device is '{options.device}', which is no device", hint=f"Give {EMULATED}, cuda or cuda:N."
        )
    return RunTarget(device=options.device, stands_for=machine(options.machine))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRig:
    """A captured step, and the device that it was captured for.

    `grant` sets the bytes of the device that the job may use from now on. Empty regions beyond them are returned at
    once.
    """

    step: CapturedStep
    opened: OpenDevice
    link: Link
    grant: Callable[[int], int]
    capacity_bytes: int
    # Bytes beyond its peak within which a plan may be placed; None: a sixteenth of the step's peak.
    spare_bytes: int | None = None
    launch_ns: int  # time in which the host launches one operator

    def reset_high_water(self) -> None:
        """Reset the high-water marks to the present use."""
        self.opened.device.reset_high_water()
        if self.opened.serving is not None:
            self.opened.serving.reset_high_water()

    def peak_bytes(self, counted_bytes: int) -> int:
        """Return the peak since `reset_high_water`.

        On a GPU that is the peak of the memory that the arena gave to torch's tensors, otherwise `counted_bytes`, the
        peak in the device's ledger.
        """
        served = self.opened.serving
        if isinstance(self.opened.device, CudaDevice) and served is not None:
            return served.served().high_water_bytes
        return counted_bytes

    def outside_bytes(self) -> int | None:
        """Return the bytes that torch has beside the job's regions, such as cuBLAS's workspace; None if not a GPU."""
        device = self.opened.device
        return device.outside_bytes() if isinstance(device, CudaDevice) else None

    def placer(self, step: CapturedStep | None = None) -> Placer:
        """Return a placer for this or another step. On an emulated device it needs a preloaded process."""
        return _placer(self.opened, step or self.step, self.spare_bytes)

    def trial(self, subject: TrainingSubject, *, sample_every: int = 1, placer: Placer | None = None) -> StepTrial:
        """Return the step with the subject's initial state, its tensors at their planned addresses."""
        return StepTrial(subject, self.step, self.opened, sample_every=sample_every, placer=placer or self.placer())


@contextmanager
def set_up(selected: RunTarget, subject: TrainingSubject, *, throttled: bool = True) -> Iterator[DeviceRig]:
    """Yield the subject's step on its device. Raises DeviceError if a GPU is requested and cannot be used.

    Without throttling an emulated link copies at full speed, but plans are still made for its rates.
    """
    with _emulated(selected, subject, throttled=throttled) if selected.emulated else _gpu(selected, subject) as rig:
        yield rig


@contextmanager
def _emulated(selected: RunTarget, subject: TrainingSubject, *, throttled: bool) -> Iterator[DeviceRig]:
    step = subject.capture()
    link = slowed_link(subject, step, selected.stands_for, _LINK_ITERATIONS)
    if selected.turnover is not None:
        link = scaled(link, selected.turnover / simulated_turnover(step.graph, selected.stands_for))
    capacity_bytes = 2 * vanilla_peak(step.graph)
    region_bytes = max(REGION_BYTES, 1 << ((peak(step.graph, LIVENESS) // _REGIONS).bit_length() - 1))
    with emulated_with_grant(link if throttled else UNTHROTTLED, capacity_bytes, region_bytes) as (opened, grant):
        yield DeviceRig(
            step=step,
            opened=opened,
            link=link,
            grant=grant,
            capacity_bytes=opened.device.usage().granted_bytes,
            launch_ns=speed_of(EMULATED).launch_ns,
        )


@contextmanager
def _gpu(selected: RunTarget, subject: TrainingSubject) -> Iterator[DeviceRig]:
    """Yield a rig with half of the GPU's memory. PyTorch's contenders, in a process of their own, have the rest."""
    gpu = _select_gpu(selected.device)
    region_bytes = region_bytes_of(gpu)
    count = gpu.memory_bytes // 2 // region_bytes
    name, place = f"cuda:{gpu.ordinal}", torch_device(f"cuda:{gpu.ordinal}")
    host_bytes = memory().size_bytes // 2
    with Ledger.create(count * region_bytes, region_bytes, 1, 1, None, host_bytes) as ledger:
        slot, epoch = ledger.claim_slot(os.getpid())
        ledger.grant(slot, count * region_bytes)
        regions = (
            _receive_regions(CudaBroker(gpu.ordinal, region_bytes, count), gpu.ordinal) if gpu.shareable else None
        )
        with open_device(name, (ledger.fd, slot, epoch), host_bytes, regions, place) as opened:
            link = link_of(measure_copies(opened.device, SIZES_BYTES[-1]))
            yield DeviceRig(
                step=subject.capture(opened.torch_device),
                opened=opened,
                link=link,
                grant=partial(ledger.grant, slot),
                capacity_bytes=count * region_bytes,
                spare_bytes=region_bytes,  # as a controller's trainer
                launch_ns=speed_of(name).launch_ns,
            )


def _placer(opened: OpenDevice, step: CapturedStep, spare_bytes: int | None = None) -> Placer:
    """Return a placer with room beyond the peak: packing is imperfect, and emulated regions are many and small."""
    least_bytes = max(REGION_BYTES, peak(step.graph, LIVENESS) // 16)
    return Placer(opened.serving, region_bytes=least_bytes if spare_bytes is None else spare_bytes)


def _select_gpu(device: str) -> Gpu:
    """Return the GPU of that name. Raises DeviceError if it cannot be used."""
    chosen = choose(device, probe(), torch_cuda(), torch_architectures)
    assert isinstance(chosen, Gpu)  # only a request for a GPU gets here
    return chosen


def _receive_regions(broker: CudaBroker, ordinal: int) -> CudaRegions:
    """Return the broker's regions, received through a socket as a trainer receives them."""
    sending, receiving = socket.socketpair()
    with sending, receiving:
        sender = Thread(target=broker.send, args=(sending.fileno(),))
        sender.start()
        regions = CudaRegions(ordinal, receiving.fileno())
        sender.join()
    return regions


# --- emulated ------------------------------------------------------------------------------------------------------


@contextmanager
def emulated(link: Link, capacity_bytes: int, host_bytes: int | None = None) -> Iterator[OpenDevice]:
    """Yield a device with such a link, all of it one job's. `host_bytes` defaults to four times its memory."""
    with emulated_with_grant(link, capacity_bytes, host_bytes=host_bytes) as (opened, _):
        yield opened


@contextmanager
def emulated_with_grant(
    link: Link, capacity_bytes: int, region_bytes: int = REGION_BYTES, host_bytes: int | None = None
) -> Iterator[tuple[OpenDevice, Callable[[int], int]]]:
    """Yield the same, and a function that sets the bytes that the job may use from now on."""
    whole_bytes = -(-capacity_bytes // region_bytes) * region_bytes
    with Ledger.create(whole_bytes, region_bytes, link.out_bytes_per_s, link.in_bytes_per_s) as ledger:
        slot, epoch = ledger.claim_slot(1)
        ledger.grant(slot, whole_bytes)
        with EmulatedDevice(ledger.fd, slot, epoch, 4 * whole_bytes if host_bytes is None else host_bytes) as device:
            yield emulated_on(device), partial(ledger.grant, slot)


def emulated_on(device: EmulatedDevice) -> OpenDevice:
    """Return an emulated device, opened for a trial."""
    return OpenDevice(device=device, serving=ArenaServing.of(device.hook_address()), torch_device=HOST)


def slowed_link(subject: TrainingSubject, step: CapturedStep, stands_for: Machine, iterations: int) -> Link:
    """Return the machine's link, slowed down by the ratio of this step's time here to its roofline time there.

    The fastest iteration counts, since other processes may use the processor, and all rows of a run share one link.
    """
    with emulated(UNTHROTTLED, 2 * vanilla_peak(step.graph)) as opened:
        trial = StepTrial(subject, step, opened, placer=_placer(opened, step))
        trial.run(LIVENESS, 1)
        here_ns = min(trial.measured().iteration_ns for _ in range(iterations))
        trial.runner.close()
    return slowed(stands_for, StepTimes(here_ns=here_ns, there_ns=sum(latencies(step.graph, stands_for))))
