"""Measures the device memory that training a registered network takes, for each part of it that a job can train.

    python -m indb_tensile.bench pretrained [--width 256] [--layers 4] [--batch 16] [--tokens 64] [--budget 0.3]
        [--labels 200 --steps 1000 --seeds 3] [--json]

The network is a BERT of these sizes with initial weights, because memory depends on sizes alone. The parts that a job
can train are the head alone, LoRA (small matrices beside the network's own) with the head, and the whole network. For
each part a training step is captured. It runs on the emulated device without a plan, and under the plan of tensile+
for a budget, which is a share of the way from the floor to the liveness peak. `parameters` counts the module's
weights and `learned` those that are trained. `state_bytes` is the size of the optimizer's state. `peak_bytes` is the
liveness peak (the peak without a plan), and `share` its ratio to the liveness peak of training the whole network.
`planned_bytes` is the plan's peak, and `measured_bytes` the most that the step allocated under the plan. `exact` says
whether the results equal those without a plan bit for bit.

With `--labels` the benchmark does something else. It pretrains a BERT of width 128 and two layers on the descriptions
of Debian's packages, without their sections, for `--steps` batches of 64 texts (harness/trainings/text_pretraining.py
has the task), and registers it. Then it trains models on this many labels, with default settings: from initial
weights, also at ten times the rate, and from the registered network with each part trained. It prints their
accuracies on 4,000 other packages, beside that of TF-IDF with logistic regression, whose penalty is chosen on these
packages.
"""

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

import torch
from rich.console import Console
from torch.nn import functional

from indb_tensile.bench.harness.comparisons.rivals import SEED, Values
from indb_tensile.bench.harness.execution.benchmark_processes import preload
from indb_tensile.bench.harness.execution.device_rig import RunTarget, set_up
from indb_tensile.bench.harness.execution.trial import StepTrial, TrainingSubject, same_bits, workload
from indb_tensile.bench.harness.networks.tiny_networks import tiny_network
from indb_tensile.bench.harness.processes.argument_types import portion, whole
from indb_tensile.bench.harness.processes.process_exit import run
from indb_tensile.bench.harness.results.result_tables import print_table
from indb_tensile.bench.harness.tables.debian_descriptions import debian_descriptions
from indb_tensile.bench.harness.trainings.few_labels import fine_tune, tfidf, untrained
from indb_tensile.bench.harness.trainings.text_pretraining import pretrain
from indb_tensile.executor.capture.optimizer import OptimizerSettings
from indb_tensile.executor.run.placer import Placer
from indb_tensile.learning.networks.architectures import build
from indb_tensile.learning.networks.registered_network import RegisteredNetwork
from indb_tensile.request.pretrained_rules import TRAINED_PARTS
from indb_tensile.scheduler.graph import Role
from indb_tensile.scheduler.memory.peak import LIVENESS, floor, liveness_peak, peak
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.policies import POLICIES

_WORDS = tuple(f"word{number}" for number in range(4000))
_CLASSES = 10
_ADAMW = OptimizerSettings(kind="adamw", weight_decay=0.01)
# The defaults of jobs.
_OPTIMIZERS = {"head": OptimizerSettings(kind="sgd", momentum=0.9), "lora": _ADAMW, "all": _ADAMW}
_FASTER = 1e-3  # the default rate of the whole network is that of one which has learned
_ITERATIONS = 2  # the second starts from the state that a planned iteration left


@dataclass(frozen=True, slots=True, kw_only=True)
class PartMemory:
    """The memory of training one part of the network."""

    train: str
    learned: int
    parameters: int
    state_bytes: int
    peak_bytes: int
    planned_bytes: int
    measured_bytes: int
    exact: bool
    share: float = 1.0


def main() -> None:
    """Print a table, or one JSON object for each part; with --labels, one line for each training."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--width", type=whole(), default=256)
    parser.add_argument("--layers", type=whole(), default=4)
    parser.add_argument("--batch", type=whole(), default=16)
    parser.add_argument("--tokens", type=whole(), default=64)
    parser.add_argument(
        "--budget", type=portion, default=0.3, help="share of the way from the floor (0) to the liveness peak (1)"
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--labels", type=whole(), help="instead, fine-tune on this many labels and print accuracies")
    parser.add_argument("--steps", type=whole(), default=1000, help="batches of the pretraining")
    parser.add_argument("--seeds", type=whole(), default=3, help="number of draws of the labels")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.labels is not None:
        _print_scores(options.labels, options.steps, options.seeds, as_json=options.json)
        return
    preload()
    sizes = {"width": options.width, "layers": options.layers, "heads": 4, "positions": options.tokens}
    network = tiny_network("bert", _WORDS, **sizes)
    results = list(measure(network, options.batch, options.tokens, options.budget))
    if options.json:
        for result in results:
            print(json.dumps(asdict(result)), flush=True)
        return
    lines = [
        {name: f"{value:,.3g}" if isinstance(value, float) else f"{value:,}" if type(value) is int else str(value)
         for name, value in asdict(result).items()}
        for result in results
    ]  # fmt: skip
    print_table(Console(width=160, highlight=False), "memory of training a registered network", lines)


def _print_scores(labels: int, steps: int, seeds: int, *, as_json: bool) -> None:
    """Print a line for the pretraining, and one for each training on few labels."""
    table = debian_descriptions()
    started_s = time.perf_counter()
    pretrained = pretrain([str(text) for text in table.table.columns["description"].values], steps)
    taken_s = round(time.perf_counter() - started_s)
    losses = {"first_loss": round(pretrained.first_loss, 3), "last_loss": round(pretrained.last_loss, 3)}
    _print({"pretrained_steps": steps, "seconds": taken_s, **losses}, as_json=as_json)
    initial = untrained(pretrained.network)
    trainings: list[tuple[str, RegisteredNetwork, str, dict[str, float]]] = [
        ("nothing", initial, "all", {}),
        (f"nothing, rate {_FASTER}", initial, "all", {"learning_rate": _FASTER}),
        *((part, pretrained.network, part, {}) for part in TRAINED_PARTS),
    ]
    for seed in range(seeds):
        draw: dict[str, object] = {"labels": labels, "seed": seed}
        _print({"start": "TF-IDF", **draw, "accuracy": round(tfidf(table, labels, seed), 4)}, as_json=as_json)
        for start, network, part, settings in trainings:
            accuracy, _ = fine_tune(table, labels, seed, network, part, settings)
            _print({"start": start, **draw, "accuracy": round(accuracy, 4)}, as_json=as_json)


def _print(line: dict[str, object], *, as_json: bool) -> None:
    print(json.dumps(line) if as_json else "  ".join(f"{name} {value}" for name, value in line.items()), flush=True)


def measure(network: RegisteredNetwork, batch: int, tokens: int, budget: float) -> Iterator[PartMemory]:
    """Yield the memory of each part, the whole network first."""
    whole_bytes = 0
    for part in reversed(TRAINED_PARTS):
        memory = measure_part(subject_of(network, part, batch, tokens), part, budget)
        whole_bytes = whole_bytes or memory.peak_bytes
        yield replace(memory, share=round(memory.peak_bytes / whole_bytes, 3))


def subject_of(network: RegisteredNetwork, part: str, batch: int, tokens: int) -> TrainingSubject:
    """Return the training of this part on texts of this many tokens."""
    torch.manual_seed(0)
    declared = {
        "type": "pretrained",
        "from": network.name,
        "train": part,
        "numbers": 0,
        "categories": [],
        "vocabularies": [network.tokenizer.size],
        "lengths": [tokens],
    }
    module = build(declared, (tokens,), _CLASSES, network=network).train()
    return TrainingSubject(
        name=part,
        module=module,
        loss=functional.cross_entropy,
        x=torch.randint(1, network.tokenizer.size, (batch, tokens)).float(),
        y=torch.randint(_CLASSES, (batch,)),
        settings=_OPTIMIZERS[part],
    )


def measure_part(subject: TrainingSubject, part: str, budget: float) -> PartMemory:
    """Run the step without a plan and under the plan for the budget, and return the memory that it takes."""
    with set_up(RunTarget(), subject, throttled=False) as rig:
        unplanned = rig.trial(subject, placer=Placer())
        expected = _train(unplanned, LIVENESS)
        unplanned.runner.close()
        trial = rig.trial(subject)
        latency_ns = trial.run(LIVENESS, 1).latency_ns
        graph = trial.step.graph
        low, high = floor(graph), liveness_peak(graph)
        budget_bytes = round(low + budget * (high - low))
        work = workload(trial.step, latency_ns)
        ((plan,),) = POLICIES["tensile+"].plan([work], budget_bytes=budget_bytes, link=rig.link)
        trained = _train(trial, plan)
        measured = trial.measured()
        trial.runner.close()
    parameters = list(subject.module.parameters())
    return PartMemory(
        train=part,
        learned=sum(parameter.numel() for parameter in parameters if parameter.requires_grad),
        parameters=sum(parameter.numel() for parameter in parameters),
        state_bytes=sum(t.size_bytes for t in graph.tensors if t.role is Role.OPTIMIZER_STATE),
        peak_bytes=high,
        planned_bytes=peak(graph, plan),
        measured_bytes=measured.peak_bytes,
        exact=all(same_bits(tensor, expected[name]) for name, tensor in trained.items()),
    )


def _train(trial: StepTrial, plan: Plan) -> Values:
    trial.adopt(plan)
    trial.restart()
    torch.manual_seed(SEED)
    for _ in range(_ITERATIONS):
        trial.iterate()
    return trial.state.export()


if __name__ == "__main__":
    run(main)
