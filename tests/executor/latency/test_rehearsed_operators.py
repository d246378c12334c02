"""Between rehearsed exchanges the operators of the step run, as far as there is memory, and products for the rest."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from indb_tensile.executor.capture.passes import Passes
from indb_tensile.executor.capture.rank_share import RankShare
from indb_tensile.executor.capture.record import Call
from indb_tensile.executor.capture.step_capture import CapturedStep
from indb_tensile.executor.latency.operator_turns import PreparedCall, accessed_bytes
from indb_tensile.executor.latency.rehearsed_operators import Products, RehearsedOperators
from indb_tensile.scheduler.graph import Operator, Stage
from tests.executor.conftest import DEFAULTS, job_of
from tests.executor.ranks.rank_steps import steps_of

ENOUGH = 1 << 30
Work = list[tuple[Operator, Call, int]]


@pytest.fixture(scope="module")
def step() -> CapturedStep:
    return steps_of(job_of("mlp", 0, DEFAULTS, Passes(micro_batch_size=2)), RankShare(rank=0, ranks=2))[0]


def work_of(step: CapturedStep) -> Work:
    """Return the operators that exchange nothing, of which each takes another time."""
    pairs = zip(step.steps, step.graph.operators, strict=True)
    return [
        (operator, own.kernel, 1_000 + number)
        for number, (own, operator) in enumerate(pairs)
        if operator.starts is None and operator.awaits is None and operator.stage is not Stage.UPLOAD
    ]


def test_with_enough_memory_all_operators_run_in_order(step: CapturedStep, monkeypatch: pytest.MonkeyPatch) -> None:
    work, ran = work_of(step), []
    computation = RehearsedOperators(step, ENOUGH).computation(work)
    assert computation.replaced_ns == 0
    monkeypatch.setattr(PreparedCall, "run", lambda call: ran.append(call))
    computation.run(Products())
    assert ran == list(computation.calls)
    assert len(ran) == len(work)
    signatures = [call.signature for _, call, _ in work]
    assert [ran.index(call) for call in ran] == [signatures.index(signature) for signature in signatures]


@pytest.mark.parametrize("room_bytes", [0, *(1 << exponent for exponent in range(4, 18))])
def test_operators_without_memory_are_replaced_by_their_time(step: CapturedStep, room_bytes: int) -> None:
    work = work_of(step)
    operators = RehearsedOperators(step, room_bytes)
    alone = [(item, operators.computation([item])) for item in work]
    for (_, _, ns), computation in alone:
        assert (len(computation.calls), computation.replaced_ns) in {(1, 0), (0, ns)}
    kept = {call.signature: accessed_bytes(step, call) for (_, call, _), computation in alone if computation.calls}
    assert sum(kept.values()) <= room_bytes
    together = operators.computation(work)
    assert together.replaced_ns == sum(computation.replaced_ns for _, computation in alone)


def test_workspace_counts(step: CapturedStep) -> None:
    operator, call, ns = work_of(step)[0]
    room_bytes = accessed_bytes(step, call)
    wide = replace(operator, workspace_bytes=1)
    assert RehearsedOperators(step, room_bytes).computation([(operator, call, ns)]).replaced_ns == 0
    assert RehearsedOperators(step, room_bytes).computation([(wide, call, ns)]).replaced_ns == ns


def test_operator_that_fails_on_made_inputs_is_replaced(step: CapturedStep, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Any) -> None:
        raise RuntimeError("index out of range")

    monkeypatch.setattr(PreparedCall, "run", fail)
    work = work_of(step)
    computation = RehearsedOperators(step, ENOUGH).computation(work)
    assert (list(computation.calls), computation.replaced_ns) == ([], sum(ns for _, _, ns in work))


def test_products_take_the_time_of_replaced_operators(step: CapturedStep, monkeypatch: pytest.MonkeyPatch) -> None:
    products, counts = Products(), []
    products.one_ns = 100
    monkeypatch.setattr(torch, "mm", lambda *_, **__: counts.append(1))
    RehearsedOperators(step, 0).computation(work_of(step)[:3]).run(products)
    assert len(counts) == round(sum(ns for _, _, ns in work_of(step)[:3]) / 100)
