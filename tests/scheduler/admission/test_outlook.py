"""What is foretold for a job that is not queued yet, against what `decide()` then does with it."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.job import JobId
from indb_tensile.scheduler.admission.completion_rule import demand_of
from indb_tensile.scheduler.admission.events import Capture, Departure, Finish
from indb_tensile.scheduler.admission.outlook import foretell_start, outlook_of
from indb_tensile.scheduler.admission.pool import JobStage, Member, Sharing
from indb_tensile.scheduler.completion.contention import Contention, of_cores
from tests.scheduler.admission.fake_controller import FakeController, graph, job
from tests.scheduler.admission.test_completion_rule import TimedPlanner

_SLOW = TimedPlanner(slowdown=4.0, planned_slowdown=4.0)
_FAST = TimedPlanner(slowdown=1.1, planned_slowdown=1.1)


def _controller(planner: TimedPlanner, regions: int = 8, **rules: Any) -> FakeController:
    defaults: dict[str, Any] = {"sharing": Sharing.COMPLETION, "entering_jobs": 8}
    defaults["contention"] = Contention(points=((1, 1.0), (8, 1.0)))
    return FakeController(regions, planner, **(defaults | rules))


def _capture(controller: FakeController, number: int, regions: int, steps: float) -> Member:
    trainer = controller.claim(job(number))
    controller.send(Capture(trainer=trainer, graphs=(graph(regions),), latency_ns=((1000,),), unknown=0, steps=steps))
    controller.adopt_all()
    member = controller.pool.of_trainer(trainer)
    assert member is not None
    return member


@given(
    st.sampled_from([_SLOW, _FAST]),
    st.lists(st.tuples(st.integers(1, 8), st.integers(1, 500)), min_size=1, max_size=4),
)
def test_a_job_that_is_foretold_to_wait_does_not_start(planner: TimedPlanner, jobs: list[tuple[int, int]]) -> None:
    controller = _controller(planner)
    *others, (regions, steps) = jobs
    for number, (size, left) in enumerate(others):
        _capture(controller, number, size, left)
    outlook = outlook_of(controller.pool)
    assert outlook is not None
    stages = {m.job.job: m.stage for m in controller.pool.members}
    member = _capture(controller, 9, regions, steps)
    forecast = foretell_start(outlook, demand_of(controller.pool, member))
    assert forecast is not None
    started = member.stage is JobStage.RUNNING
    others_stay = stages == {m.job.job: m.stage for m in controller.pool.members if m.job.job != 9}
    # Real plans may refuse a start that was foretold, but never allow one that was not.
    assert forecast.starts or not started or not others_stay
    assert forecast.end_ns >= steps * 1000
    assert len(forecast.slowdowns) == (len(outlook.running) if forecast.starts else 0)


def test_a_job_that_would_slow_all_down_waits_and_one_that_fits_slows_nobody_down() -> None:
    controller = _controller(_SLOW, regions=4)
    first = _capture(controller, 1, 3, 100.0)
    outlook = outlook_of(controller.pool)
    assert outlook is not None
    large = foretell_start(outlook, replace(demand_of(controller.pool, first), steps=10.0, steps_left=10.0))
    assert large is not None
    assert (large.starts, large.slowdowns, large.ahead) == (False, (), 0)
    small = replace(demand_of(controller.pool, first).trade_offs[-1], peak_bytes=1 << 20)
    fitting = foretell_start(outlook, replace(demand_of(controller.pool, first), trade_offs=(small,)))
    assert fitting is not None
    assert (fitting.starts, fitting.slowdowns) == (True, ((JobId(1), 1.0),))


@pytest.mark.parametrize(("on_device", "later_ns"), [(False, 0), (True, 250)])
def test_a_job_that_closes_delays_the_next_one_where_it_computes_on_the_device(
    on_device: bool, later_ns: int
) -> None:
    controller = _controller(_FAST, contention=of_cores(1, 1), prepares_on_device=on_device)
    first, second = _capture(controller, 1, 4, 10.0), _capture(controller, 2, 4, 10.0)
    next_job = replace(demand_of(controller.pool, first), startup_ns=0.0, closing_ns=0.0)
    assert first.trainer is not None
    controller.send(Finish(trainer=first.trainer, closing_ns=500))
    controller.adopt_all()
    assert second.trainer is not None
    controller.send(Departure(trainer=second.trainer))
    outlook = outlook_of(controller.pool)
    assert outlook is not None
    assert outlook.device.closing_ns == ((500.0,) if on_device else ())
    forecast = foretell_start(outlook, next_job)
    assert forecast is not None
    assert forecast.end_ns == pytest.approx(10_000 + later_ns), "half of its speed for 500 ns"


def test_a_job_that_can_never_run_has_no_forecast() -> None:
    controller = _controller(_SLOW, regions=4)
    first = _capture(controller, 1, 4, 100.0)
    outlook = outlook_of(controller.pool)
    assert outlook is not None
    huge = replace(demand_of(controller.pool, first).trade_offs[0], peak_bytes=1 << 40)
    assert foretell_start(outlook, replace(demand_of(controller.pool, first), trade_offs=(huge,))) is None


@pytest.mark.parametrize("rules", [{"sharing": Sharing.ANY_PRICE}])
def test_there_is_no_outlook_where_another_rule_decides(rules: dict[str, Any]) -> None:
    controller = _controller(_SLOW, **rules)
    _capture(controller, 1, 4, 100.0)
    assert outlook_of(controller.pool) is None
