"""A state is exported and loaded in place, whether its tensors are on the device or on the host."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from indb_tensile.errors import DataError
from indb_tensile.executor.capture.optimizer import OptimizerSettings
from indb_tensile.executor.run.runner import Runner
from indb_tensile.executor.run.state import STEPS_NAME, State, bytes_of
from indb_tensile.scheduler.memory.peak import LIVENESS
from tests.device.memory_device import MemoryDevice
from tests.executor.conftest import prepared
from tests.executor.plans import random_plan


def test_a_new_state_has_the_modules_values_and_empty_optimizer_state() -> None:
    job, _ = prepared("cnn")
    exported = job.state().export()
    for name, value in job.module.state_dict().items():
        assert torch.equal(exported[name], value)
    assert not exported["optimizer/exp_avg/0.weight"].any()
    assert exported["steps"] == 0


def test_a_state_has_its_own_memory_and_leaves_the_modules_unchanged() -> None:
    job, steps = prepared("mlp")
    before = {name: value.clone() for name, value in job.module.state_dict().items()}
    state = job.state()
    runner = Runner(MemoryDevice(), state, steps)
    runner.adopt((LIVENESS,) * 3, 1)
    runner.train(*job.batches[0], 0.1)
    assert all(torch.equal(before[name], value) for name, value in job.module.state_dict().items())
    assert not torch.equal(state.export()["0.weight"], before["0.weight"])


def test_a_subset_of_the_values_is_exported_by_name() -> None:
    job, _ = prepared("cnn")
    state = job.state()
    whole, names = state.export(), set(job.module.state_dict())
    subset = state.export(names)
    assert set(subset) == names
    assert all(torch.equal(subset[name], whole[name]) for name in names)
    assert state.export([]) == {}


def test_exporting_while_tensors_are_away_moves_no_tensor() -> None:
    job, steps = prepared("cnn")
    device, state = MemoryDevice(), job.state()
    runner = Runner(device, state, steps)
    runner.adopt(tuple(random_plan(step.graph, 7, share=1.0) for step in steps), 1)
    runner.train(*job.batches[0], 0.1)
    away = {piece for pieces in state.pieces.values() for piece in pieces} - state.resident
    assert away
    usage, resident, copied = device.usage(), set(state.resident), device.copied_bytes
    exported = state.export()
    assert (device.usage(), state.resident, device.copied_bytes) == (usage, resident, copied)
    assert all(exported[v.name].shape == v.shape for piece in away for v in state.layout[piece.tensor].values)
    assert all(state.storage(piece).nbytes() == 0 for piece in away), "a tensor that is away has no memory"
    assert all(state.storage(piece).nbytes() == piece.size_bytes for piece in resident)


def test_exported_tensors_are_contiguous_copies() -> None:
    job, _ = prepared("stretched")
    state = job.state()
    exported = state.export()
    assert all(value.is_contiguous() for value in exported.values())
    exported["weight"].zero_()
    assert torch.equal(state.export()["weight"], job.module.state_dict()["weight"])


def test_a_checkpoint_of_another_model_is_refused() -> None:
    state = State.create(nn.Linear(3, 2), OptimizerSettings())
    other = State.create(nn.Linear(3, 2, bias=False), OptimizerSettings())
    with pytest.raises(DataError, match="another model: 3 names differ, first bias"):
        state.load(other.export())
    with pytest.raises(DataError, match=r"weight is torch.float32 of shape \(2, 4\)"):
        state.load(State.create(nn.Linear(4, 2), OptimizerSettings()).export())


def test_loading_restores_exported_values_under_every_plan() -> None:
    job, steps = prepared("cnn")
    state = job.state()
    values = {name: torch.randn_like(v) if v.is_floating_point() else v + 3 for name, v in state.export().items()}
    runner = Runner(MemoryDevice(), state, steps)
    for seed in range(3):
        runner.adopt(tuple(random_plan(step.graph, seed, share=1.0) for step in steps), seed)
        state.load({name: value + seed for name, value in values.items()})
        assert all(torch.equal(value, values[name] + seed) for name, value in state.export().items())


def test_values_that_share_a_storage_have_one_layout_entry() -> None:
    module = nn.Module()
    whole = torch.arange(6, dtype=torch.float32)
    module.register_buffer("left", whole[:4])
    module.register_buffer("right", whole[2:])
    module.weight = nn.Parameter(torch.ones(2))
    state = State.create(module, OptimizerSettings(kind="sgd"))
    assert [s.size_bytes for s in state.layout] == [8, 24]
    exported = state.export()
    assert exported["left"].tolist() == [0, 1, 2, 3]
    assert exported["right"].tolist() == [2, 3, 4, 5]


def test_a_parameter_without_elements_has_no_storage_and_is_exported() -> None:
    module = nn.Module()
    module.weight = nn.Parameter(torch.ones(2))
    module.empty = nn.Parameter(torch.ones(0, 3))
    state = State.create(module, OptimizerSettings(kind="sgd"))
    assert [s.name for s in state.layout] == ["weight"]
    assert state.export()["empty"].shape == (0, 3)
    state.load(state.export())


@pytest.mark.parametrize("is_host", [False, True])
def test_the_optimizers_first_zeros_are_not_copied_to_the_device(is_host: bool) -> None:
    job, steps = prepared("cnn")
    device, state = MemoryDevice(is_host=is_host), job.state()
    module_bytes = sum(value.nbytes for value in job.module.state_dict().values())
    state_bytes = sum(stored.size_bytes for stored in state.layout)
    assert state_bytes > 2 * module_bytes, "with Adam"
    runner = Runner(device, state, steps)
    runner.adopt((LIVENESS,) * 3, 1)
    assert device.copied_bytes == (0 if is_host else module_bytes)
    runner.train(*job.batches[0], 0.1)
    copied_bytes = device.copied_bytes
    runner.park()
    runner.adopt((LIVENESS,) * 3, 2)
    assert device.copied_bytes - copied_bytes >= 2 * state_bytes, "once written, the state moves as a whole"


@given(
    changes=st.lists(st.tuples(st.sampled_from(["plan", "train", "park", "load"]), st.integers(0, 99)), max_size=8)
)
@settings(deadline=None)
@pytest.mark.parametrize("is_host", [False, True])
def test_blank_pieces_are_zero_wherever_they_are(is_host: bool, changes: list[tuple[str, int]]) -> None:
    job, steps = prepared("mlp")
    device, state = MemoryDevice(is_host=is_host), job.state()
    reference = job.state()
    runner, plain = Runner(device, state, steps), Runner(MemoryDevice(), reference, steps)
    plain.adopt((LIVENESS,) * 3, 1)
    runner.adopt((LIVENESS,) * 3, 1)
    for change, number in changes:
        match change:
            case "train":
                for each in (runner, plain):
                    each.train(*job.batches[number % len(job.batches)], 0.1)
            case "load":
                values = {
                    name: v if name == STEPS_NAME else (torch.ones_like(v) * (number % 2)).to(v.dtype)
                    for name, v in reference.export().items()
                }
                state.load(values)
                reference.load(values)
            case _:
                if change == "park":
                    runner.park()
                runner.adopt(tuple(random_plan(step.graph, number, share=1.0) for step in steps), 2)
        device.settle()
        exported, expected = state.export(), reference.export()
        assert all(torch.equal(exported[name], value) for name, value in expected.items())
        for piece in state.blank:
            if piece in state.resident:
                assert not bytes_of(state.storage(piece)).any()
