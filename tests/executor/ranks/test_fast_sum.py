"""Check trainings on several devices whose gradients the library adds up: all ranks end with the same bits."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from indb_tensile.executor.capture.exchange_operator import STARTS, start_all_reduce_, start_sum_parts_
from indb_tensile.executor.capture.optimizer import OptimizerSettings
from indb_tensile.executor.capture.passes import Passes
from indb_tensile.executor.capture.rank_share import RankShare, Reduce
from indb_tensile.executor.capture.record import refs
from indb_tensile.executor.capture.step_capture import CapturedStep, capture_training
from indb_tensile.executor.ranks.rank_group import RankGroup
from indb_tensile.executor.ranks.step_exchange import exchanging
from indb_tensile.executor.run.runner import Runner
from indb_tensile.executor.run.state import State
from indb_tensile.request.hyperparam_rules import HYPERPARAMS
from indb_tensile.scheduler.memory.peak import LIVENESS, peak
from tests.device.memory_device import MemoryDevice
from tests.executor.conftest import job_of
from tests.executor.driving import drive, state_bits
from tests.executor.eager import Eager
from tests.executor.models import Job
from tests.executor.plans import random_plans
from tests.executor.ranks.group_kinds import TRAINING_KINDS, GroupKind
from tests.executor.ranks.rank_steps import steps_of
from tests.executor.ranks.rank_threads import on_ranks
from tests.nightly import nightly_unless

SGD = OptimizerSettings(kind="sgd", momentum=0.9, nesterov=True, weight_decay=0.01, clip_norm=0.5)
FAST = Reduce.FAST


def trained_fast(
    job: Job, ranks: int, group_kind: GroupKind
) -> list[tuple[dict[str, bytes], dict[str, torch.Tensor]]]:
    """Train with the sum of the library, each rank under a plan of its own. Return each rank's state, twice."""
    shares = [RankShare(rank=rank, ranks=ranks, reduce=FAST) for rank in range(ranks)]
    steps = [steps_of(job, share) for share in shares]
    plans = [(LIVENESS,) * 3, *(random_plans(steps[rank], rank) for rank in range(1, ranks))]

    def run(rank: int, group: RankGroup) -> tuple[dict[str, bytes], dict[str, torch.Tensor]]:
        device, state = MemoryDevice(), job.state()
        runner = Runner(device, state, steps[rank])
        with exchanging(group):
            runner.adopt(plans[rank], 1)
            drive(runner, job)
        exported = state.export()
        runner.close()
        peaks = [peak(step.graph, plan) for step, plan in zip(steps[rank], plans[rank], strict=True)]
        assert device.high_water_bytes == max(peaks)
        return state_bits(exported), {name: value.clone() for name, value in exported.items()}

    return on_ranks(ranks, run, kind=group_kind)


FAST_CASES = [
    ("mlp", 3, 2),
    *(("mlp", ranks, 1) for ranks in (2, 4)),
    *((k, 3, 2) for k in ("lstm", "tied", "normalised")),
]


@pytest.mark.parametrize("group_kind", TRAINING_KINDS)
@pytest.mark.parametrize(("kind", "ranks", "micro"), nightly_unless(lambda case: case == FAST_CASES[0], FAST_CASES))
def test_fast_sum_gives_all_ranks_the_same_bits_which_are_close_to_those_of_one_device(
    kind: str, ranks: int, micro: int, group_kind: GroupKind
) -> None:
    job = job_of(kind, 0, SGD, Passes(micro_batch_size=micro))
    (first, values), *others = trained_fast(job, ranks, group_kind)
    assert all(bits_of_rank == first for bits_of_rank, _ in others)
    eager = Eager(job)
    drive(eager, job)
    expected = eager.export()
    assert values.keys() == expected.keys()
    for name, value in values.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-3, atol=1e-5, msg=f"{name} of {kind}")


def exchanges(step: CapturedStep) -> list[str]:
    return [operator.name for operator in step.graph.operators if operator.starts is not None]


def test_fast_sum_sends_one_gradient_a_step_in_buckets_and_the_exact_sum_those_of_all_parts() -> None:
    module = nn.Sequential(*(nn.Linear(600, 600) for _ in range(4)), nn.Linear(600, 5))
    batch = (torch.randn(8, 600), torch.randint(0, 5, (8,)))
    passes, share = Passes(micro_batch_size=2), RankShare(rank=0, ranks=2)

    def captured(reduce: Reduce) -> CapturedStep:
        return capture_training(module, nn.CrossEntropyLoss(), *batch, SGD, passes, replace(share, reduce=reduce))

    exact = captured(Reduce.EXACT)
    assert exchanges(exact) == ["tensile.start_sum_parts_.default"] * 5, "four weights, each alone, and the rest"
    summed = [len([*refs(step.kernel.args[:2])]) for step in exact.steps if step.kernel.target is start_sum_parts_]
    assert summed == [2, 2, 2, 2, 2 * 7], "two parts of each weight, and of the loss and six small gradients"
    fast = captured(FAST)
    assert exchanges(fast) == ["tensile.start_all_reduce_.default"] * 5
    sent = [step.kernel.arguments for step in fast.steps if step.kernel.target is start_all_reduce_]
    assert [len(names) for names in sent] == [2, 2, 2, 2, 7 + 1], "one gradient of both parts, and the room"


@pytest.mark.parametrize("reduce", Reduce)
def test_a_gradient_as_large_as_a_bucket_leaves_the_small_ones_together(reduce: Reduce) -> None:
    module = nn.Sequential(*(nn.Linear(512, 512) for _ in range(3)))
    share = RankShare(rank=0, ranks=2, reduce=reduce)
    batch = (torch.randn(8, 512), torch.randn(8, 512))
    step = capture_training(module, nn.MSELoss(), *batch, SGD, Passes(micro_batch_size=4), share)
    sizes = [len([*refs(own.kernel.args[0])]) for own in step.steps if own.kernel.target in STARTS]
    assert sizes == [1, 1, 1, 1 + 3], "three weights of 1 MiB, each alone, and the loss with three small gradients"


def test_gradients_with_a_common_storage_are_exchanged_once() -> None:
    class Added(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = (nn.Parameter(torch.zeros(4)) for _ in range(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + (self.first + self.second)

    module, settings = Added(), OptimizerSettings(kind="sgd")
    x, y = torch.arange(16.0).reshape(4, 4), torch.ones(4, 4)  # means over 16 numbers are exact
    steps = [
        capture_training(
            module,
            nn.MSELoss(),
            x,
            y,
            settings,
            Passes(micro_batch_size=2),
            RankShare(rank=rank, ranks=2, reduce=FAST),
        )
        for rank in range(2)
    ]

    def run(rank: int, group: RankGroup) -> dict[str, torch.Tensor]:
        state = State.create(module, settings)
        runner = Runner(MemoryDevice(), state, (steps[rank],))
        with exchanging(group):
            runner.adopt((LIVENESS,), 1)
            runner.train(x, y, 1.0)
        values = {name: value.clone() for name, value in state.export().items()}
        runner.close()
        return values

    expected = (-2 * (x - 1).sum(0) / 16).tolist()
    for values in on_ranks(2, run):
        assert [values[name].tolist() for name in ("first", "second")] == [expected] * 2


def test_ways_to_add_up_gradients_are_those_of_the_hyperparameter() -> None:
    assert [way.value for way in Reduce] == HYPERPARAMS["reduce"]["values"]
