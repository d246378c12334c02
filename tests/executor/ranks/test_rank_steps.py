"""Check that steps on several devices, each under a plan of its own, compute the bits of one device."""

import math

import pytest
import torch
from torch import nn

from indb_tensile.errors import InvariantError, RequestError
from indb_tensile.executor.capture.exchange_room import is_chained
from indb_tensile.executor.capture.optimizer import OptimizerSettings
from indb_tensile.executor.capture.passes import Passes
from indb_tensile.executor.capture.rank_share import RankShare, Reduce
from indb_tensile.executor.capture.record import refs
from indb_tensile.executor.capture.step_capture import CapturedStep, capture_training
from indb_tensile.executor.ranks.rank_group import RankGroup
from indb_tensile.executor.ranks.step_exchange import exchanging, measuring
from indb_tensile.executor.run.program import compile_program
from indb_tensile.executor.run.runner import Runner
from indb_tensile.executor.run.state import HOST, State
from indb_tensile.scheduler.graph import OpIndex, Stage
from indb_tensile.scheduler.judges.check import faults
from indb_tensile.scheduler.memory.peak import LIVENESS, peak
from indb_tensile.scheduler.plan import Plan, Swap
from tests.device.memory_device import MemoryDevice
from tests.executor.conftest import job_of
from tests.executor.driving import bits, drive, state_bits
from tests.executor.eager import Eager
from tests.executor.models import Job
from tests.executor.plans import random_plans, random_rewritten_plan
from tests.executor.ranks.group_kinds import TRAINING_KINDS, GroupKind
from tests.executor.ranks.rank_steps import steps_of
from tests.executor.ranks.rank_threads import on_ranks
from tests.nightly import nightly_unless

ADAM = OptimizerSettings(clip_norm=0.1)
SGD = OptimizerSettings(kind="sgd", momentum=0.9, nesterov=True, weight_decay=0.01, clip_norm=0.5)
AVERAGED = OptimizerSettings(kind="adamw", weight_decay=0.1, average_decay=0.9)
Seen = tuple[list[bytes], dict[str, bytes], int]


def trained(job: Job, group: RankGroup, steps: tuple[CapturedStep, ...], plans: tuple[Plan, ...]) -> Seen:
    """Train as one rank, and return the bits of losses, outputs and state, and the most memory that was in use."""
    device, state = MemoryDevice(), job.state()
    runner = Runner(device, state, steps)
    with exchanging(group):
        runner.adopt(plans, 1)
        seen = bits(drive(runner, job))
    outcome = (seen, state_bits(state.export()), device.high_water_bytes)
    runner.close()
    return outcome


def of_eager(job: Job) -> tuple[list[bytes], dict[str, bytes]]:
    eager = Eager(job)
    return bits(drive(eager, job)), state_bits(eager.export())


@pytest.mark.nightly
@pytest.mark.parametrize("ranks", [3, 4])
def test_ranks_that_pass_the_sum_of_a_large_gradient_on_have_the_bits_of_one_device(ranks: int) -> None:
    """Two parts a rank, and one weight of several pieces. In the last batch some ranks have no part."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 1200), nn.Tanh(), nn.Linear(1200, 1200), nn.Tanh(), nn.Linear(1200, 3))
    batches = tuple((torch.randn(rows, 6), torch.randint(0, 3, (rows,))) for rows in (2 * ranks, 2 * ranks, 2))
    passes = Passes(micro_batch_size=1)
    job = Job(module=module, settings=ADAM, batches=batches, held_out=batches[0], passes=passes)
    assert is_chained(1200 * 1200, [2] * ranks)
    steps = [steps_of(job, RankShare(rank=rank, ranks=ranks)) for rank in range(ranks)]
    plans = [(LIVENESS,) * 3, *(random_plans(steps[rank], rank) for rank in range(1, ranks))]
    outcomes = on_ranks(ranks, lambda rank, group: trained(job, group, steps[rank], plans[rank]))
    assert [(seen, state) for seen, state, _ in outcomes] == [of_eager(job)] * ranks


# The last batch has 3 rows: one part of 3, or parts of 1, so that some ranks have no part of it.
CASES = [
    ("normalised", ADAM, 2, 3),
    ("mlp", ADAM, 3, 3),
    *(("normalised", settings, ranks, 2) for settings, ranks in ((SGD, 3), (AVERAGED, 4))),
    ("mlp", ADAM, 2, 4),
    ("lstm", SGD, 4, 2),
    *(("mlp", settings, ranks, micro) for settings in (SGD, AVERAGED) for ranks, micro in ((2, 4), (4, 2), (2, 1))),
    *((kind, ADAM, 3, 2) for kind in ("lstm", "constant", "tied", "regression", "weighted")),
    *(("plain cnn", ADAM, ranks, 2) for ranks in (2, 3)),  # test_rank_processes.py has a transformer
]


@pytest.mark.parametrize("group_kind", TRAINING_KINDS)
@pytest.mark.parametrize(
    ("kind", "settings", "ranks", "micro"),
    nightly_unless(lambda case: case == CASES[0], CASES),
    ids=[f"{kind}-{settings.kind}-{ranks}-{micro}" for kind, settings, ranks, micro in CASES],
)
def test_ranks_under_different_plans_end_with_the_bits_of_one_device_with_the_same_parts(
    kind: str, settings: OptimizerSettings, ranks: int, micro: int, group_kind: GroupKind
) -> None:
    job = job_of(kind, 0, settings, Passes(micro_batch_size=micro))
    steps = [steps_of(job, RankShare(rank=rank, ranks=ranks)) for rank in range(ranks)]
    plans = [(LIVENESS,) * 3, *(random_plans(steps[rank], rank) for rank in range(1, ranks))]
    outcomes = on_ranks(ranks, lambda rank, group: trained(job, group, steps[rank], plans[rank]), kind=group_kind)
    expected = of_eager(job)
    assert [(seen, state) for seen, state, _ in outcomes] == [expected] * ranks
    for rank, (_, _, high_water_bytes) in enumerate(outcomes):
        peaks = [peak(step.graph, plan) for step, plan in zip(steps[rank], plans[rank], strict=True)]
        assert high_water_bytes == max(peaks)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["mlp", "lstm", "normalised"])
def test_half_precision_gives_the_bits_of_one_device(kind: str) -> None:
    job = job_of(kind, 0, ADAM, Passes(micro_batch_size=3, precision="bfloat16"))
    steps = [steps_of(job, RankShare(rank=rank, ranks=3)) for rank in range(3)]
    plans = [random_plans(steps[rank], rank) for rank in range(3)]
    outcomes = on_ranks(3, lambda rank, group: trained(job, group, steps[rank], plans[rank]))
    assert [(seen, state) for seen, state, _ in outcomes] == [of_eager(job)] * 3


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(4))
def test_plans_that_reorder_and_repeat_operators_keep_the_order_of_exchanges(seed: int) -> None:
    job = job_of("lstm", 0, SGD, Passes(micro_batch_size=4))
    steps = [steps_of(job, RankShare(rank=rank, ranks=2)) for rank in range(2)]
    plans = [tuple(random_rewritten_plan(step.graph, seed * 10 + rank) for step in steps[rank]) for rank in range(2)]
    outcomes = on_ranks(2, lambda rank, group: trained(job, group, steps[rank], plans[rank]))
    assert [(seen, state) for seen, state, _ in outcomes] == [of_eager(job)] * 2


# By day test_fast_sum.py counts the exchanges of a fast sum.
@pytest.mark.by_day("exact")
@pytest.mark.parametrize("reduce", Reduce)
def test_exchanges_start_beside_the_backward_pass_in_one_order_on_all_ranks(reduce: Reduce) -> None:
    """The last rows make one part, so two of three ranks have no part of them, and exchange all the same."""
    started = []
    for rank in range(3):
        for rows in (6, 2):
            step = large_step(rows, RankShare(rank=rank, ranks=3, reduce=reduce))
            operators = step.graph.operators
            starts = [k for k, operator in enumerate(operators) if operator.starts is not None]
            ends = [k for k, operator in enumerate(operators) if operator.awaits is not None]
            sizes = [
                [math.prod(step.values[v.name].shape) for v in refs(step.steps[k].kernel.args[0])] for k in starts
            ]
            started.append(sizes)
            assert starts[-1] < ends[0]
            computed = [k for k, operator in enumerate(operators) if operator.name.startswith("aten.mm")]
            beside = [sum(begin < k < ends[0] for k in computed) for begin in starts]
            assert beside == sorted(beside, reverse=True)
            assert (beside[0] > 2) == (rows == 6 or rank == 2), (
                "products of earlier layers come after the first start"
            )
    assert all(sizes == started[0] for sizes in started)


def test_plan_that_moves_a_tensor_while_an_exchange_uses_it_is_refused() -> None:
    step = large_step(4, RankShare(rank=0, ranks=2))
    graph = step.graph
    begin = next(k for k, operator in enumerate(graph.operators) if operator.starts == 0)
    end = next(k for k, operator in enumerate(graph.operators) if operator.awaits == 0)
    tensor = graph.operators[begin].writes[0]
    assert end - begin > 2
    away = Swap(
        tensor=tensor,
        out_after=OpIndex(begin),
        free_at=OpIndex(begin + 1),
        in_at=OpIndex(end),
        needed_by=OpIndex(end),
    )
    plan = Plan(policy="test", swaps=(away,))
    assert any("while exchange 0 uses it" in fault for fault in faults(graph, plan))
    with pytest.raises(InvariantError, match="while an exchange with other devices uses it"):
        compile_program(step, plan)


def large_step(rows: int, share: RankShare) -> CapturedStep:
    """Return the step of one rank for seven layers, six of which have gradients of 2 MB."""
    module = nn.Sequential(*(nn.Linear(700, 700) for _ in range(6)), nn.Linear(700, 5))
    x, y = torch.randn(rows, 700), torch.randint(0, 5, (rows,))
    return capture_training(module, nn.CrossEntropyLoss(), x, y, ADAM, Passes(micro_batch_size=2), share)


class RandomGate(nn.Module):
    """Multiplies values by random numbers that are no dropout's."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the values, each times a random number."""
        return x * torch.rand_like(x)


def forward_of_halves(noise: nn.Module) -> tuple[list[str], list[str]]:
    """Return the forward operators of the first half of a batch, and those that its rank has for the second."""
    module = nn.Sequential(nn.Linear(6, 4), noise, nn.Linear(4, 5))
    batch = (torch.randn(8, 6), torch.randint(0, 5, (8,)))
    passes = Passes(micro_batch_size=4)
    whole = capture_training(module, nn.CrossEntropyLoss(), *batch, SGD, passes)
    own = capture_training(module, nn.CrossEntropyLoss(), *batch, SGD, passes, RankShare(rank=0, ranks=2))
    both, single = ([o.name for o in s.graph.operators if o.stage is Stage.FORWARD] for s in (whole, own))
    half = len(both) // 2
    assert single[:half] == both[:half]
    return both[:half], single[half:]


def test_dropout_of_another_rank_is_skipped_and_not_drawn() -> None:
    own, other = forward_of_halves(nn.Sequential(nn.Dropout(0.5), nn.ReLU(), nn.Dropout(0.1)))
    assert own.count("aten.native_dropout.default") == 2
    assert other == ["tensile.skip_words.default"]


@pytest.mark.parametrize("reduce", [*Reduce])
def test_parameters_are_updated_while_later_exchanges_are_under_way(reduce: Reduce) -> None:
    module = nn.Sequential(*(nn.Linear(600, 600, bias=False) for _ in range(3)))
    x, y = torch.randn(4, 600), torch.randn(4, 600)
    share, settings = RankShare(rank=0, ranks=2, reduce=reduce), OptimizerSettings()
    step = capture_training(module, nn.MSELoss(), x, y, settings, Passes(micro_batch_size=2), share)
    waits = [k for k, operator in enumerate(step.graph.operators) if operator.awaits is not None]
    ends = [operator.name for operator in step.graph.operators[waits[0] :]]
    wait = ends[0]
    update = "aten._fused_adam_.default"
    assert [name for name in ends if name in (wait, update)] == [wait, update] * 3 + [wait], "the loss comes last"


def test_norm_of_all_gradients_waits_for_all_exchanges() -> None:
    step = large_step(4, RankShare(rank=0, ranks=2))
    operators = step.graph.operators
    waits = [k for k, operator in enumerate(operators) if operator.awaits is not None]
    between = {operator.name for operator in operators[waits[0] : waits[-1]] if operator.awaits is None}
    assert "aten.linalg_vector_norm.default" in between
    assert "aten._fused_adam_.default" not in between


def test_part_of_another_rank_costs_only_the_random_numbers_that_it_draws() -> None:
    _, other = forward_of_halves(RandomGate())
    assert other == ["aten.empty_strided.default", "aten.zero_.default", "aten.rand_like.default"]


@pytest.mark.by_day("2")
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_generator_after_an_iteration_is_where_one_device_leaves_it(rank: int) -> None:
    module = nn.Sequential(nn.Linear(6, 40), nn.Dropout(0.5), RandomGate(), nn.Linear(40, 5), nn.Dropout(0.2))
    x, y = torch.randn(11, 6), torch.randint(0, 5, (11,))
    after = []
    for share in (None, RankShare(rank=rank, ranks=3)):
        step = capture_training(module, nn.CrossEntropyLoss(), x, y, SGD, Passes(micro_batch_size=2), share)
        runner = Runner(MemoryDevice(), State.create(module, SGD, HOST, share), (step,))
        runner.adopt((LIVENESS,), 1)
        torch.manual_seed(5)
        with measuring(3):
            runner.train(x, y, 0.1)
        after.append(torch.get_rng_state())
        runner.close()
    assert torch.equal(*after)


def test_step_for_several_devices_does_not_run_alone() -> None:
    job = job_of("mlp", 0, ADAM, Passes(micro_batch_size=4))
    steps = steps_of(job, RankShare(rank=0, ranks=2))
    runner = Runner(MemoryDevice(), job.state(), steps)
    runner.adopt((LIVENESS,) * 3, 1)
    with pytest.raises(InvariantError, match="runs without a connection to the other devices"):
        runner.train(*job.batches[0], 0.1)
    runner.close()


def test_rank_that_does_not_exist_is_refused() -> None:
    with pytest.raises(RequestError, match="rank 2 of 2 does not exist"):
        RankShare(rank=2, ranks=2)
