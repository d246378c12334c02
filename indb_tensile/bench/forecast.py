"""How well the simulator foretells a planned iteration on the emulated device: its peak exactly, its time as a ratio.

    python -m indb_tensile.bench.forecast [--rounds 3] [--iterations 5] [--json]

Per network: operators are measured under the liveness plan, then plans between the liveness peak and the floor are
made from these latencies and followed. Liveness and planned iterations take turns, so that a machine that slows
down slows both; figures are medians. `ratio` is measured over foretold time; `eor` is measured time over that of
the liveness iterations of the same run.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import nn

from indb_tensile import config
from indb_tensile.executor.calibrate import calibrate, unknown_signatures
from indb_tensile.executor.capture import CapturedStep, capture_training
from indb_tensile.executor.device import EmulatedDevice, Ledger
from indb_tensile.executor.optimizer import OptimizerSettings
from indb_tensile.executor.runner import Runner
from indb_tensile.executor.state import State
from indb_tensile.job import JobId
from indb_tensile.learning import architectures
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.planner import JobPlan, Workload, plan_jobs

CLASSES = 10
BUDGETS = (0.8, 0.5, 0.2)  # of the way from the floor to the liveness peak
WARM_ITERATIONS = 2
CAPACITY_BYTES = config.GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A network, a batch, and the shape of one row."""

    name: str
    architecture: dict[str, Any]
    shape: tuple[int, ...]
    rows: int


NETWORKS = (
    Network(name="mlp", architecture={"type": "mlp", "hidden": [2048] * 3, "dropout": 0.2}, shape=(64,), rows=256),
    Network(
        name="cnn",
        architecture={"type": "cnn", "channels": [48], "depth": 6, "hidden": [128], "dropout": 0.2},
        shape=(1, 8, 8),
        rows=256,
    ),
    Network(
        name="transformer",
        architecture={
            "type": "layers",
            "layers": [
                {"type": "transformer_encoder", "heads": 4, "layers": 2, "feedforward": 512, "dropout": 0.1},
                {"type": "flatten"},
                {"type": "linear"},
            ],
        },
        shape=(16, 128),
        rows=128,
    ),
    Network(
        name="lstm",
        architecture={
            "type": "layers",
            "layers": [{"type": "lstm", "hidden": 256}, {"type": "flatten"}, {"type": "linear"}],
        },
        shape=(32, 64),
        rows=128,
    ),
)


def main() -> None:
    """Print one row per network and budget."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=3, help="turns of liveness and planned iterations")
    parser.add_argument("--iterations", type=int, default=5, help="iterations of each in one turn")
    parser.add_argument("--json", action="store_true", help="one object a line")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    settings = config.Settings()
    link = Link(out_bytes_per_s=settings.link_out_bytes_per_s, in_bytes_per_s=settings.link_in_bytes_per_s)
    for network in NETWORKS:
        for row in measure(network, link, rounds=arguments.rounds, iterations=arguments.iterations):
            print(json.dumps(row) if arguments.json else _line(row), flush=True)


def measure(network: Network, link: Link, *, rounds: int, iterations: int) -> Iterator[dict[str, Any]]:
    """One row per budget."""
    with Ledger.create(CAPACITY_BYTES, config.MIB, link.out_bytes_per_s, link.in_bytes_per_s) as ledger:
        slot, epoch = ledger.claim_slot(1)
        ledger.grant(slot, CAPACITY_BYTES)
        with EmulatedDevice(ledger.fd, slot, epoch, CAPACITY_BYTES) as device:
            bench = Trial.prepare(network, device)
            alone = plan_jobs([bench.workload()], budget_bytes=CAPACITY_BYTES, link=link, policy="liveness")
            assert isinstance(alone, tuple)
            for share in BUDGETS:
                yield bench.compare(network, alone[0], share, link, rounds=rounds, iterations=iterations)
            bench.runner.close()


@dataclass(kw_only=True)
class Trial:
    """One network on the device, and what its operators took last."""

    step: CapturedStep
    runner: Runner
    batch: tuple[torch.Tensor, torch.Tensor]
    latency_ns: tuple[int, ...]
    generation: int = 0

    @classmethod
    def prepare(cls, network: Network, device: EmulatedDevice) -> "Trial":
        """Capture, calibrate, and put the network's state beside the device."""
        module = architectures.build(network.architecture, network.shape, CLASSES)
        batch = (torch.randn(network.rows, *network.shape), torch.randint(0, CLASSES, (network.rows,)))
        settings = OptimizerSettings(kind="adam")
        captured = (capture_training(module, nn.CrossEntropyLoss(), *batch, settings),)
        outcome = calibrate(captured, unknown_signatures(captured, {}), {}, CAPACITY_BYTES)
        (step,) = outcome.steps
        runner = Runner(device, State.create(module, settings), outcome.steps, sample_every=1)
        latency_ns = tuple(outcome.measured[o.signature][0] for o in step.graph.operators)
        return cls(step=step, runner=runner, batch=batch, latency_ns=latency_ns)

    def workload(self) -> Workload:
        """What to plan for, with the latest latencies."""
        return Workload(job=JobId(1), graphs=(self.step.graph,), latency_ns=(self.latency_ns,))

    def compare(
        self, network: Network, alone: JobPlan, share: float, link: Link, *, rounds: int, iterations: int
    ) -> dict[str, Any]:
        """Liveness and planned iterations in turns; the plan is made from the first turn's latencies."""
        budget_bytes = round(alone.floor_bytes + share * (alone.liveness_peak_bytes - alone.floor_bytes))
        unplanned: list[int] = []
        planned: list[int] = []
        foretold: list[int] = []
        peak_bytes, plan = 0, alone
        for _ in range(rounds):
            iteration_ns, _, self.latency_ns = self._run(alone.plans[0], iterations)
            unplanned.append(iteration_ns)
            plan = self._plan(budget_bytes, link)
            iteration_ns, peak_bytes, _ = self._run(plan.plans[0], iterations)
            planned.append(iteration_ns)
            foretold.append(plan.forecast.iteration_ns)
            assert peak_bytes == plan.peak_bytes, f"planned {plan.peak_bytes}, measured {peak_bytes} bytes"
        return {
            "network": network.name,
            "liveness_peak_bytes": alone.liveness_peak_bytes,
            "floor_bytes": alone.floor_bytes,
            "peak_bytes": plan.peak_bytes,
            "measured_peak_bytes": peak_bytes,
            "swaps": plan.swaps,
            "foretold_ms": round(median(foretold) / 1e6, 2),
            "measured_ms": round(median(planned) / 1e6, 2),
            "ratio": round(median(m / f for m, f in zip(planned, foretold, strict=True)), 3),
            "eor": round(median(m / u for m, u in zip(planned, unplanned, strict=True)), 3),
        }

    def adopt(self, plan: Plan) -> None:
        """Follow this plan from the next iteration on."""
        self.generation += 1
        self.runner.adopt((plan,), self.generation)

    def _plan(self, budget_bytes: int, link: Link) -> JobPlan:
        plans = plan_jobs([self.workload()], budget_bytes=budget_bytes, link=link)
        assert isinstance(plans, tuple)  # no budget here is below the floor
        return plans[0]

    def _run(self, plan: Plan, iterations: int) -> tuple[int, int, tuple[int, ...]]:
        """Mean time of an iteration, the peak, and the operators' mean latencies."""
        self.adopt(plan)
        for _ in range(WARM_ITERATIONS):
            self.runner.train(*self.batch, 1e-3)
        self.runner.measured()
        for _ in range(iterations):
            self.runner.train(*self.batch, 1e-3)
        found = self.runner.measured()
        assert found is not None
        return found.iteration_ns, found.peak_bytes, found.latency_ns


def _line(row: dict[str, Any]) -> str:
    sizes = ", ".join(
        f"{name} {row[f'{name}_bytes'] / config.MIB:.1f} MB" for name in ("liveness_peak", "floor", "peak")
    )
    return (
        f"{row['network']:<12} {sizes}, {row['swaps']} swaps; foretold {row['foretold_ms']} ms, "
        f"measured {row['measured_ms']} ms, ratio {row['ratio']}, eor {row['eor']}"
    )


if __name__ == "__main__":
    main()
