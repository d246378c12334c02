"""Check trainings whose devices divide the optimizer's state: the bits are those of one device."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from indb_tensile.errors import RankLostError
from indb_tensile.executor.capture.optimizer import AVERAGE, OptimizerSettings
from indb_tensile.executor.capture.owner_operators import start_hand_out_, start_sum_at_owners_
from indb_tensile.executor.capture.passes import Passes
from indb_tensile.executor.capture.rank_share import RankShare, Reduce
from indb_tensile.executor.capture.state_division import divide_state
from indb_tensile.executor.capture.step_capture import CapturedStep, capture_training
from indb_tensile.executor.capture.storage_layout import divided_values
from indb_tensile.executor.latency.calibrate import calibrate, unknown_signatures
from indb_tensile.executor.ranks.rank_group import RankGroup
from indb_tensile.executor.ranks.state_gathering import StateGathering
from indb_tensile.executor.ranks.step_exchange import exchanging
from indb_tensile.executor.run.runner import Runner
from indb_tensile.executor.run.state import State
from indb_tensile.scheduler.graph import Stage
from indb_tensile.scheduler.memory.peak import LIVENESS, peak
from tests.device.memory_device import MemoryDevice
from tests.executor.conftest import GRANT_BYTES, job_of
from tests.executor.driving import bits, drive, state_bits
from tests.executor.eager import Eager
from tests.executor.models import Job
from tests.executor.plans import random_plans
from tests.executor.ranks.group_kinds import GLOO, TRAINING_KINDS, GroupKind
from tests.executor.ranks.rank_steps import steps_of
from tests.executor.ranks.rank_threads import on_ranks
from tests.nightly import nightly_unless

ADAM = OptimizerSettings(clip_norm=0.1)
SGD = OptimizerSettings(kind="sgd", momentum=0.9, nesterov=True, weight_decay=0.01, clip_norm=0.5)
AVERAGED = OptimizerSettings(kind="adamw", weight_decay=0.1, average_decay=0.9)
LION = OptimizerSettings(kind="lion", betas=(0.9, 0.99), weight_decay=0.1, clip_norm=0.1)
RMSPROP = OptimizerSettings(kind="rmsprop", momentum=0.9, centered=True)
Seen = tuple[list[bytes], dict[str, bytes]]


def trained(
    job: Job,
    ranks: int,
    reduce: Reduce = Reduce.EXACT,
    *,
    divides_state: bool = True,
    group_kind: GroupKind = GLOO,
) -> list[Seen]:
    """Train with each rank under a plan of its own. Return each rank's losses and state."""
    shares = [RankShare(rank=rank, ranks=ranks, reduce=reduce, divides_state=divides_state) for rank in range(ranks)]
    steps = [steps_of(job, share) for share in shares]
    plans = [(LIVENESS,) * 3, *(random_plans(steps[rank], rank) for rank in range(1, ranks))]

    def run(rank: int, group: RankGroup) -> Seen:
        device, state = MemoryDevice(), State.create(job.module, job.settings, share=shares[rank])
        runner = Runner(device, state, steps[rank])
        with exchanging(group):
            runner.adopt(plans[rank], 1)
            seen = bits(drive(runner, job))
        outcome = seen, state_bits(state.export())
        peaks = [peak(step.graph, plan) for step, plan in zip(steps[rank], plans[rank], strict=True)]
        assert device.high_water_bytes == max(peaks)
        runner.close()
        return outcome

    return on_ranks(ranks, run, kind=group_kind)


def joined(outcomes: list[Seen]) -> Seen:
    """Check that all ranks have equal values of what they all have. Return the losses, and the state of all."""
    state: dict[str, bytes] = {}
    for seen, own in outcomes:
        assert seen == outcomes[0][0]
        assert all(state.setdefault(name, value) == value for name, value in own.items())
    return outcomes[0][0], state


CASES = [
    ("mlp", ADAM, 3, 3),
    ("mlp", ADAM, 2, 4),
    ("lstm", SGD, 2, 2),
    *(("mlp", settings, 3, 2) for settings in (SGD, AVERAGED, LION, RMSPROP)),
    *((kind, ADAM, 3, 2) for kind in ("lstm", "constant", "tied", "regression", "weighted", "normalised")),
]


@pytest.mark.nightly  # by day the next tests
@pytest.mark.parametrize(
    ("kind", "settings", "ranks", "micro"),
    CASES,
    ids=[f"{kind}-{settings.kind}-{ranks}-{micro}" for kind, settings, ranks, micro in CASES],
)
def test_ranks_that_divide_the_state_end_with_the_bits_of_one_device(
    kind: str, settings: OptimizerSettings, ranks: int, micro: int
) -> None:
    job = job_of(kind, 0, settings, Passes(micro_batch_size=micro))
    outcomes = trained(job, ranks)
    eager = Eager(job)
    assert joined(outcomes) == (bits(drive(eager, job)), state_bits(eager.export()))
    divided = [name for name in eager.export() if name.count("/") > 1 and not name.startswith(f"optimizer/{AVERAGE}")]
    assert sorted(divided) == sorted(name for _, state in outcomes for name in divided if name in state)


@pytest.mark.nightly
@pytest.mark.parametrize(("kind", "ranks", "micro"), [("mlp", 3, 2), ("lstm", 2, 1)])
def test_the_sum_of_the_library_has_the_same_bits_with_the_state_whole_and_divided(
    kind: str, ranks: int, micro: int
) -> None:
    job = job_of(kind, 0, SGD, Passes(micro_batch_size=micro))
    divided, whole = (joined(trained(job, ranks, Reduce.FAST, divides_state=divides)) for divides in (True, False))
    assert divided == whole


@pytest.mark.parametrize("group_kind", TRAINING_KINDS)
@pytest.mark.parametrize("reduce", nightly_unless(lambda way: way is Reduce.EXACT, [*Reduce]))
def test_a_rank_may_own_no_parameter(reduce: Reduce, group_kind: GroupKind) -> None:
    """Two of three ranks own one parameter each, and some parameters never change."""
    job = replace(job_of("mlp", 0, ADAM, Passes(micro_batch_size=3)), module=nn.Sequential(*mlp_of_two()))
    eager = Eager(job)
    losses, state = bits(drive(eager, job)), state_bits(eager.export())
    outcomes = trained(job, 3, reduce, group_kind=group_kind)
    own = [[name for name in values if name.startswith("optimizer/exp_avg/")] for _, values in outcomes]
    assert sorted(map(len, own)) == [0, 1, 1]
    assert reduce is Reduce.FAST or joined(outcomes) == (losses, state)
    joined(outcomes)


def mlp_of_two() -> tuple[nn.Module, nn.Module]:
    """A network whose first layer is frozen, and whose second has two parameters."""
    torch.manual_seed(1)
    first, second = nn.Linear(6, 4), nn.Linear(4, 5)
    return first.requires_grad_(requires_grad=False), second


def test_state_is_divided_evenly_and_alike_on_all_ranks() -> None:
    sizes = {"embedding": 900, "weight": 400, "bias": 4, "out": 300, "scale": 4}
    assert divide_state(sizes, 2) == {"embedding": 0, "weight": 1, "bias": 1, "out": 1, "scale": 1}
    assert divide_state(sizes, 3) == {"embedding": 0, "weight": 1, "bias": 2, "out": 2, "scale": 2}
    assert divide_state({"only": 8}, 3) == {"only": 0}


@pytest.mark.nightly
def test_a_checkpoint_has_the_state_of_all_ranks_and_any_number_of_devices_goes_on_from_it() -> None:
    """Two ranks train an epoch, one device the next, and three ranks the last: the bits are those of one device."""
    job = job_of("mlp", 0, SGD, Passes(micro_batch_size=2))

    def epoch_of(
        share: RankShare, steps: tuple[CapturedStep, ...], group: RankGroup, values: dict[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Train an epoch from these values, and return what rank 0 stores."""
        state = State.create(job.module, job.settings, share=share)
        divided = divided_values(job.module, job.settings, share)
        gathering = StateGathering(group, divided, lambda name: state.export((name,))[name])
        state.load({name: value for name, value in values.items() if name not in gathering.of_others})
        runner = Runner(MemoryDevice(), state, steps)
        stored = {}
        with exchanging(group):
            runner.adopt(random_plans(steps, share.rank), 1)
            drive(runner, job, 1)
            gathering.end_turn()
            if share.rank == 0:
                stored = state.export() | dict(gathering.gather())
            gathering.end_turn()
        runner.close()
        return stored

    def epoch(ranks: int, values: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        shares = [RankShare(rank=rank, ranks=ranks, divides_state=True) for rank in range(ranks)]
        steps = [steps_of(job, share) for share in shares]
        return on_ranks(ranks, lambda rank, group: epoch_of(shares[rank], steps[rank], group, values))[0]

    def epoch_alone(values: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        steps, state = job.steps, job.state()
        state.load(values)
        runner = Runner(MemoryDevice(), state, calibrate(steps, unknown_signatures(steps, {}), {}, GRANT_BYTES).steps)
        runner.adopt((LIVENESS,) * 3, 1)
        drive(runner, job, 1)
        stored = state.export()
        runner.close()
        return stored

    eager, values = Eager(job), job.state().export()
    for train_epoch in (partial(epoch, 2), epoch_alone, partial(epoch, 3)):
        values = train_epoch(values)
        drive(eager, job, 1)
        assert state_bits(values) == state_bits(eager.export())


def test_a_lost_rank_ends_the_wait_for_a_checkpoint() -> None:
    job = job_of("mlp", 0, SGD, Passes(micro_batch_size=4))
    share = RankShare(rank=0, ranks=2, divides_state=True)
    divided = divided_values(job.module, job.settings, share)

    def run(rank: int, group: RankGroup) -> None:
        if rank == 0:
            gathering = StateGathering(group, divided, lambda _: torch.empty(0))
            with pytest.raises(RankLostError, match="rank 0 of 2 has lost another rank"):
                gathering.gather()

    on_ranks(2, run)


def test_parameters_are_handed_out_beside_the_updates_and_waits_to_come() -> None:
    layers = [nn.Sequential(nn.Linear(300, 300), nn.ReLU()) for _ in range(6)]
    share = RankShare(rank=0, ranks=2, divides_state=True)
    batch = torch.zeros(4, 300), torch.zeros(4, dtype=torch.int64)
    module = nn.Sequential(*layers, nn.Linear(300, 3))
    passes = Passes(micro_batch_size=2)
    graph = capture_training(
        module, nn.CrossEntropyLoss(), *batch, OptimizerSettings(kind="adam"), passes, share
    ).graph
    starts = [k for k, operator in enumerate(graph.operators) if operator.starts is not None]
    waits = [k for k, operator in enumerate(graph.operators) if operator.awaits is not None]
    handed_out = [k for k in starts if graph.operators[k].stage is Stage.OPTIMIZER]
    updates = [k for k, operator in enumerate(graph.operators) if "adam" in operator.name]
    assert len(handed_out) > 1
    sums = len(starts) - len(handed_out)
    assert handed_out[0] < waits[sums - 1]
    assert handed_out[0] < updates[-1] < waits[sums]


def test_a_parameter_as_large_as_a_bucket_leaves_the_small_ones_of_its_owner_together() -> None:
    module = nn.Sequential(*(nn.Linear(512, 512) for _ in range(4)))
    batch = torch.zeros(4, 512), torch.zeros(4, 512)
    share, passes = RankShare(rank=0, ranks=2, divides_state=True), Passes(micro_batch_size=2)
    step = capture_training(module, nn.MSELoss(), *batch, ADAM, passes, share)
    sums = [own.kernel for own in step.steps if own.kernel.target is start_sum_at_owners_]
    handed_out = [own.kernel for own in step.steps if own.kernel.target is start_hand_out_]
    expected = [(512 * 512,) * 2] * 2 + [(512,) * 4]
    assert [tuple(call.kwargs["sizes"]) for call in sums] == expected, "a weight of each rank, and at last the biases"
    assert [len(call.args[0]) for call in handed_out] == [2, 2, 4]
