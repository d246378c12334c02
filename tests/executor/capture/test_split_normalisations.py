"""Batch normalisations are split, so that their values are recomputed without their statistics, to the same bits."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from indb_tensile.executor.capture.normalise_again import gives_same_bits, is_split, normalise_again
from indb_tensile.executor.capture.optimizer import OptimizerSettings
from indb_tensile.executor.capture.passes import Passes
from indb_tensile.executor.capture.running_statistics import BATCH_NORM
from indb_tensile.executor.capture.split_normalisations import with_split_normalisations
from indb_tensile.executor.capture.step_capture import CapturedStep, capture_evaluation, capture_training
from indb_tensile.executor.capture.stored_capture import decode, encode
from indb_tensile.scheduler.graph import OpIndex
from indb_tensile.scheduler.plan import Execution
from indb_tensile.scheduler.rewrite import captured_order, repeatable, rewrite

_LAYOUTS = {4: torch.channels_last, 5: torch.channels_last_3d}


@given(
    shape=st.lists(st.integers(1, 9), min_size=2, max_size=5).filter(
        lambda s: s[0] * int(torch.tensor(s[2:]).prod()) > 1
    ),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    last=st.booleans(),
    affine=st.booleans(),
    scale=st.sampled_from([1e-20, 1e-3, 1.0, 1e4, 1e18]),
    seed=st.integers(0, 1000),
)
def test_values_are_normalised_again_to_the_same_bits(
    shape: list[int], dtype: torch.dtype, last: bool, affine: bool, scale: float, seed: int
) -> None:
    drawn = torch.Generator().manual_seed(seed)
    values = (torch.randn(shape, generator=drawn, dtype=torch.float64) * scale + scale / 3).to(dtype)
    if last and len(shape) in _LAYOUTS:
        values = values.to(memory_format=_LAYOUTS[len(shape)])
    channels = shape[1]
    weight, bias = (torch.randn(channels, generator=drawn, dtype=dtype) if affine else None for _ in range(2))
    running = torch.zeros(channels, dtype=dtype), torch.ones(channels, dtype=dtype)
    first, mean, inverse, *_ = BATCH_NORM(values, weight, bias, *running, True, 0.1, 1e-5)
    again = normalise_again(values, weight, bias, mean, inverse)
    assert again.stride() == first.stride()
    assert again.contiguous().numpy().tobytes() == first.contiguous().numpy().tobytes()


@pytest.mark.parametrize("threads", [1, 2])
def test_large_values_are_normalised_again_to_the_same_bits(threads: int) -> None:
    torch.set_num_threads(threads)
    values = torch.randn((64, 96, 14, 14), generator=torch.Generator().manual_seed(1)) * 3 + 1
    weight, bias = torch.rand(96), torch.rand(96)
    for layout in (torch.contiguous_format, torch.channels_last):
        made = values.to(memory_format=layout)
        first, mean, inverse, *_ = BATCH_NORM(made, weight, bias, torch.zeros(96), torch.ones(96), True, 0.1, 1e-5)
        assert torch.equal(normalise_again(made, weight, bias, mean, inverse), first)


def test_this_processor_gives_the_same_bits_for_every_kind_of_values() -> None:
    for dtype in (torch.float32, torch.float64):
        for dimensions in range(2, 6):
            for last in {False, dimensions in _LAYOUTS}:
                for affine in (False, True):
                    assert gives_same_bits(dtype, dimensions, channels_last=last, affine=affine)


# --- the split ---------------------------------------------------------------------------------------------------


def _network(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), *layers, nn.Flatten(), nn.LazyLinear(3))


def _step(module: nn.Module, passes: Passes | None = None) -> CapturedStep:
    x, y = torch.zeros(4, 1, 8, 8), torch.zeros(4, dtype=torch.int64)
    module(x)  # initialises the lazy layer
    return capture_training(module, functional.cross_entropy, x, y, OptimizerSettings(kind="sgd"), passes or Passes())


def _second_parts(step: CapturedStep) -> list[int]:
    return [k for k, run in enumerate(step.steps) if run.kernel.target is normalise_again]


def test_the_second_part_makes_the_values_that_others_read_and_can_run_again_by_itself() -> None:
    whole = _step(_network(nn.BatchNorm2d(6), nn.ReLU()))
    step = with_split_normalisations(whole)
    (second,) = _second_parts(step)
    first = second - 1
    assert is_split(step.steps[first].kernel, step.steps[second].kernel)
    signatures = {run.kernel.signature for run in whole.steps}
    assert not {step.steps[k].kernel.signature for k in (first, second)} & signatures
    operators = step.graph.operators
    assert len(operators) == len(whole.graph.operators) + 1
    (values,) = operators[second].writes
    assert values not in operators[first].writes
    readers = [k for k, operator in enumerate(operators) if values in operator.reads]
    assert readers
    assert min(readers) > second
    assert repeatable(step.graph)[second]
    order = [*captured_order(step.graph)]
    order.insert(max(readers), Execution(operator=OpIndex(second)))
    assert [*rewrite(step.graph, order).reruns] == [second]


def test_parts_add_up_to_the_whole_for_everything_but_the_second_operator() -> None:
    whole = _step(_network(nn.BatchNorm2d(6), nn.ReLU()))
    names = Counter(operator.name for operator in whole.graph.operators)
    split = Counter(operator.name for operator in with_split_normalisations(whole).graph.operators)
    assert split - names == Counter({str(normalise_again): 1})
    assert not names - split
    assert with_split_normalisations(whole).graph.signature != whole.graph.signature


@pytest.mark.parametrize(
    "layers",
    [
        pytest.param([nn.BatchNorm2d(6, affine=False)], id="without weights"),
        pytest.param([nn.BatchNorm2d(6, track_running_stats=True), nn.BatchNorm2d(6)], id="one after the other"),
        pytest.param([nn.Flatten(2), nn.BatchNorm1d(6)], id="sequences"),
    ],
)
def test_normalisations_of_every_kind_are_split(layers: list[nn.Module]) -> None:
    norms = sum(isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d) for layer in layers)
    assert len(_second_parts(with_split_normalisations(_step(_network(*layers))))) == norms


class _Transposed(nn.Module):
    """Normalises values that are not dense in the order of their dimensions, nor with their channels last."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values: torch.Tensor = self.norm(x.transpose(1, 2))
        return values


@pytest.mark.parametrize(
    ("module", "passes"),
    [
        pytest.param(_network(_Transposed()), Passes(), id="other strides"),
        pytest.param(_network(nn.BatchNorm2d(6)), Passes(precision="bfloat16"), id="half precision"),
        pytest.param(_network(nn.GroupNorm(2, 6)), Passes(), id="another normalisation"),
    ],
)
def test_other_normalisations_stay_whole(module: nn.Module, passes: Passes) -> None:
    step = _step(module, passes)
    assert with_split_normalisations(step) is step


def test_normalisations_that_do_not_train_stay_whole() -> None:
    module = _network(nn.BatchNorm2d(6))
    x, y = torch.zeros(4, 1, 8, 8), torch.zeros(4, dtype=torch.int64)
    module(x)
    step = capture_evaluation(module, functional.cross_entropy, x, y)
    assert with_split_normalisations(step) is step


def test_a_processor_whose_bits_differ_keeps_them_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    module = "indb_tensile.executor.capture.split_normalisations"
    monkeypatch.setattr(f"{module}.gives_same_bits", lambda *_, **__: False)
    step = _step(_network(nn.BatchNorm2d(6)))
    assert with_split_normalisations(step) is step


def test_a_split_step_is_stored_and_read_again() -> None:
    step = with_split_normalisations(_step(_network(nn.BatchNorm2d(6))))
    (read,) = decode(encode((step,)))
    assert (read.graph, read.steps, read.values) == (step.graph, step.steps, step.values)


def test_the_second_part_has_room_for_the_scratch_of_the_whole() -> None:
    step = with_split_normalisations(_step(_network(nn.BatchNorm2d(6))))
    (second,) = _second_parts(step)
    first_signature, second_signature = (step.steps[k].kernel.signature for k in (second - 1, second))
    (values,) = step.graph.operators[second].writes
    dropped_bytes = step.graph.tensors[values].size_bytes  # of the values that the first part makes as well
    assert step.graph.operators[second - 1].workspace_bytes == dropped_bytes
    measured = step.with_measured({first_signature: dropped_bytes + 700, second_signature: 300})
    assert [measured.graph.operators[k].workspace_bytes - dropped_bytes for k in (second - 1,)] == [700]
    assert measured.graph.operators[second].workspace_bytes == 700
    larger = step.with_measured({first_signature: dropped_bytes + 700, second_signature: 900})
    assert larger.graph.operators[second].workspace_bytes == 900
    assert replace(larger, graph=step.graph) == step
