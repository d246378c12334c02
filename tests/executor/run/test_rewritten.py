"""Plans that repeat operators, reorder them or run them in parts give every bit of a plain PyTorch loop."""

from itertools import pairwise, product

import pytest
import torch

from indb_tensile.errors import GraphError
from indb_tensile.executor.capture.optimizer import OptimizerSettings
from indb_tensile.executor.capture.passes import Passes
from indb_tensile.executor.capture.step_capture import CapturedStep, with_host_uploads
from indb_tensile.executor.run.program import compile_program
from indb_tensile.executor.run.runner import Runner
from indb_tensile.scheduler.graph import OpIndex, Stage
from indb_tensile.scheduler.judges.check import faults
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import LIVENESS, peak
from indb_tensile.scheduler.plan import Execution, Plan
from indb_tensile.scheduler.search.reorder import rearranged, with_parts
from indb_tensile.scheduler.search.step_search import DROPPED, StepSearch
from tests.device.fake_device import FakeDevice
from tests.device.memory_device import MemoryDevice
from tests.executor.conftest import prepared
from tests.executor.driving import bits, drive, state_bits
from tests.executor.eager import Eager
from tests.executor.models import DAILY_KINDS, SHAPES
from tests.executor.plans import random_plan, random_rewritten_plan
from tests.nightly import nightly_unless

SETTINGS = (
    OptimizerSettings(),
    OptimizerSettings(kind="adamw", weight_decay=0.1, clip_norm=0.1),
    OptimizerSettings(kind="sgd", momentum=0.9, nesterov=True, weight_decay=0.01),
    OptimizerSettings(kind="sgd"),
)

LINK = Link(out_bytes_per_s=10**9, in_bytes_per_s=10**9)
# Every model with two optimizers, and two models with every optimizer. In the day most models with Adam, and the
# model whose parameters are updated in parts with every optimizer.
DAILY_MODELS = ("wide", "cnn", "transformer", "lstm", "constant", "stretched", "tied")
CASES = [(kind, s) for kind in SHAPES for s in (SETTINGS if kind in ("wide", "cnn") else SETTINGS[::2])]


def _rewritten(steps: tuple[CapturedStep, ...], seed: int, share: float = 0.5) -> tuple[Plan, ...]:
    return tuple(random_rewritten_plan(step.graph, seed * 10 + k, share) for k, step in enumerate(steps))


def _peak(steps: tuple[CapturedStep, ...], plans: tuple[Plan, ...]) -> int:
    return max(peak(step.graph, plan) for step, plan in zip(steps, plans, strict=True))


@pytest.mark.by_day("wide-adam-", "cnn-adam-", "lstm-adam-")
@pytest.mark.parametrize("seeds", [range(3), pytest.param(range(3, 6), marks=pytest.mark.nightly)])
@pytest.mark.parametrize(
    ("kind", "settings"),
    nightly_unless(lambda c: c[0] == "wide" or (c[0] in DAILY_MODELS and c[1] is SETTINGS[0]), CASES),
    ids=[f"{k}-{s.kind}-{s.momentum}" for k, s in CASES],
)
def test_every_order_gives_the_bits_of_the_eager_loop_at_exactly_its_peak(
    kind: str, settings: OptimizerSettings, seeds: range
) -> None:
    job, steps = prepared(kind, settings=settings)
    eager = Eager(job)
    expected_seen, expected = bits(drive(eager, job)), state_bits(eager.export())
    for seed in seeds:
        chosen = _rewritten(steps, seed, share=(0.0, 0.4, 1.0)[seed % 3])
        device, state = MemoryDevice(), job.state()
        runner = Runner(device, state, steps)
        runner.adopt(chosen, 1)
        assert bits(drive(runner, job)) == expected_seen, seed
        assert state_bits(state.export()) == expected, seed
        assert device.high_water_bytes == _peak(steps, chosen)
        runner.close()
        assert (device.used_bytes, device.buffers) == (0, {})
        assert state_bits(state.export()) == expected, "the state has the same bits after it returned to the host"


@pytest.mark.nightly
def test_recomputed_concatenations_read_tensors_that_are_held_for_them_and_give_the_same_bits() -> None:
    """No captured operator reads a layer's output after the last concatenation of it."""
    job, steps = prepared("dense", settings=SETTINGS[0])
    chosen = (*map(_without_saved_concatenations, steps[:2]), LIVENESS)
    released = _without_saved_concatenations(steps[0], hold=False)
    assert (_normalisations(steps[0], chosen[0]), _normalisations(steps[0], released)) == (5, 12)
    device, state = MemoryDevice(), job.state()
    runner = Runner(device, state, steps)
    runner.adopt(chosen, 1)
    eager = Eager(job)
    assert bits(drive(runner, job)) == bits(drive(eager, job))
    assert state_bits(state.export()) == state_bits(eager.export())
    assert device.high_water_bytes == _peak(steps, chosen)


def _without_saved_concatenations(step: CapturedStep, *, hold: bool = True) -> Plan:
    """Return the plan that recomputes the results of all concatenations."""
    operators = step.graph.operators
    joined = {t for operator in operators if "aten.cat" in operator.name for t in operator.writes}
    executions = with_parts(step.graph, rearranged(step.graph))
    search = StepSearch(step.graph, (1_000,) * len(operators), LINK, executions=executions, hold=hold)
    search.choose([(gap, DROPPED, DROPPED) for gap, (tensor, _, _) in enumerate(search.gap_keys) if tensor in joined])
    plan = search.plan("test")
    assert faults(step.graph, plan) == ()
    return plan


def _normalisations(step: CapturedStep, plan: Plan) -> int:
    """Return how often the plan normalises, after the statistics were computed."""
    return sum("normalise_again" in step.graph.operators[run.operator].name for run in plan.executions)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "kind",
    nightly_unless(lambda kind: kind == "cnn", ["wide", "cnn", "lstm", "transformer", "stretched"]),
)
def test_batches_in_parts_and_half_precision_run_in_other_orders_too(kind: str) -> None:
    job, steps = prepared(kind, settings=SETTINGS[1], passes=Passes(micro_batch_size=3, precision="bfloat16"))
    eager = Eager(job)
    expected_seen, expected = bits(drive(eager, job)), state_bits(eager.export())
    for seed in range(3):
        chosen = _rewritten(steps, seed)
        device, state = MemoryDevice(), job.state()
        runner = Runner(device, state, steps)
        runner.adopt(chosen, 1)
        assert bits(drive(runner, job)) == expected_seen, seed
        assert state_bits(state.export()) == expected, seed
        assert device.high_water_bytes == _peak(steps, chosen)


@pytest.mark.by_day("cnn-True")
@pytest.mark.parametrize(
    ("kind", "is_host"),
    nightly_unless(
        lambda case: case in (("wide", False), ("transformer", False), ("cnn", True)),
        product(["wide", "cnn", "lstm", "transformer"], [False, True]),
    ),
)
def test_successive_plans_of_different_orders_change_nothing_and_never_exceed_the_larger_peak(
    kind: str, is_host: bool
) -> None:
    job, steps = prepared(kind, settings=SETTINGS[0])
    eager = Eager(job)
    device, state = MemoryDevice(is_host=is_host), job.state()
    if is_host:
        steps = tuple(map(with_host_uploads, steps))
    runner = Runner(device, state, steps)
    sequence = [_rewritten(steps, seed, share=seed % 2) for seed in range(20, 26)]
    plain = [tuple(random_plan(step.graph, seed) for step in steps) for seed in (1, 2)]
    sequence = [*sequence[:3], (LIVENESS,) * 3, plain[0], *sequence[3:], plain[1]]
    before = 0
    for generation, chosen in enumerate(sequence):
        device.reset_high_water()
        runner.adopt(chosen, generation)
        assert device.high_water_bytes <= max(before, _peak(steps, chosen))
        device.reset_high_water()
        assert bits(drive(runner, job, 1)) == bits(drive(eager, job, 1))
        assert device.high_water_bytes == _peak(steps, chosen)
        assert state_bits(state.export()) == state_bits(eager.export())
        before = _peak(steps, chosen)


@pytest.mark.parametrize("is_host", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_a_checkpoint_loaded_under_a_plan_in_parts_replaces_every_part(seed: int, is_host: bool) -> None:
    job, steps = prepared("wide", settings=SETTINGS[0])
    eager, state = Eager(job), job.state()
    if is_host:
        steps = tuple(map(with_host_uploads, steps))
    runner = Runner(MemoryDevice(is_host=is_host), state, steps)
    initial = state.export()
    runner.adopt(_rewritten(steps, seed, share=1.0), 1)
    drive(runner, job)
    state.load(initial)
    assert state_bits(state.export()) == state_bits(initial)
    assert bits(drive(runner, job)) == bits(drive(eager, job))
    assert state_bits(state.export()) == state_bits(eager.export())


def test_latencies_of_a_reordered_plan_are_those_of_the_captured_operators() -> None:
    """The clock advances by a microsecond at each reading."""
    job, steps = prepared("wide", settings=SETTINGS[0])
    plan = random_rewritten_plan(steps[0].graph, 3, 0.0)
    clock = iter(range(0, 10**12, 1_000))
    device = FakeDevice(1 << 24, 1 << 24)  # copies take no time
    runner = Runner(device, job.state(), steps, sample_every=1, clock=lambda: next(clock))
    runner.adopt((plan, *_rewritten(steps[1:], 0)), 1)
    runner.train(*job.batches[0], 0.01)
    measured = runner.measured()
    assert measured is not None
    parts = {e.operator: e.parts for e in plan.executions}
    # The model's cost of starting parts, more than a microsecond each, is not part of the operator's latency.
    assert measured.latency_ns == tuple(0 if parts[OpIndex(k)] > 1 else 1_000 for k in range(len(parts)))
    assert measured.iteration_ns == 1_000 * len(plan.executions)


@pytest.mark.by_day("cnn", "tied")
@pytest.mark.parametrize("kind", DAILY_KINDS)
def test_only_operators_marked_random_draw_random_numbers(kind: str) -> None:
    """Any other operator may be repeated. The clock, read between operators, records the random generator's state."""
    job, steps = prepared(kind)
    states: list[bytes] = []

    def clock() -> int:
        states.append(torch.get_rng_state().numpy().tobytes())
        return len(states)

    runner = Runner(MemoryDevice(), job.state(), steps, sample_every=1, clock=clock)
    runner.adopt((LIVENESS,) * 3, 1)
    states.clear()
    runner.train(*job.batches[0], 0.01)
    drew = [before != after for before, after in pairwise(states[:-1])]  # the last one is read after the iteration
    assert drew == [operator.random for operator in steps[0].graph.operators]


def test_an_order_that_changes_a_result_is_refused_and_the_old_plans_remain() -> None:
    job, steps = prepared("mlp")
    runner = Runner(MemoryDevice(), job.state(), steps)
    runner.adopt((LIVENESS,) * 3, 1)
    backwards = tuple(Execution(operator=OpIndex(k)) for k in reversed(range(len(steps[0].graph.operators))))
    with pytest.raises(GraphError, match="needs"):
        runner.adopt((Plan(policy="bad", executions=backwards), LIVENESS, LIVENESS), 2)
    assert runner.generation == 1
    runner.train(*job.batches[0], 0.01)


def test_forward_operators_always_run_with_gradients_enabled() -> None:
    step = prepared("cnn")[1][0]
    program = compile_program(step, random_rewritten_plan(step.graph, 2, 0.0))
    recording, seen = True, set()
    for line in program.plain_lines:
        if "set_grad(" in line:
            recording = "True" in line
        for k, operator in enumerate(step.graph.operators):
            if f"f{k}(" in line:
                assert recording == (operator.stage in (Stage.UPLOAD, Stage.FORWARD))
                seen.add((operator.stage, recording))
    assert len(seen) == len(Stage)
