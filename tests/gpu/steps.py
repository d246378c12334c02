"""One training step on a GPU, planned by tensile or trained with torch's own methods."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib.util import find_spec
from time import perf_counter
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint_sequential

from indb_tensile.device.bandwidth import SIZES_BYTES, measure_copies
from indb_tensile.device.cuda import CudaRegions
from indb_tensile.executor.capture.optimizer import OptimizerSettings
from indb_tensile.executor.capture.step_capture import capture_training
from indb_tensile.executor.latency.calibrate import calibrate, unknown_signatures
from indb_tensile.executor.run.open_device import OpenDevice, capturing_on, open_device, settle_results
from indb_tensile.executor.run.placer import Placer
from indb_tensile.executor.run.precision import settle_precision, with_precision
from indb_tensile.executor.run.runner import Runner
from indb_tensile.executor.run.state import State
from indb_tensile.job import JobId
from indb_tensile.scheduler.link import link_of
from indb_tensile.scheduler.memory.peak import LIVENESS, peak
from indb_tensile.scheduler.plan import Infeasible
from indb_tensile.scheduler.planner import plan_jobs
from indb_tensile.scheduler.workload import Workload
from tests.gpu.place import ON_DOUBLE, PLACE, synchronise

GPU = "cuda:0"
HOST_POOL_BYTES = 4 << 30
CLASSES = 10
# On a GPU half of the grant, whichever workspace cuDNN uses.
ROWS, CHANNELS, PIXELS, DEPTH = (4, 8, 16, 3) if ON_DOUBLE else (64, 128, 32, 12)
SMALL_GRANT_BYTES = 1 << 14 if ON_DOUBLE else 128 << 20  # too small for the step
RATE = 1e-3
WARM, TIMED = (1, 4) if ON_DOUBLE else (5, 20)  # every fourth iteration is a sample
SHARES = (1.0, 0.8, 0.6)  # budgets, relative to the peak without savings


def network() -> nn.Sequential:
    """Return convolutions that keep a GPU busy. Each has activations that are worth a swap."""
    body: list[nn.Module] = [nn.Conv2d(3, CHANNELS, 3, padding=1)]
    for _ in range(DEPTH):
        body += [nn.ReLU(), nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)]
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(CHANNELS, CLASSES))


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Return the batch on which every iteration trains."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(ROWS, 3, PIXELS, PIXELS, generator=generator)
    return x, torch.randint(CLASSES, (ROWS,), generator=generator)


def planned(claim: tuple[int, int, int], regions: CudaRegions, grant_bytes: int) -> list[dict[str, Any]]:
    """Return a row for each budget: plan, execution, and a digest of the final parameters."""
    place = torch.device(PLACE)
    module, (x, y) = network(), batch()
    with open_device(GPU, claim, HOST_POOL_BYTES, regions, place) as opened:
        link = link_of(measure_copies(opened.device, SIZES_BYTES[-1]))
        with capturing_on(place):
            captured = (capture_training(module, nn.CrossEntropyLoss(), x, y, OptimizerSettings(kind="adam")),)
        calibrated = calibrate(captured, unknown_signatures(captured, {}), {}, grant_bytes)
        (step,) = calibrated.steps
        latency_ns = (tuple(calibrated.measured[o.signature][0] for o in step.graph.operators),)
        work = Workload(job=JobId(1), graphs=(step.graph,), latency_ns=latency_ns)
        rows: list[dict[str, Any]] = []
        for share in SHARES:
            budget_bytes = round(share * peak(step.graph, LIVENESS))
            plans = plan_jobs((work,), budget_bytes=budget_bytes, link=link)
            if isinstance(plans, Infeasible):
                rows.append({"share": share, "infeasible": plans.reason})
                continue
            torch.manual_seed(3)
            state = State.create(module, OptimizerSettings(kind="adam"), place)
            placer = Placer(opened.serving, region_bytes=64 << 20)
            runner = Runner(opened.device, state, (step,), sample_every=4, placer=placer, operator_clock=opened.clock)
            runner.adopt(plans[0].plans, 1)
            rows.append({"share": share, "planned_peak_bytes": plans[0].peak_bytes} | _run(opened, runner, x, y))
            runner.close()
            rows[-1] |= {
                "planned_ms": plans[0].forecast.iteration_ns / 1e6,
                "bits": _digest(list(state.export().values())),
                "unplanned": placer.served.unplanned if placer.served else None,
            }
    return rows


def recorded(claim: tuple[int, int, int], regions: CudaRegions) -> list[dict[str, Any]]:
    """Run a step of many small operators one by one and as one graph. Return pace, launches and a digest of each."""
    place = torch.device(PLACE)
    width, depth = 256, 24
    layers = [nn.Linear(width, width), nn.ReLU(), nn.Dropout(0.1)] * depth
    module = nn.Sequential(*layers, nn.Linear(width, CLASSES))
    x, y = torch.randn(ROWS, width), torch.randint(CLASSES, (ROWS,))
    settings = OptimizerSettings(kind="adamw", weight_decay=0.01, clip_norm=1.0)
    rows: list[dict[str, Any]] = []
    with open_device(GPU, claim, HOST_POOL_BYTES, regions, place) as opened:
        with capturing_on(place):
            captured = (capture_training(module, nn.CrossEntropyLoss(), x, y, settings),)
        (step,) = calibrate(captured, unknown_signatures(captured, {}), {}, 1 << 40).steps
        for graphs in (None, opened.graphs):
            torch.manual_seed(3)
            state = State.create(module, settings, place)
            placer = Placer(opened.serving, region_bytes=64 << 20)
            runner = Runner(opened.device, state, (step,), sample_every=16, placer=placer, graphs=graphs)
            runner.adopt((LIVENESS,), 1)
            rates = (RATE * (1 + number % 7) for number in itertools.count())
            step_ms = _paced(partial(_trained, runner, x, y, rates))
            rows.append({"graphs": graphs is not None, "step_ms": step_ms, "launched": runner.launched})
            runner.close()
            rows[-1]["bits"] = _digest(list(state.export().values()))
    return rows


@contextmanager
def attached(claim: tuple[int, int, int], regions: CudaRegions) -> Iterator[None]:
    """Open a trainer's device, and run one step with everything that loads kernels."""
    place = torch.device(PLACE)
    with open_device(GPU, claim, HOST_POOL_BYTES, regions, place):
        module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.LazyLinear(CLASSES)).to(place)
        module(torch.randn(4, 3, 8, 8, device=place)).square().sum().backward()
        synchronise()
        del module
        yield


def overflowing(claim: tuple[int, int, int], regions: CudaRegions) -> dict[str, Any]:
    """Return the bytes that two regions lack for the network's step, and torch's error for more than they hold."""
    place = torch.device(PLACE)
    module, (x, y) = network(), batch()
    with open_device(GPU, claim, HOST_POOL_BYTES, regions, place):
        with capturing_on(place):
            captured = (capture_training(module, nn.CrossEntropyLoss(), x, y, OptimizerSettings(kind="adam")),)
        calibrated = calibrate(captured, unknown_signatures(captured, {}), {}, SMALL_GRANT_BYTES)
        if ON_DOUBLE:  # torch then has memory outside the regions
            return {"overflow_bytes": calibrated.overflow_bytes, "error": None}
        try:
            torch.empty(1 << 30, dtype=torch.uint8, device=place)
        except RuntimeError as error:
            return {"overflow_bytes": calibrated.overflow_bytes, "error": type(error).__name__}
    return {"overflow_bytes": calibrated.overflow_bytes, "error": None}


def attending(claim: tuple[int, int, int], regions: CudaRegions) -> dict[str, Any]:
    """Return how many iterations of a transformer layer in float32, with dropout, ran as one graph."""
    place, width = torch.device(PLACE), 256
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, batch_first=True)
    module = nn.Sequential(layer, nn.Flatten(), nn.Linear(32 * width, CLASSES))
    x, y = torch.randn(16, 32, width), torch.randint(CLASSES, (16,))
    settings = OptimizerSettings(kind="adamw")
    with open_device(GPU, claim, HOST_POOL_BYTES, regions, place) as opened:
        with capturing_on(place):
            captured = (capture_training(module, nn.CrossEntropyLoss(), x, y, settings),)
        (step,) = calibrate(captured, unknown_signatures(captured, {}), {}, 1 << 40).steps
        state = State.create(module, settings, place)
        placer = Placer(opened.serving, region_bytes=64 << 20)
        runner = Runner(opened.device, state, (step,), placer=placer, graphs=opened.graphs)
        runner.adopt((LIVENESS,), 1)
        step_ms = _paced(lambda: runner.train(x, y, RATE))
        launched, served = runner.launched, placer.served
        runner.close()
    names = sorted({o.name for o in step.graph.operators if "attention" in o.name})
    return {"launched": launched, "step_ms": step_ms, "kernels": names, "served": str(served)}


def precise(claim: tuple[int, int, int], regions: CudaRegions, precision: str) -> dict[str, Any]:
    """Return the sum of the operators' latencies, the time of their graph, and the graph's signature."""
    place = torch.device(PLACE)
    module, (x, y) = network(), batch()
    settings = OptimizerSettings(kind="adam")
    with open_device(GPU, claim, HOST_POOL_BYTES, regions, place) as opened:
        settle_precision(precision, place)
        with capturing_on(place):
            captured = (
                with_precision(capture_training(module, nn.CrossEntropyLoss(), x, y, settings), precision, place),
            )
        calibrated = calibrate(captured, unknown_signatures(captured, {}), {}, 1 << 40)
        (step,) = calibrated.steps
        latency_ns = [calibrated.measured[o.signature][0] for o in step.graph.operators]
        state = State.create(module, settings, place)
        placer = Placer(opened.serving, region_bytes=64 << 20)
        runner = Runner(opened.device, state, (step,), placer=placer, graphs=opened.graphs)
        runner.adopt((LIVENESS,), 1)
        graph_ms = _paced(lambda: runner.train(x, y, RATE))
        launched = runner.launched
        runner.close()
    return {
        "latency_sum_ms": sum(latency_ns) / 1e6,
        "graph_ms": graph_ms,
        "launched": launched,
        "signatures": [step.graph.signature],
    }


def rival(method: str, precision: str = "torch") -> dict[str, Any]:
    """Train the same network with torch's own allocator, in this precision."""
    if method == "compile" and (ON_DOUBLE or find_spec("triton") is None):
        return {"method": method, "absent": "triton, by which torch compiles, is not installed"}
    settle_results(torch.device(PLACE), precision)
    module, (x, y) = network().to(PLACE), batch()
    loss = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(module.parameters(), lr=RATE, fused=True)
    forward = _forward(method, module)
    saving = torch.autograd.graph.save_on_cpu(pin_memory=not ON_DOUBLE) if method == "save_on_cpu" else nullcontext()

    def iterate() -> None:
        optimizer.zero_grad(set_to_none=True)
        with saving:
            loss(forward(x.to(PLACE)), y.to(PLACE)).backward()
        optimizer.step()

    step_ms = _paced(iterate)
    return {
        "method": method,
        "precision": precision,
        "step_ms": step_ms,
        "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
        "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
    }


def _forward(method: str, module: nn.Sequential) -> Callable[[torch.Tensor], Any]:
    if method == "checkpoint":
        return lambda x: checkpoint_sequential(module, 4, x, use_reentrant=False)  # type: ignore[no-untyped-call]
    if method == "compile":
        torch._functorch.config.activation_memory_budget = SHARES[-1]
        return torch.compile(module)
    return module


def _run(opened: OpenDevice, runner: Runner, x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
    step_ms = _paced(lambda: runner.train(x, y, RATE))
    measured = runner.measured()
    arena = opened.device.arena_usage()
    return {
        "step_ms": step_ms,
        "peak_bytes": None if measured is None else measured.peak_bytes,
        "stall_ms": None if measured is None else measured.stall_ns / 1e6,
        "peak_allocated_bytes": arena.high_water_bytes,
        "peak_reserved_bytes": arena.reserved_high_water_bytes,
    }


def _trained(runner: Runner, x: torch.Tensor, y: torch.Tensor, rates: Iterator[float]) -> None:
    runner.train(x, y, next(rates))


def _paced(iterate: Callable[[], object]) -> float:
    for _ in range(WARM):
        iterate()
    synchronise()
    start_s = perf_counter()
    for _ in range(TIMED):
        iterate()
    synchronise()
    return (perf_counter() - start_s) * 1000 / TIMED


def _digest(values: list[torch.Tensor]) -> int:
    """Return a digest that is equal for equal bits of any type."""
    parts = [value.contiguous().flatten().view(torch.uint8).to(torch.int64) for value in values if value.numel()]
    return sum(int((part * torch.arange(1, part.numel() + 1)).sum()) for part in parts)
