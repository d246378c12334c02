"""Measures how well the latencies of an unknown network's operators are predicted, by leaving one network out.

    python -m indb_tensile.bench predictor [--device-s 28] [--networks N] [--json]

The benchmark measures operators drawn at random (the survey), as a controller does when it first uses a device, and
then the operators of the networks below. For each network a predictor is trained on all other measurements. It is
judged on those operators of the network that the training does not contain, each counted once. `r2` is the R² of the
logarithm of the latency: the share of its variance that is predicted. Its rivals are a predictor trained on the
survey alone (`r2_survey`), the analytic estimate (`r2_roofline`), and a linear model for each kind of operator
(`r2_linear`, in the logarithms of arithmetic, bytes read and bytes written). The paper on TENSILE reports averages of
0.58 over all kinds and 0.81 for convolutions. `r2_crowded` is the R² on a busy device, and `r2_crowded_untold` the
same if the predictor is not told the device's utilisation.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle, islice
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.functional import cross_entropy

from indb_tensile.bench.commands import forecast
from indb_tensile.bench.harness.networks import known_networks as networks
from indb_tensile.bench.harness.processes.process_exit import run
from indb_tensile.device.hardware import PROCESSOR_SPEED
from indb_tensile.executor.capture.optimizer import OptimizerSettings
from indb_tensile.executor.capture.record import Call
from indb_tensile.executor.capture.step_capture import CapturedStep, capture_training
from indb_tensile.executor.latency.calibrate import kernels
from indb_tensile.executor.latency.latency_predictor import MeasuredOperator, Predictor, train
from indb_tensile.executor.latency.survey import DEVICE_S, LEAST_SHARE, measure, survey
from indb_tensile.learning.networks import architectures
from indb_tensile.scheduler.timing.operator_features import Description, rooflines_ns

Logs = NDArray[np.float64]

_ADAM = OptimizerSettings(kind="adam")
_GRAPH_OPERATORS = 10_000  # operators of the graph whose prediction is timed
_TRIES = 4  # most measurements of an operator; the first that no other process disturbs is the last
_FEWEST_OF_KIND = 10  # fewer operators of one kind give no meaningful R²

# Batches at which a step takes one core seconds, not minutes.
_ROWS = {
    "vgg16": 1,
    "inception_v3": 1,
    "inception_v4": 1,
    "resnet50": 2,
    "densenet121": 2,
    "mobilenet_v2": 4,
    "squeezenet": 4,
    "gpt2": 1,
    "bert": 1,
    "lstm": 16,
}


def _layers(name: str, rows: int, shape: tuple[int, ...], *layers: dict[str, Any]) -> forecast.SmallNetwork:
    ending = ({"type": "flatten"}, {"type": "linear"})
    return forecast.SmallNetwork(
        name=name, architecture={"type": "layers", "layers": [*layers, *ending]}, shape=shape, rows=rows
    )


_DECLARED = (
    *forecast.NETWORKS,
    forecast.SmallNetwork(
        name="mlp of tables",
        architecture={"type": "mlp", "hidden": [128, 64], "batch_norm": True, "activation": "gelu"},
        shape=(31,),
        rows=64,
    ),
    forecast.SmallNetwork(
        name="cnn of digits",
        architecture={"type": "cnn", "channels": [32, 64], "batch_norm": True, "dropout": 0.2},
        shape=(1, 28, 28),
        rows=64,
    ),
    _layers(
        "residual",
        32,
        (3, 32, 32),
        {"type": "conv2d", "out": 40},
        {
            "type": "residual",
            "layers": [
                {"type": "conv2d", "out": 40, "bias": False},
                {"type": "batch_norm2d"},
                {"type": "silu"},
                {"type": "conv2d", "out": 40, "groups": 4, "kernel": 5},
            ],
        },
        {"type": "avg_pool2d", "kernel": 2},
        {"type": "adaptive_avg_pool2d", "size": 4},
    ),
    _layers("gru", 48, (12, 20), {"type": "gru", "hidden": 96, "layers": 2, "output": "mean"}),
    _layers(
        "two-way lstm", 24, (40, 12), {"type": "lstm", "hidden": 80, "bidirectional": True, "output": "sequence"}
    ),
    _layers(
        "wide transformer",
        8,
        (96, 32),
        {"type": "transformer_encoder", "d_model": 384, "heads": 6, "layers": 1, "output": "last"},
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredNetwork:
    """One network: its operators' signatures in order, and a sample of each signature's latency."""

    name: str
    order: tuple[str, ...]
    samples: dict[str, MeasuredOperator]


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedNetwork:
    """Operators of one network that the training did not contain: logarithms of ns, measured and by each model."""

    name: str
    kinds: tuple[str, ...]
    measured: Logs
    predicted: dict[str, Logs]


def main() -> None:
    """Print one row per network, one per kind of operator, and one with sizes and times."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device-s", type=float, default=DEVICE_S, help="seconds to measure drawn operators for")
    parser.add_argument("--networks", type=int, default=None, help="use only the first networks, in this number")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    drawn = tuple(survey(0, device_s=arguments.device_s))
    measured = [measure_network(name, capture) for name, capture in islice(_networks(), arguments.networks)]
    for row in rows(drawn, measured):
        print(json.dumps(row) if arguments.json else _line(row), flush=True)


def rows(drawn: tuple[MeasuredOperator, ...], measured: Sequence[MeasuredNetwork]) -> Iterator[dict[str, Any]]:
    """Yield the figures of each network, of each kind of operator, of all together, and the cost of predicting."""
    survey_predictor = train(drawn, PROCESSOR_SPEED)
    judged = []
    for left_out in measured:
        result = _judge(left_out, [m for m in measured if m is not left_out], drawn, survey_predictor)
        if result.kinds:  # otherwise the training contains all of its operators
            judged.append(result)
            yield {"network": left_out.name, **_figures([result])}
    kinds = sorted({kind for result in judged for kind in result.kinds})
    for kind in kinds:
        results = [_of_kind(result, kind) for result in judged]
        if sum(len(result.kinds) for result in results) >= _FEWEST_OF_KIND:
            yield {"kind": kind, **_figures(results)}
    yield {"network": "all", **_figures(judged), **_judge_busy_device(drawn)}
    yield _cost(drawn, measured)


# --- measuring -------------------------------------------------------------------------------------------------


def _networks() -> Iterator[tuple[str, Callable[[], CapturedStep]]]:
    for declared in _DECLARED:
        yield declared.name, partial(_capture_declared, declared)
    for name, count in _ROWS.items():
        network = networks.find(name)
        if networks.missing_library(network) is None:
            yield network.title, partial(_capture_known, network, count)


def _capture_declared(network: forecast.SmallNetwork) -> CapturedStep:
    module = architectures.build_without_memory(network.architecture, network.shape, forecast.CLASSES)
    x = torch.empty(network.rows, *network.shape, device="meta")
    y = torch.empty(network.rows, dtype=torch.int64, device="meta")
    return capture_training(module, nn.CrossEntropyLoss(), x, y, _ADAM)


def _capture_known(network: networks.Network, count: int) -> CapturedStep:
    with torch.device("meta"):
        module = network.build(network.row[-1])
        x = torch.empty((count, *network.row), dtype=torch.int64 if network.tokens else torch.float32)
        y = torch.empty((count, *network.label), dtype=torch.int64)
    return capture_training(module, lambda p, t: cross_entropy(p.flatten(0, -2), t.flatten()), x, y, _ADAM)


def measure_network(name: str, capture: Callable[[], CapturedStep]) -> MeasuredNetwork:
    """Capture the network's step and measure each of its operators once."""
    step = capture()
    samples = {
        signature: MeasuredOperator(description=call.description, latency_ns=_least_disturbed_ns(step, call))
        for signature, (_, call) in kernels([step]).items()
    }
    return MeasuredNetwork(name=name, order=tuple(o.signature for o in step.graph.operators), samples=samples)


def _least_disturbed_ns(step: CapturedStep, call: Call) -> int:
    """Return a latency measured with the processor to itself or, after some tries, the least disturbed one."""
    attempts: list[tuple[float, int]] = []
    while len(attempts) < _TRIES and (not attempts or attempts[-1][0] < LEAST_SHARE):
        latency_ns, share = measure(step, call)
        attempts.append((share, latency_ns))
    return max(attempts)[1]


# --- judging ---------------------------------------------------------------------------------------------------


def _judge(
    left_out: MeasuredNetwork,
    others: Sequence[MeasuredNetwork],
    drawn: tuple[MeasuredOperator, ...],
    survey_predictor: Predictor,
) -> JudgedNetwork:
    """Train without one network, and predict those of its operators that differ from all in the training."""
    rest = {signature: sample for other in others for signature, sample in other.samples.items()}
    known = {sample.description for sample in (*drawn, *rest.values())}
    unknown = [sample for sample in left_out.samples.values() if sample.description not in known]
    descriptions = [sample.description for sample in unknown]
    training = (*drawn, *rest.values())
    if not descriptions:
        return JudgedNetwork(name=left_out.name, kinds=(), measured=np.empty(0), predicted={})
    predicted = {
        "r2": train(training, PROCESSOR_SPEED).predict(descriptions),
        "r2_survey": survey_predictor.predict(descriptions),
        "r2_roofline": rooflines_ns(descriptions, PROCESSOR_SPEED),
    }
    return JudgedNetwork(
        name=left_out.name,
        kinds=tuple(description.name for description in descriptions),
        measured=np.log([max(1, sample.latency_ns) for sample in unknown]),
        predicted={name: np.log(latency_ns) for name, latency_ns in predicted.items()}
        | {"r2_linear": _linear(training, descriptions)},
    )


def _linear(training: Sequence[MeasuredOperator], descriptions: Sequence[Description]) -> Logs:
    """Fit least squares for each kind. Returns the roofline for kinds with too few samples to fix the weights."""
    logs = np.log(rooflines_ns(descriptions, PROCESSOR_SPEED))
    alone = [sample for sample in training if sample.utilisation == 0]
    for kind in {description.name for description in descriptions}:
        known = [sample for sample in alone if sample.description.name == kind]
        if len(known) < 2 * _TERMS:
            continue
        target = np.log([max(1, sample.latency_ns) for sample in known])
        weights, *_ = np.linalg.lstsq(_terms([sample.description for sample in known]), target)
        of_kind = np.array([description.name == kind for description in descriptions])
        logs[of_kind] = _terms([d for d in descriptions if d.name == kind]) @ weights
    return logs


_TERMS = 5  # inputs of the linear model


def _terms(descriptions: Sequence[Description]) -> Logs:
    sizes = [
        (d.flops, sum(t.size_bytes for t in d.inputs), sum(t.size_bytes for t in d.outputs)) for d in descriptions
    ]
    estimate = np.log(rooflines_ns(descriptions, PROCESSOR_SPEED))
    return np.column_stack([np.log1p(np.array(sizes, dtype=np.float64)), estimate, np.ones(len(sizes))])


def _of_kind(judged: JudgedNetwork, kind: str) -> JudgedNetwork:
    of_kind = np.array([name == kind for name in judged.kinds], dtype=bool)
    return replace(
        judged,
        kinds=tuple(name for name in judged.kinds if name == kind),
        measured=judged.measured[of_kind],
        predicted={name: values[of_kind] for name, values in judged.predicted.items()},
    )


def _figures(judged: Sequence[JudgedNetwork]) -> dict[str, Any]:
    measured = np.concatenate([result.measured for result in judged])
    predicted = {name: np.concatenate([result.predicted[name] for result in judged]) for name in judged[0].predicted}
    median_error = float(np.exp(np.median(np.abs(measured - predicted["r2"]))) - 1)
    return {
        "operators": len(measured),
        **{name: _r2(measured, values) for name, values in predicted.items()},
        "median_error": round(median_error, 3),
    }


def _r2(measured: Logs, predicted: Logs) -> float | None:
    """Return the share of the logarithm's variance that is predicted; None if nothing varies."""
    spread = float(((measured - measured.mean()) ** 2).sum())
    return round(1 - float(((measured - predicted) ** 2).sum()) / spread, 3) if spread > 0 else None


def _judge_busy_device(drawn: tuple[MeasuredOperator, ...]) -> dict[str, Any]:
    """Judge the last quarter of the drawn operators, on a busy device, with and without the utilisation as input."""
    cut = len(drawn) * 3 // 4
    last = [sample for sample in drawn[cut:] if sample.utilisation > 0]
    if not last:
        return {}
    predictor = train(drawn[:cut], PROCESSOR_SPEED)
    descriptions = [sample.description for sample in last]
    measured = np.log([max(1, sample.latency_ns) for sample in last])
    aware, unaware = (np.log(predictor.predict(descriptions, utilisation)) for utilisation in (1.0, 0.0))
    return {"r2_crowded": _r2(measured, aware), "r2_crowded_untold": _r2(measured, unaware)}


# --- cost ------------------------------------------------------------------------------------------------------


def _cost(drawn: tuple[MeasuredOperator, ...], measured: Sequence[MeasuredNetwork]) -> dict[str, Any]:
    started_s = perf_counter()
    predictor = train([*drawn, *(s for m in measured for s in m.samples.values())], PROCESSOR_SPEED)
    training_s = perf_counter() - started_s
    order = [m.samples[signature].description for m in measured for signature in m.order]
    graph = list(islice(cycle(order), _GRAPH_OPERATORS))
    distinct = [replace(description) for description in islice(cycle(order), _GRAPH_OPERATORS)]
    return {
        "samples": predictor.samples,
        "training_s": round(training_s, 2),
        "model_bytes": len(predictor.to_bytes()),
        "graph_operators": _GRAPH_OPERATORS,
        "graph_distinct": len({id(description) for description in graph}),
        "graph_ms": _time_ms(predictor, graph),
        "all_distinct_ms": _time_ms(predictor, distinct),
    }


def _time_ms(predictor: Predictor, graph: list[Description]) -> float:
    durations = []
    for _ in range(5):
        started_s = perf_counter()
        predictor.predict(graph)
        durations.append(perf_counter() - started_s)
    return round(1000 * median(durations), 1)


def _line(row: dict[str, Any]) -> str:
    head = str(row.get("network") or row.get("kind") or "cost")
    return f"{head:<58} " + ", ".join(f"{name} {value}" for name, value in row.items() if name not in _HEADS)


_HEADS = ("network", "kind")

if __name__ == "__main__":
    run(main)
