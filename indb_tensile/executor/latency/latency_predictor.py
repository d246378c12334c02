"""The latency predictor: one small neural network that predicts the latency of all operators from their inputs.

TENSILE section IV-A trains a network of four layers for each of 40 kinds of operator (321 MB, 1.4 to 2.5 s for a
job's graph). Here one network of three layers serves all kinds. Its inputs are the kind of operator (one input for
each kind in the training data, all zero for a new kind), the operator's features
(scheduler/timing/operator_features.py) and the device's utilisation. Its output is the logarithm of the ratio between
latency and roofline estimate. The network therefore learns from all kinds together, predicts an unknown operator near
its roofline, and scales an operator larger than any measured with its roofline.

Prediction needs only numpy. The file holds arrays and JSON, and no code.
"""

import json
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from indb_tensile.errors import DataError
from indb_tensile.scheduler.graph import StepGraph
from indb_tensile.scheduler.timing.latency import DeviceSpeed, estimate
from indb_tensile.scheduler.timing.operator_features import (
    WIDTH,
    Description,
    matrix,
    read_description,
    rooflines_ns,
    write_description,
)

FORMAT = 1
FEWEST_SAMPLES = 50  # fewer samples cannot distinguish operators

_HIDDEN = 96
_EPOCHS = 40
_BATCH = 512
_RATE = 6e-3
_DECAY = 1e-2
_HUBER = 0.3  # standard deviations; larger errors count linearly, since other programs disturb some measurements
_FARTHEST = 4.0  # standard deviations; features are clipped there
_MARGIN = math.log(4.0)  # how far predictions may lie outside the measured ratios

_MOST = 2**63

_log = logging.getLogger(__name__)

_Rows = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredOperator:
    """One measured operator. `utilisation` is the share of the device that others used meanwhile, from 0 to 1."""

    description: Description
    latency_ns: int
    utilisation: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Predictor:
    """A trained network. `ratios` bound the logarithm of latency over estimate that it may return."""

    speed: DeviceSpeed
    kinds: tuple[str, ...]
    samples: int
    ratios: tuple[float, float]
    centre: _Rows
    spread: _Rows
    layers: tuple[tuple[_Rows, _Rows], ...]

    def predict(self, descriptions: Sequence[Description], utilisation: float = 0.0) -> NDArray[np.int64]:
        """Return the nanoseconds of each operator, at least 1, on a device of which others use `utilisation`.

        A description that occurs several times as one object is computed once.
        """
        position: dict[int, int] = {}
        places = [position.setdefault(id(description), len(position)) for description in descriptions]
        distinct = list({id(description): description for description in descriptions}.values())
        return self._predict(distinct, utilisation)[places]

    @np.errstate(over="ignore", invalid="ignore")  # weights of a damaged file may overflow; `ratios` bounds results
    def _predict(self, descriptions: Sequence[Description], utilisation: float) -> NDArray[np.int64]:
        rows = (features(descriptions, np.full(len(descriptions), utilisation)) - self.centre) / self.spread
        rows = np.clip(rows, -_FARTHEST, _FARTHEST)
        kind_index = {kind: k for k, kind in enumerate(self.kinds)}
        known = np.array([kind_index.get(d.name, len(kind_index)) for d in descriptions], dtype=np.int64)
        (first, bias), *deeper = self.layers
        # A kind's input is 1 and all others are 0, so its weights are one row to add. A new kind adds a row of zeros.
        of_kind = np.vstack([first[rows.shape[1] :], np.zeros_like(bias)[None]])
        values = rows @ first[: rows.shape[1]] + of_kind[known] + bias
        for weight, bias in deeper:
            values = _silu(values) @ weight + bias
        ratio = np.clip(np.nan_to_num(values[:, 0].astype(np.float64)), *self.ratios)
        latency_ns = rooflines_ns(descriptions, self.speed) * np.exp(ratio)
        rounded: NDArray[np.int64] = np.clip(np.rint(latency_ns), 1, 2.0**62).astype(np.int64)
        return rounded

    def to_bytes(self) -> bytes:
        """Return the model as the bytes of one file."""
        about = {
            "format": FORMAT,
            "speed": [self.speed.flops_per_s, self.speed.bytes_per_s, self.speed.launch_ns],
            "kinds": self.kinds,
            "samples": self.samples,
            "ratios": self.ratios,
        }
        arrays = {"centre": self.centre, "spread": self.spread}
        for number, (weight, bias) in enumerate(self.layers):
            arrays |= {f"weight{number}": weight, f"bias{number}": bias}
        text = np.frombuffer(json.dumps(about).encode(), dtype=np.uint8)
        return save({**{name: np.ascontiguousarray(array) for name, array in arrays.items()}, "about": text})

    @classmethod
    def from_bytes(cls, data: bytes) -> "Predictor":
        """Read a model from the bytes of a file. Raise DataError if they are not a model of this version."""
        try:
            return _read(load(data))
        except (SafetensorError, ValueError, TypeError, KeyError, IndexError, UnicodeError, RecursionError) as error:
            raise DataError(
                f"the file is not a latency predictor of format {FORMAT}: {type(error).__name__}: {error}",
                hint="Remove the file: a controller trains another predictor.",
            ) from error


def write_samples(samples: Iterable[MeasuredOperator]) -> str:
    """Return the samples as JSON, one line each."""
    rows = ([s.latency_ns, s.utilisation, write_description(s.description)] for s in samples)
    return "".join(json.dumps(row) + "\n" for row in rows)


def read_samples(text: str) -> list[MeasuredOperator]:
    """Read samples from JSON lines. Raise DataError if the text is not valid."""
    try:
        rows = [json.loads(line) for line in text.splitlines()]
        return [
            MeasuredOperator(
                description=read_description(described), latency_ns=int(latency_ns), utilisation=float(utilisation)
            )
            for latency_ns, utilisation, described in rows
        ]
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise DataError(f"measured operators cannot be read: {type(error).__name__}: {error}") from error


def read_predictor(data: bytes) -> Predictor | None:
    """Read a model, or log a warning and return None if the file is damaged or of another version."""
    try:
        return Predictor.from_bytes(data)
    except DataError as error:
        _log.warning("operators are estimated, not predicted: %s", error.message)
        return None


def predict_latencies(
    graph: StepGraph, descriptions: Mapping[str, Description], speed: DeviceSpeed, predictor: Predictor | None
) -> tuple[int, ...]:
    """Return the nanoseconds of each operator of the graph, predicted or, without a predictor, estimated."""
    if predictor is None:
        return estimate(graph, speed)
    predicted_ns = predictor.predict([descriptions[operator.signature] for operator in graph.operators])
    return tuple(map(int, predicted_ns))


def features(descriptions: Sequence[Description], utilisation: NDArray[np.float64]) -> _Rows:
    """Return the network's inputs except the kind, one row per operator."""
    return np.column_stack([matrix(descriptions), utilisation]).astype(np.float32)


def _silu(values: _Rows) -> _Rows:
    activated: _Rows = values / (1 + np.exp(-np.maximum(values, -80)))
    return activated


def _read(arrays: dict[str, Any]) -> Predictor:
    about = json.loads(arrays.pop("about").tobytes())
    if about["format"] != FORMAT:
        raise ValueError(f"format {about['format']}")
    wrong = [name for name, array in arrays.items() if array.dtype != np.float32 or not np.isfinite(array).all()]
    if wrong:
        raise ValueError(f"{', '.join(sorted(wrong))}: not finite numbers of 32 bits")
    flops_per_s, bytes_per_s, launch_ns = map(int, about["speed"])
    if not (0 < flops_per_s < _MOST and 0 < bytes_per_s < _MOST and 0 <= launch_ns < _MOST):
        raise ValueError(f"a device's speed of {about['speed']}")
    low, high = map(float, about["ratios"])
    if not -100.0 <= low <= high <= 100.0:  # well inside the range in which exp() does not overflow
        raise ValueError(f"ratios from {low} to {high}")
    kinds = tuple(map(str, about["kinds"]))
    layers = tuple((arrays[f"weight{n}"], arrays[f"bias{n}"]) for n in range((len(arrays) - 2) // 2))
    _check_widths(arrays["centre"], arrays["spread"], layers, len(kinds))
    return Predictor(
        speed=DeviceSpeed(flops_per_s=flops_per_s, bytes_per_s=bytes_per_s, launch_ns=launch_ns),
        kinds=kinds,
        samples=int(about["samples"]),
        ratios=(low, high),
        centre=arrays["centre"],
        spread=arrays["spread"],
        layers=layers,
    )


def _check_widths(centre: _Rows, spread: _Rows, layers: Sequence[tuple[_Rows, _Rows]], kinds: int) -> None:
    if centre.shape != (WIDTH + 1,) or spread.shape != centre.shape or not (spread > 0).all():
        raise ValueError(f"{centre.shape} features where {WIDTH + 1} are known")
    width = WIDTH + 1 + kinds
    for weight, bias in layers:
        if weight.shape != (width, *bias.shape) or bias.ndim != 1:
            raise ValueError(f"a layer of {weight.shape} and {bias.shape} on {width} values")
        width = bias.shape[0]
    if width != 1 or not layers:
        raise ValueError(f"{len(layers)} layers that end in {width} values")


# --- training --------------------------------------------------------------------------------------------------


def train(samples: Sequence[MeasuredOperator], speed: DeviceSpeed, *, seed: int = 0) -> Predictor:
    """Train a predictor on these measurements. Equal arguments give equal predictors on one machine.

    Training takes seconds. `speed` gives the estimate that the network corrects. Raises DataError for too few
    samples.
    """
    if len(samples) < FEWEST_SAMPLES:
        raise DataError(f"{len(samples)} measured operators are too few to learn from: {FEWEST_SAMPLES} are needed")
    descriptions = [sample.description for sample in samples]
    raw = features(descriptions, np.array([sample.utilisation for sample in samples]))
    centre, spread = raw.mean(0), raw.std(0)
    spread[spread < 1e-3] = 1.0  # a constant feature carries no information
    kinds = tuple(sorted({description.name for description in descriptions}))
    kind_index = {kind: k for k, kind in enumerate(kinds)}
    of_kind = np.zeros((len(samples), len(kinds)), dtype=np.float32)
    of_kind[np.arange(len(samples)), [kind_index[d.name] for d in descriptions]] = 1.0
    rows = np.column_stack([np.clip((raw - centre) / spread, -_FARTHEST, _FARTHEST), of_kind])
    latency_ns = np.array([max(1, sample.latency_ns) for sample in samples], dtype=np.float64)
    ratio = np.log(latency_ns) - np.log(rooflines_ns(descriptions, speed).clip(min=1.0))
    return Predictor(
        speed=speed,
        kinds=kinds,
        samples=len(samples),
        ratios=(float(ratio.min()) - _MARGIN, float(ratio.max()) + _MARGIN),
        centre=centre,
        spread=spread,
        layers=_fit(rows, ratio, seed),
    )


def _fit(rows: _Rows, ratio: NDArray[np.float64], seed: int) -> tuple[tuple[_Rows, _Rows], ...]:
    """Train the network that predicts `ratio`, and return its weights, with the scale in the last layer."""
    import torch
    from torch import nn

    mean, scale = float(ratio.mean()), float(ratio.std()) or 1.0
    x = torch.from_numpy(rows)
    y = torch.from_numpy(((ratio - mean) / scale).astype(np.float32))
    source = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = [nn.Linear(rows.shape[1], _HIDDEN), nn.Linear(_HIDDEN, _HIDDEN), nn.Linear(_HIDDEN, 1)]
    network = nn.Sequential(layers[0], nn.SiLU(), layers[1], nn.SiLU(), layers[2])
    optimizer = torch.optim.AdamW(network.parameters(), lr=_RATE, weight_decay=_DECAY)
    batches = _EPOCHS * math.ceil(len(x) / _BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _RATE, total_steps=batches)
    loss = nn.SmoothL1Loss(beta=_HUBER)
    for _ in range(_EPOCHS):
        order = torch.randperm(len(x), generator=source)
        for start in range(0, len(x), _BATCH):
            batch = order[start : start + _BATCH]
            optimizer.zero_grad()
            loss(network(x[batch])[:, 0], y[batch]).backward()
            optimizer.step()
            schedule.step()
    weights = [(layer.weight.detach().t().numpy().copy(), layer.bias.detach().numpy().copy()) for layer in layers]
    weight, bias = weights[-1]
    weights[-1] = (weight * np.float32(scale), bias * np.float32(scale) + np.float32(mean))
    return tuple(weights)
