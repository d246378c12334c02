"""The optimizer's state is divided among devices where that is foretold to be faster, and stays whole otherwise."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from indb_tensile.executor.capture.storage_layout import Value
from indb_tensile.job import JobId
from indb_tensile.scheduler.graph import Operator, Role, Stage, StepGraph, Tensor, TensorId
from indb_tensile.scheduler.link import FREE_COPIES, CopyLoss, Link
from indb_tensile.scheduler.memory.peak import liveness_peak
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.policies import DEFAULT_POLICY
from indb_tensile.scheduler.timing.job_runs import JobRun
from indb_tensile.scheduler.timing.simulate_ranks import RankRun
from worker.training.state_choice import StateChoice, choose_state, tell_state

SLOW = Link(out_bytes_per_s=1_000_000, in_bytes_per_s=1_000_000)
PARAMETER_BYTES, ACTIVATION_BYTES, STATE_BYTES = 1000, 3000, 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """The training step of a network with one parameter, of whose optimizer's state a device keeps `state_bytes`."""

    state_bytes: int
    exchange_ns: int = 0
    copy_loss: CopyLoss = FREE_COPIES

    @property
    def graphs(self) -> tuple[StepGraph, ...]:
        sizes = {
            "parameter": (PARAMETER_BYTES, Role.PARAMETER),
            "activation": (ACTIVATION_BYTES, Role.ACTIVATION),
            "gradient": (PARAMETER_BYTES, Role.ACTIVATION),
            "state": (self.state_bytes, Role.OPTIMIZER_STATE),
        }
        parameter, activation, gradient, state = map(TensorId, range(4))
        tensors = tuple(
            Tensor(id=TensorId(number), name=name, size_bytes=size_bytes, role=role)
            for number, (name, (size_bytes, role)) in enumerate(sizes.items())
            if size_bytes
        )
        kept = (state,) if self.state_bytes else ()
        calls = (
            (Stage.FORWARD, (parameter,), (activation,)),
            (Stage.BACKWARD, (parameter, activation), (gradient,)),
            (Stage.OPTIMIZER, (gradient, parameter, *kept), (parameter, *kept)),
        )
        operators = tuple(
            Operator(name=stage.value, signature=stage.value, stage=stage, reads=reads, writes=writes)
            for stage, reads, writes in calls
        )
        return (StepGraph(tensors=tensors, operators=operators),)

    @property
    def latency_ns(self) -> tuple[tuple[int, ...], ...]:
        return ((1000, 1000, 1000 + self.exchange_ns),)

    def rank_run(self, plan: Plan, *, link: Link, host: str) -> RankRun:
        (graph,), (latency_ns,) = self.graphs, self.latency_ns
        run = JobRun(graph=graph, plan=plan, latency_ns=latency_ns, copy_loss=self.copy_loss)
        return RankRun(run=run, exchanges=(), link=link, host=host)


def choice(
    whole_bytes: int,
    divided_bytes: int,
    *budgets_bytes: int,
    exchange_ns: int = 10,
    link: Link = SLOW,
    copy_loss: CopyLoss = FREE_COPIES,
) -> StateChoice:
    return choose_state(
        JobId(1),
        Steps(state_bytes=whole_bytes, copy_loss=copy_loss),
        lambda: Steps(state_bytes=divided_bytes, exchange_ns=exchange_ns, copy_loss=copy_loss),
        budgets=[("here", size_bytes) for size_bytes in budgets_bytes],
        link=link,
        policy=DEFAULT_POLICY,
    )


def test_the_state_is_divided_where_the_whole_state_would_have_to_be_swapped() -> None:
    divided_bytes = STATE_BYTES // 2
    enough_bytes = liveness_peak(Steps(state_bytes=STATE_BYTES).graphs[0])
    fits = choice(STATE_BYTES, divided_bytes, enough_bytes)
    assert (fits, fits.reason) == (StateChoice(divides=False, budget_bytes=enough_bytes), "")

    tight = choice(STATE_BYTES, divided_bytes, liveness_peak(Steps(state_bytes=divided_bytes).graphs[0]))
    assert (tight.divides, tight.divided_ns) == (True, 3010)
    assert tight.whole_ns is not None
    assert tight.whole_ns > 3010
    assert "with the state divided an iteration is foretold to take 0.00301 ms, with the whole" in tight.reason

    too_large = choice(STATE_BYTES, divided_bytes, PARAMETER_BYTES)
    assert (too_large.divides, too_large.whole_ns, too_large.divided_ns) == (False, None, None)
    only_divided = choice(STATE_BYTES, divided_bytes, 2 * PARAMETER_BYTES + ACTIVATION_BYTES)
    assert (only_divided.divides, only_divided.whole_ns) == (True, None)


def test_the_slowest_device_of_all_decides() -> None:
    """The whole state has to be swapped on the second device alone, whatever the first one has."""
    divided_bytes = STATE_BYTES // 2
    tight_bytes = liveness_peak(Steps(state_bytes=divided_bytes).graphs[0])
    enough_bytes = liveness_peak(Steps(state_bytes=STATE_BYTES).graphs[0])
    alone, both = (
        choice(STATE_BYTES, divided_bytes, tight_bytes),
        choice(STATE_BYTES, divided_bytes, enough_bytes, tight_bytes),
    )
    assert both == alone
    assert both.divides


def test_the_state_stays_whole_where_dividing_saves_no_time() -> None:
    budget_bytes = liveness_peak(Steps(state_bytes=0).graphs[0]) - PARAMETER_BYTES
    assert not choice(0, 0, budget_bytes).divides


def test_the_state_is_divided_where_copies_take_the_processor_from_operators() -> None:
    """Copies are fast enough to be hidden, and an exchange takes longer than they would be waited for."""
    divided_bytes, fast = STATE_BYTES // 2, Link(out_bytes_per_s=10**13, in_bytes_per_s=10**13)
    tight_bytes = liveness_peak(Steps(state_bytes=divided_bytes).graphs[0])
    free, costly = (
        choice(STATE_BYTES, divided_bytes, tight_bytes, exchange_ns=500, link=fast, copy_loss=loss)
        for loss in (FREE_COPIES, CopyLoss(per_copy_ns=400))
    )
    assert (free.divides, costly.divides) == (False, True)


class History:
    """Keeps what is told."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Mapping[str, Any]]] = []

    def tell(self, kind: str, detail: Mapping[str, Any]) -> None:
        self.events.append((kind, detail))


def test_an_event_says_how_much_state_a_device_keeps() -> None:
    value = Value(name="optimizer/exp_avg/0.weight", shape=(256, 4), stride=(4, 1), offset=0, dtype=torch.float32)
    divided = [(value, 0), (replace(value, shape=(256, 2)), 1)]
    history = History()
    tell_state(history, divided, divides=True, reason="")
    tell_state(history, divided, divides=False, reason="")
    tell_state(history, divided, divides=False, reason="both are equally fast")
    sizes = {"device_bytes": 4096, "whole_bytes": 6144}
    assert history.events == [
        (
            "optimizer_state",
            {"message": "a device keeps 4.0 kB of the optimizer's state, of 6.0 kB in all", "divided": True} | sizes,
        ),
        (
            "optimizer_state",
            {
                "message": "a device keeps 6.0 kB of the optimizer's state, all of it: both are equally fast",
                "divided": False,
            }
            | sizes
            | {"device_bytes": 6144},
        ),
    ]
