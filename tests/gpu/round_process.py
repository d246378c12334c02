"""The roles of a member of a round of the GPU suite: `python -m tests.gpu.round_process ROLE SETTINGS`.

With the setting `place` as `cpu` torch computes on the host, for the driver's double, whose device memory is host
memory.
"""

import json
import pickle
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn

from indb_tensile.device.bandwidth import SIZES_BYTES, measure_copies
from indb_tensile.device.cuda import CudaDevice, CudaRegions
from indb_tensile.device.round_member import RoundMember, Seat, open_member
from indb_tensile.executor.capture.optimizer import OptimizerSettings
from indb_tensile.executor.capture.step_capture import CapturedStep, capture_training
from indb_tensile.executor.latency.calibrate import calibrate, unknown_signatures
from indb_tensile.executor.run.open_device import OpenDevice, capturing_on, open_device
from indb_tensile.executor.run.placer import Placer
from indb_tensile.executor.run.runner import Runner
from indb_tensile.executor.run.state import State
from indb_tensile.job import JobId
from indb_tensile.scheduler.link import link_of
from indb_tensile.scheduler.memory.peak import LIVENESS
from indb_tensile.scheduler.phases.round_part import RoundPart, Segment, Wait
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.workload import Workload
from tests.gpu.trainer_process import HOST_POOL_BYTES, write_figures

ITERATIONS, WARM = 24, 8
HANDOVERS = 200
DEPTH, CHANNELS, PIXELS, CLASSES = 12, 128, 32, 10
NUMBER = 1  # of the round
_RATE = 1e-3
_SETTINGS = OptimizerSettings(kind="adam")


def handover(settings: dict[str, Any]) -> None:
    """Take and give the round's regions in turns with another process, with a small kernel each time.

    Report how long one iteration takes, the time for which the device stands still in it, and that of the first
    taking, which maps and clears the regions.
    """
    with _opened(settings) as opened:
        part = _turn(settings["number"], settings["region_bytes"])
        member = _member(settings, opened, Seat(number=NUMBER, part=part, slots=tuple(settings["slots"])))
        assert opened.serving is not None
        opened.serving.reserve(settings["region_bytes"])
        number = torch.zeros(1, device=settings["place"])
        write_figures(ready=True)
        sys.stdin.readline()
        member.join(opened.serving.block)
        start_ns = time.perf_counter_ns()
        first_ns = _take_turn(member, number)
        after_ns = time.perf_counter_ns()
        idle_ns = sum(_take_turn(member, number) for _ in range(HANDOVERS))
        end_ns = time.perf_counter_ns()
        write_figures(
            first_us=(after_ns - start_ns) / 1000,
            first_idle_us=first_ns / 1000,
            handover_us=(end_ns - after_ns) / 2000 / HANDOVERS,
            idle_us=idle_ns / 1000 / HANDOVERS,
        )
        member.leave()
        sys.stdin.readline()
        member.close()


def _turn(number: int, region_bytes: int) -> RoundPart:
    """Return the part of one of two members that need both regions of the round in turns."""
    return RoundPart(
        position=number,
        operators=2,
        iterations=1,
        base_bytes=region_bytes,
        region_bytes=region_bytes,
        segments=(Segment(operator=0), Segment(operator=1, taken=(0, 1))),
        waits=(Wait(iteration=0, operator=1, position=1 - number, boundary=2 * number, each=2),),
    )


def _take_turn(member: RoundMember, number: torch.Tensor) -> int:
    member.enter()
    idle_ns = member.pass_boundary(0) + member.pass_boundary(1)
    number.add_(1)
    idle_ns += member.pass_boundary(2)
    member.rest()
    return idle_ns


def train(settings: dict[str, Any]) -> None:
    """Train a network alone with all memory, write its workload to a file, and train it again in a round.

    The test then writes the job's plans and its seat to another file. Report the pace and the bits of both, and the
    operators, segments and gates of the round.
    """
    with _opened(settings) as opened:
        step, workload = _calibrated(settings, opened)
        link = link_of(measure_copies(opened.device, SIZES_BYTES[-1]))
        Path(settings["workload"]).write_bytes(pickle.dumps((workload, link)))
        write_figures(**_trained(settings, opened, step, (LIVENESS,), None))
        sys.stdin.readline()
        plans, seat = pickle.loads(Path(settings["plan"]).read_bytes())
        part = seat.part
        figures = _trained(settings, opened, step, plans, seat)
        write_figures(
            **figures,
            operators=part.operators,
            segments=len(part.segments),
            gates=len(part.waits),
            places=part.places,
        )
        sys.stdin.readline()


def _calibrated(settings: dict[str, Any], opened: OpenDevice) -> tuple[CapturedStep, Workload]:
    module, x, y = _example(settings)
    with capturing_on(opened.torch_device):
        captured = (capture_training(module, nn.CrossEntropyLoss(), x, y, _SETTINGS),)
    calibrated = calibrate(captured, unknown_signatures(captured, {}), {}, settings["grant_bytes"])
    (step,) = calibrated.steps
    latency_ns = tuple(calibrated.measured[o.signature][0] for o in step.graph.operators)
    return step, Workload(job=JobId(settings["number"] + 1), graphs=(step.graph,), latency_ns=(latency_ns,))


def _trained(
    settings: dict[str, Any], opened: OpenDevice, step: CapturedStep, plans: tuple[Plan, ...], seat: Seat | None
) -> dict[str, Any]:
    """Train from the same start for some iterations, operator by operator, alone or in a round."""
    module, x, y = _example(settings)
    state = State.create(module, _SETTINGS, opened.torch_device)
    placer = Placer(opened.serving, region_bytes=settings["region_bytes"])
    runner = Runner(opened.device, state, (step,), sample_every=4, placer=placer, operator_clock=opened.clock)
    member = None if seat is None else _member(settings, opened, seat)
    runner.adopt(plans, 1, None if seat is None else seat.part.base_bytes, member)
    for number in range(ITERATIONS):
        if number == WARM:
            start_ns = time.perf_counter_ns()
        runner.train(x, y, _RATE)
    step_ms = (time.perf_counter_ns() - start_ns) / 1e6 / (ITERATIONS - WARM)
    measured, served = runner.measured(), placer.served
    runner.leave_round()
    runner.close()
    return {
        "step_ms": step_ms,
        "stall_ms": None if measured is None else measured.stall_ns / 1e6,
        "latency_ms": None if measured is None else sum(measured.latency_ns) / 1e6,
        "peak_bytes": None if measured is None else measured.peak_bytes,
        "unplanned": None if served is None else served.unplanned,
        "bits": _digest(list(state.export().values())),
    }


def _example(settings: dict[str, Any]) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """Return the job's network with its first parameters, and its batch. Both members have the same."""
    torch.manual_seed(3)
    channels, rows = settings["channels"], settings["rows"]
    body: list[nn.Module] = [nn.Conv2d(3, channels, 3, padding=1)]
    for _ in range(DEPTH):
        body += [nn.ReLU(), nn.Conv2d(channels, channels, 3, padding=1)]
    module = nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES))
    return module, torch.randn(rows, 3, PIXELS, PIXELS), torch.randint(CLASSES, (rows,))


def _opened(settings: dict[str, Any]) -> Any:
    claim = (settings["ledger"], settings["slot"], settings["epoch"])
    pool_bytes = settings.get("host_pool_bytes", HOST_POOL_BYTES)
    regions = CudaRegions(0, settings["socket"])
    return open_device("cuda:0", claim, pool_bytes, regions, torch.device(settings["place"]))


def _member(settings: dict[str, Any], opened: OpenDevice, seat: Seat) -> RoundMember:
    assert isinstance(opened.device, CudaDevice)
    return open_member(
        settings["ledger"], settings["slot"], settings["epoch"], seat, lambda: None, device=opened.device
    )


def _digest(values: list[torch.Tensor]) -> int:
    parts = [value.contiguous().flatten().view(torch.uint8).to(torch.int64) for value in values if value.numel()]
    return sum(int((part * torch.arange(1, part.numel() + 1)).sum()) for part in parts)


ROLES: dict[str, Callable[[dict[str, Any]], None]] = {role.__name__: role for role in (handover, train)}

if __name__ == "__main__":
    with suppress(BrokenPipeError):  # the test has ended
        ROLES[sys.argv[1]](json.loads(sys.argv[2]))
