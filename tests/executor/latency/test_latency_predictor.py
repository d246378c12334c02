"""The predictor learns, is deterministic, survives its file, and predicts a latency for any operator."""

import json
import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load, save

from indb_tensile.errors import DataError
from indb_tensile.executor.capture.optimizer import OptimizerSettings
from indb_tensile.executor.capture.step_capture import capture_training
from indb_tensile.executor.latency.latency_predictor import (
    FEWEST_SAMPLES,
    MeasuredOperator,
    Predictor,
    predict_latencies,
    read_predictor,
    read_samples,
    train,
    write_samples,
)
from indb_tensile.scheduler.timing.latency import DeviceSpeed, estimate
from indb_tensile.scheduler.timing.operator_features import Description, rooflines_ns
from tests.scheduler.descriptions import dense, descriptions, elementwise

SPEED = DeviceSpeed(flops_per_s=10**11, bytes_per_s=10**10, launch_ns=5_000)
_COST = {"aten.relu.default": 1.5, "aten.tanh.default": 12.0, "aten.mm.default": 4.0}


def _true_latency_ns(description: Description, utilisation: float = 0.0) -> int:
    """Return the latency on an invented device.

    Each kind of operator is slower than its roofline by its own factor, thin products by another factor.
    """
    factor = _COST[description.name] * (1 + utilisation)
    if description.name == "aten.mm.default" and min(description.outputs[0].shape) < 16:
        factor *= 5
    return round(factor * float(rooflines_ns([description], SPEED)[0]))


def _random_samples(count: int, seed: int, *, crowded: bool = False) -> list[MeasuredOperator]:
    source = random.Random(seed)
    samples = []
    for _ in range(count):
        name = source.choice(sorted(_COST))
        if name == "aten.mm.default":
            description = dense(*(round(2 ** source.uniform(1, 11)) for _ in range(3)))
        else:
            description = elementwise(round(2 ** source.uniform(4, 24)), name)
        utilisation = float(crowded and source.random() < 0.5)
        latency_ns = round(_true_latency_ns(description, utilisation) * source.uniform(0.9, 1.1))
        samples.append(MeasuredOperator(description=description, latency_ns=latency_ns, utilisation=utilisation))
    return samples


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    return train(_random_samples(800, seed=1, crowded=True), SPEED)


@cache  # made by the first test that needs it: every test process imports this module
def _small_predictor() -> Predictor:
    return train(_random_samples(FEWEST_SAMPLES, seed=6), SPEED)


def _r2(samples: list[MeasuredOperator], latency_ns: np.ndarray) -> float:
    measured = np.log([sample.latency_ns for sample in samples])
    return float(1 - ((measured - np.log(latency_ns)) ** 2).sum() / ((measured - measured.mean()) ** 2).sum())


def test_unseen_operators_are_predicted_far_better_than_by_the_roofline(predictor: Predictor) -> None:
    fresh = _random_samples(300, seed=2)
    descriptions = [sample.description for sample in fresh]
    roofline = _r2(fresh, rooflines_ns(descriptions, SPEED))
    assert roofline < 0.8
    assert _r2(fresh, predictor.predict(descriptions)) > 0.97


def test_a_busy_device_is_predicted_to_be_slower(predictor: Predictor) -> None:
    descriptions = [sample.description for sample in _random_samples(100, seed=3)]
    ratio = predictor.predict(descriptions, utilisation=1.0) / predictor.predict(descriptions)
    assert 1.6 < np.median(ratio) < 2.4


def test_the_prediction_for_an_unseen_kind_stays_within_the_learned_ratios(predictor: Predictor) -> None:
    unknown = replace(elementwise(1 << 20), name="aten.unheard_of.default")
    ratio = predictor.predict([unknown])[0] / rooflines_ns([unknown], SPEED)[0]
    assert 0.25 < ratio < 50


def test_equal_samples_and_seeds_give_equal_models_and_leave_the_random_number_generator_unchanged() -> None:
    samples = _random_samples(60, seed=4)
    torch.manual_seed(11)
    before = torch.get_rng_state()
    first, second, other = (train(samples, SPEED, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    assert first.to_bytes() == second.to_bytes()
    assert first.to_bytes() != other.to_bytes()


def test_a_model_survives_its_file_bit_for_bit(predictor: Predictor) -> None:
    data = predictor.to_bytes()
    again = Predictor.from_bytes(data)
    descriptions = [sample.description for sample in _random_samples(200, seed=5)]
    assert again.to_bytes() == data
    assert np.array_equal(again.predict(descriptions, 0.5), predictor.predict(descriptions, 0.5))
    assert (again.speed, again.kinds, again.samples) == (SPEED, tuple(sorted(_COST)), 800)
    assert len(data) < 5_000_000


@given(st.lists(descriptions(), max_size=4), st.floats(0, 1))
def test_any_operator_has_a_positive_finite_latency(operators: list[Description], utilisation: float) -> None:
    latency_ns = _small_predictor().predict(operators, utilisation)
    assert latency_ns.shape == (len(operators),)
    assert latency_ns.dtype == np.int64
    assert (latency_ns >= 1).all()


@given(st.lists(descriptions(), min_size=1, max_size=4), st.data())
def test_a_graph_is_predicted_operator_by_operator(operators: list[Description], data: st.DataObject) -> None:
    graph = data.draw(st.lists(st.sampled_from(operators), min_size=1, max_size=12))
    alone = np.array([_small_predictor().predict([description])[0] for description in graph])
    # A product sums its rows in another order if the product has more rows.
    assert np.allclose(_small_predictor().predict(graph), alone, rtol=1e-4, atol=1)


def test_written_samples_are_read_again_and_malformed_samples_are_refused() -> None:
    samples = _random_samples(20, seed=8, crowded=True)
    assert read_samples(write_samples(samples)) == samples
    for text in ("{", "[1, 2]", '[1, 0.0, "{}"]', '["x", 0.0, "{}"]', "7", "null"):
        with pytest.raises(DataError):
            read_samples(text)


def test_latencies_are_estimated_without_a_predictor_and_predicted_with_one() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Linear(16, 5))
    x, y = torch.empty(8, 6), torch.empty(8, dtype=torch.int64)
    step = capture_training(module, torch.nn.CrossEntropyLoss(), x, y, OptimizerSettings())
    described = [step.descriptions[operator.signature] for operator in step.graph.operators]
    assert predict_latencies(step.graph, step.descriptions, SPEED, None) == estimate(step.graph, SPEED)
    latency_ns = predict_latencies(step.graph, step.descriptions, SPEED, _small_predictor())
    assert latency_ns == tuple(_small_predictor().predict(described).tolist())


def test_an_unreadable_predictor_is_none_and_a_warning_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert read_predictor(b"garbage") is None
    assert "estimated, not predicted" in caplog.text
    again = read_predictor(_small_predictor().to_bytes())
    assert again is not None
    assert again.to_bytes() == _small_predictor().to_bytes()


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(DataError, match="49 measured operators are too few"):
        train(_random_samples(FEWEST_SAMPLES - 1, seed=7), SPEED)


def _changed_file(**arrays: np.ndarray | None) -> bytes:
    saved = {**load(_small_predictor().to_bytes()), **arrays}
    return save({name: array for name, array in saved.items() if array is not None})


def _file_about(**changes: object) -> bytes:
    about = json.loads(load(_small_predictor().to_bytes())["about"].tobytes()) | changes
    return _changed_file(about=np.frombuffer(json.dumps(about).encode(), dtype=np.uint8))


def _changed_array(name: str, change: Callable[[np.ndarray], np.ndarray]) -> bytes:
    return _changed_file(**{name: change(load(_small_predictor().to_bytes())[name])})


def _with_fewer_features() -> bytes:
    whole = load(_small_predictor().to_bytes())
    return _changed_file(centre=whole["centre"][:-1], spread=whole["spread"][:-1])


_WRONG_FILES: dict[str, Callable[[], bytes]] = {
    "nothing": lambda: b"",
    "noise": lambda: bytes(range(256)) * 8,
    "a huge header": lambda: (2**60).to_bytes(8, "little") + b"{}",
    "half a file": lambda: _small_predictor().to_bytes()[:-100],
    "no description": lambda: _changed_file(about=None),
    "a description that is not JSON": lambda: _changed_file(about=np.zeros(7, dtype=np.uint8)),
    "a description of something else": lambda: _changed_file(about=np.frombuffer(b"[]", dtype=np.uint8)),
    "another format": lambda: _file_about(format=2),
    "endless ratios": lambda: _file_about(ratios=[0.0, float("inf")]),
    "ratios that are not numbers": lambda: _file_about(ratios=[float("nan"), 1.0]),
    "no speed": lambda: _file_about(speed=[0, 1, 1]),
    "one kind too many": lambda: _file_about(kinds=[*_COST, "aten.more.default"]),
    "weights that are not numbers": lambda: _changed_array("weight0", lambda weights: np.full_like(weights, np.nan)),
    "weights of 64 bits": lambda: _changed_array("weight0", lambda weights: weights.astype(np.float64)),
    "other features": _with_fewer_features,
    "no spread": lambda: _changed_array("spread", np.zeros_like),
    "a missing layer": lambda: _changed_file(weight2=None, bias2=None),
    "a missing bias": lambda: _changed_file(bias1=None),
}


@pytest.mark.parametrize("fault", _WRONG_FILES)
def test_a_file_that_is_not_a_predictor_is_refused_with_the_way_out(fault: str) -> None:
    with pytest.raises(DataError, match=r"not a latency predictor of format 1: ") as caught:
        Predictor.from_bytes(_WRONG_FILES[fault]())
    assert caught.value.hint == "Remove the file: a controller trains another predictor."


def test_huge_weights_give_latencies_within_the_ratios() -> None:
    huge = np.full_like(load(_small_predictor().to_bytes())["weight1"], 3e38)
    predictor = Predictor.from_bytes(_changed_file(weight1=huge))
    descriptions = [dense(8, 16, 32), elementwise(1 << 30)]
    ratio = np.log(predictor.predict(descriptions) / rooflines_ns(descriptions, SPEED))
    assert (ratio > predictor.ratios[0] - 0.01).all()
    assert (ratio < predictor.ratios[1] + 0.01).all()


@given(st.integers(0, 100_000), st.integers(0, 255))
def test_a_file_with_one_wrong_byte_is_refused_or_gives_finite_latencies(position: int, value: int) -> None:
    data = bytearray(_small_predictor().to_bytes())
    data[position % len(data)] = value
    try:
        predictor = Predictor.from_bytes(bytes(data))
    except DataError:
        return
    assert (predictor.predict([dense(8, 16, 32), elementwise(1 << 30)]) >= 1).all()
