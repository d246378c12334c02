"""The benchmark evaluates a network by exactly the operators that the predictor's training does not contain."""

import json
import math
import random
from typing import Any

import pytest

from indb_tensile.bench.commands.predictor import MeasuredNetwork, rows
from indb_tensile.device.hardware import PROCESSOR_SPEED
from indb_tensile.executor.latency.latency_predictor import MeasuredOperator
from indb_tensile.scheduler.timing.operator_features import Description, rooflines_ns
from tests.scheduler.descriptions import dense, elementwise


def _sample(description: Description, factor: float = 1.0, utilisation: float = 0.0) -> MeasuredOperator:
    """Return products with four times their roofline and other operators with twice.

    On a busy device both are slower.
    """
    slower = (4 if description.name == "aten.mm.default" else 2) * (1 + utilisation) * factor
    latency_ns = round(slower * float(rooflines_ns([description], PROCESSOR_SPEED)[0]))
    return MeasuredOperator(description=description, latency_ns=latency_ns, utilisation=utilisation)


def _descriptions(seed: int, count: int) -> list[Description]:
    source = random.Random(seed)
    return [
        dense(*(source.randint(2, 500) for _ in range(3)))
        if source.random() < 0.5
        else elementwise(round(math.exp(source.uniform(9, 17))))
        for _ in range(count)
    ]


def _network(name: str, described: list[Description]) -> MeasuredNetwork:
    samples = {repr(description): _sample(description) for description in described}
    return MeasuredNetwork(name=name, order=tuple(samples), samples=samples)


@pytest.fixture(scope="module")
def report_rows() -> list[dict[str, Any]]:
    samples = tuple(_sample(d, utilisation=float(k % 4 == 3)) for k, d in enumerate(_descriptions(0, 600)))
    first, second = _descriptions(1, 60), _descriptions(2, 60)
    networks = [
        _network("first", first),
        _network("second", [*second, *first[:10]]),
        _network("a part of the first", first[10:20]),
    ]
    return list(rows(samples, networks))


@pytest.mark.nightly
def test_each_network_is_evaluated_by_its_new_operators(report_rows: list[dict[str, Any]]) -> None:
    assert [(row["network"], row["operators"]) for row in report_rows if "network" in row] == [
        ("first", 40),
        ("second", 60),
        ("all", 100),
    ]
    kinds = {row["kind"]: row["operators"] for row in report_rows if "kind" in row}
    assert sorted(kinds) == ["aten.mm.default", "aten.relu.default"]
    assert sum(count for count in kinds.values()) == 100


# By day tests/executor/latency/test_latency_predictor.py predicts latencies of unseen operators.
@pytest.mark.nightly
def test_learnable_latencies_are_predicted_better_than_by_the_estimate(report_rows: list[dict[str, Any]]) -> None:
    row = next(row for row in report_rows if row.get("network") == "all")
    for learned in ("r2", "r2_survey", "r2_linear"):
        assert row[learned] > 0.98
    assert row["r2_roofline"] < 0.9
    assert row["r2_crowded"] > 0.95 > row["r2_crowded_untold"]


@pytest.mark.nightly
def test_the_last_row_has_the_cost_of_predicting_a_graph(report_rows: list[dict[str, Any]]) -> None:
    cost = report_rows[-1]
    assert (cost["graph_operators"], cost["graph_distinct"], cost["samples"]) == (10_000, 120, 740)
    assert 0 < cost["model_bytes"] < 5_000_000
    assert all(json.loads(json.dumps(row)) == row for row in report_rows)
