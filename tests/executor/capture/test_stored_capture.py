"""Captured steps are stored and read back unchanged. Any other content is refused and runs nothing."""

import pickle
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from indb_tensile.errors import DataError
from indb_tensile.executor.capture.optimizer import OptimizerSettings
from indb_tensile.executor.capture.passes import WHOLE, Passes
from indb_tensile.executor.capture.step_capture import StepKind
from indb_tensile.executor.capture.step_numbers import StepNumbers
from indb_tensile.executor.capture.stored_capture import capture_key, decode, encode, is_storable
from indb_tensile.executor.latency.calibrate import add_scripts
from tests.executor.conftest import captured
from tests.executor.models import BATCH, DAILY_KINDS, SHAPES, make_job

WITH_CONSTANTS = ("constant",)  # their steps hold values that the key does not contain
STORABLE_KINDS = [case for case in DAILY_KINDS if case.values[0] not in WITH_CONSTANTS]


@pytest.mark.by_day("cnn", "transformer", "tied")
@pytest.mark.parametrize("kind", STORABLE_KINDS)
def test_steps_are_read_back_unchanged(kind: str) -> None:
    steps = captured(kind)
    assert is_storable(steps)
    assert decode(encode(steps)) == steps


@pytest.mark.parametrize("kind", WITH_CONSTANTS)
def test_steps_of_a_module_with_constants_are_not_storable(kind: str) -> None:
    steps = captured(kind)
    assert any(step.constants for step in steps)
    assert not is_storable(steps)


def test_scripts_are_stored_with_the_steps() -> None:
    steps = add_scripts(captured("mlp"))
    assert [step.scripts for step in decode(encode(steps))] == [step.scripts for step in steps]


class Command:
    """A value whose pickle would run a command."""

    def __reduce__(self) -> tuple[Any, ...]:
        return eval, ("1 + 1",)


@pytest.mark.parametrize(
    "value",
    [Command(), (Command(),), nn.Linear(1, 1), torch.Size([1]), (), ("text",), (b"", {}), OptimizerSettings()],
)
def test_content_that_holds_anything_else_is_refused(value: object) -> None:
    with pytest.raises(DataError):
        decode(pickle.dumps(value))


@pytest.mark.parametrize("name", ["load", "manual_seed", "no_such_name", "nn"])
def test_references_to_torchs_functions_are_refused(name: str) -> None:
    class Writer(pickle._Pickler):  # the one in Python, which tests can change
        def persistent_id(self, obj: object) -> tuple[str, str] | None:
            return ("torch", name) if obj == "here" else None

    class Content(list[bytes]):
        def write(self, data: bytes) -> None:
            self.append(bytes(data))

    content = Content()
    Writer(content).dump(("here",))
    with pytest.raises(DataError, match="unknown reference"):
        decode(b"".join(content))


@cache  # not at import, which every test process does
def _stored() -> bytes:
    return encode(captured("mlp"))


@given(st.data())
def test_damaged_content_is_refused_or_gives_steps(data: st.DataObject) -> None:
    content = bytearray(_stored())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        steps = decode(bytes(content[: data.draw(st.integers(0, len(content)))]))
    except DataError:
        return
    assert all(type(step).__name__ == "CapturedStep" for step in steps)


def test_a_value_that_no_reader_knows_is_not_stored() -> None:
    step = captured("mlp")[0]
    call = replace(step.steps[0].kernel, kwargs={"value": torch.zeros(1)})
    with pytest.raises(DataError, match="cannot be stored"):
        decode(encode((replace(step, steps=(replace(step.steps[0], kernel=call), *step.steps[1:])),)))


def test_steps_with_constants_are_not_storable() -> None:
    step = captured("mlp")[0]
    assert not is_storable((replace(step, constants={"table": torch.zeros(1)}),))


def _key(numbers: OptimizerSettings | None = None, **changes: Any) -> str:
    job = make_job("mlp")
    values: dict[str, Any] = {
        "architecture": {"type": "mlp"},
        "module": job.module,
        "loss": job.loss,
        "kind": StepKind.TRAINING,
        "batch": job.batches[0],
        "passes": WHOLE,
        "place": {"device": "cpu"},
    }
    values |= changes
    return capture_key(**values, numbers=StepNumbers.of(values["module"], numbers or OptimizerSettings()))


def test_equal_captures_have_one_key_whatever_the_values_of_tensors_are() -> None:
    other = make_job("mlp", seed=7)
    assert _key() == _key(module=other.module, batch=other.batches[0])


def _with_dropouts(*rates: float) -> dict[str, Any]:
    layers = [nn.Sequential(nn.Linear(5, 5), nn.Dropout(rate)) for rate in rates]
    return {"module": nn.Sequential(*layers), "architecture": {"layers": [{"p": rate} for rate in rates]}}


def test_equal_captures_have_one_key_whatever_their_numbers_are() -> None:
    decays = (OptimizerSettings(weight_decay=decay, betas=(beta, 0.9)) for decay, beta in ((0.1, 0.5), (0.2, 0.6)))
    assert len({_key(decay) for decay in decays}) == 1
    assert _key(**_with_dropouts(0.1, 0.2, 0.1)) == _key(**_with_dropouts(0.4, 0.3, 0.4))
    module = _with_dropouts(0.1)["module"]
    _key(module=module)
    assert module[0][1].p == 0.1


@pytest.mark.parametrize("rates", [(0.4, 0.4, 0.3), (0.4, 0.4, 0.4), (0.4, 0.0, 0.4), (0.4, 1.0, 0.4)])
def test_dropouts_that_differ_otherwise_have_another_key(rates: tuple[float, ...]) -> None:
    assert _key(**_with_dropouts(*rates)) != _key(**_with_dropouts(0.1, 0.2, 0.1))


def _frozen() -> nn.Module:
    module = make_job("mlp").module
    next(module.parameters()).requires_grad_(False)
    return module


@pytest.mark.parametrize(
    "changes",
    [
        {"architecture": {"type": "mlp", "dropout": 0.5}},
        {"module": make_job("cnn").module},
        {"module": _frozen()},
        {"module": make_job("mlp").module.double()},
        {"loss": nn.CrossEntropyLoss(label_smoothing=0.1)},
        {"loss": nn.CrossEntropyLoss(weight=torch.ones(5))},
        {"kind": StepKind.EVALUATION},
        {"batch": make_job("mlp").batches[-1]},
        {"batch": (torch.zeros(BATCH, *SHAPES["mlp"][1]).half(), torch.zeros(BATCH, dtype=torch.int64))},
        {"numbers": OptimizerSettings(kind="sgd")},
        {"numbers": OptimizerSettings(kind="sgd", momentum=0.9)},
        {"numbers": OptimizerSettings(clip_norm=1.0)},
        {"numbers": OptimizerSettings(weight_decay=0.1)},
        {"numbers": OptimizerSettings(average_decay=0.9)},
        {"passes": Passes(micro_batch_size=2)},
        {"passes": Passes(precision="float32")},
        {"place": {"device": "cuda:A"}},
    ],
)
def test_whatever_changes_a_capture_changes_its_key(changes: dict[str, Any]) -> None:
    assert _key(**changes) != _key()
