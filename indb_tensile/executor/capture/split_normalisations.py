"""Splits batch normalisations, so that a plan can normalise again without computing the statistics again.

A normalisation that trains becomes two operators: the first computes the statistics, and the second the normalised
values with them (normalise_again.py). The planner needs to know nothing of it: to recompute the normalised values it
runs the second operator, which is several times faster than the whole.

When both run for the first time, the program runs the whole normalisation in place of the second operator
(run/joint_normalisations.py), so a split costs nothing. Where it cannot, the first operator makes the normalised
values as well, in its workspace, and drops them.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from indb_tensile.executor.capture.normalise_again import gives_same_bits, normalise_again
from indb_tensile.executor.capture.record import Call, Ref, Shape
from indb_tensile.executor.capture.running_statistics import BATCH_NORM, TRAINS
from indb_tensile.executor.capture.step_capture import CapturedStep, Step, StepKind, graph_signature
from indb_tensile.scheduler.graph import Operator, StepGraph
from indb_tensile.scheduler.timing.operator_features import Description

_VALUES, _WEIGHT, _BIAS = 0, 1, 2  # positions among the arguments of a batch normalisation
_NORMALISED, _MEAN, _INVERSE = 0, 1, 2  # positions among its results
_IMAGES, _VOLUMES = 4, 5  # dimensions of values that may have their channels last


def with_split_normalisations(step: CapturedStep) -> CapturedStep:
    """Return the step with each batch normalisation split for which that gives the same bits, on the processor."""
    numbers = {k for k, run in enumerate(step.steps) if _is_splittable(step, run)}
    if not numbers:
        return step
    steps: list[Step] = []
    operators: list[Operator] = []
    for k, (run, operator) in enumerate(zip(step.steps, step.graph.operators, strict=True)):
        parts = _split_steps(step, run) if k in numbers else (run,)
        steps += parts
        operators += _split_operators(step, operator, parts) if len(parts) > 1 else (operator,)
    graph = StepGraph(
        tensors=step.graph.tensors,
        operators=tuple(operators),
        signature=graph_signature(step.kind, step.graph.tensors, tuple(operators)),
    )
    return replace(step, graph=graph, steps=tuple(steps))


def _is_splittable(step: CapturedStep, run: Step) -> bool:
    call = run.kernel
    if step.kind is not StepKind.TRAINING or call.target is not BATCH_NORM or call.args[TRAINS] is not True:
        return False
    if run.returns or not all(call.results[:3]) or not isinstance(call.args[_VALUES], Ref):
        return False
    _, normalised = _normalised(step, call)
    values = step.values[call.args[_VALUES].name]
    parameters = [call.args[position] for position in (_WEIGHT, _BIAS)]
    affine = [step.values[item.name] for item in parameters if isinstance(item, Ref)]
    alike = all(shape.dtype == values.dtype for shape in (*affine, *_statistics(step, call)))
    own = [name for name, shape in step.values.items() if shape.storage == normalised.storage]
    whole = normalised.offset == 0 and normalised.storage in step.tensor_of and own[0] == call.results[_NORMALISED]
    layout = _layout(values)
    return (
        alike
        and whole
        and len(affine) in (0, len(parameters))
        and values.dtype in (torch.float32, torch.float64)
        and layout is not None
        and gives_same_bits(values.dtype, len(values.shape), channels_last=layout, affine=bool(affine))
    )


def _normalised(step: CapturedStep, call: Call) -> tuple[str, Shape]:
    name = call.results[_NORMALISED]
    assert name is not None
    return name, step.values[name]


def _statistics(step: CapturedStep, call: Call) -> Iterator[Shape]:
    for position in (_MEAN, _INVERSE):
        name = call.results[position]
        assert name is not None
        yield step.values[name]


def _layout(shape: Shape) -> bool | None:
    """Return whether the channels of dense values come last; None if the values are not dense."""
    made = torch.empty_strided(shape.shape, shape.stride, dtype=shape.dtype, device="meta")
    if made.is_contiguous():
        return False
    formats = {_IMAGES: torch.channels_last, _VOLUMES: torch.channels_last_3d}
    layout = formats.get(len(shape.shape))
    return True if layout is not None and made.is_contiguous(memory_format=layout) else None


def _split_steps(step: CapturedStep, run: Step) -> tuple[Step, Step]:
    """Return the two operators. The first returns no normalised values."""
    call = run.kernel
    name, shape = _normalised(step, call)
    first = replace(
        call,
        results=(None, *call.results[1:]),
        writes=tuple(written for written in call.writes if written != shape.storage),
        signature=_signature("statistics", call),
    )
    known = [call.args[position] for position in (_VALUES, _WEIGHT, _BIAS)]
    statistics = [Ref(result) for result in call.results[_MEAN : _INVERSE + 1] if result is not None]
    args: tuple[Any, ...] = (*known, *statistics)
    second = Call(
        target=normalise_again,
        stage=call.stage,
        args=args,
        kwargs={},
        results=(name,),
        single=True,
        view=False,
        random=False,
        reads=tuple(dict.fromkeys(step.values[item.name].storage for item in args if isinstance(item, Ref))),
        writes=(shape.storage,),
        signature=_signature(str(normalise_again), call),
        description=_description(call.description, len(statistics) + sum(isinstance(item, Ref) for item in known)),
    )
    return replace(run, kernel=first), replace(run, kernel=second)


def _description(first: Description, inputs: int) -> Description:
    """Return the description of the second operator, which reads so many tensors."""
    normalised, *statistics = first.outputs[: _INVERSE + 1]
    return Description(
        name=str(normalise_again),
        inputs=(*first.inputs[: inputs - len(statistics)], *statistics),
        outputs=(normalised,),
        parameters=(),
        flops=first.flops,
    )


def _split_operators(step: CapturedStep, operator: Operator, parts: Sequence[Step]) -> tuple[Operator, Operator]:
    first, second = (part.kernel for part in parts)
    (values,) = (step.tensor_of[key] for key in second.writes)
    statistics = replace(
        operator,
        signature=first.signature,
        writes=tuple(tensor for tensor in operator.writes if tensor != values),
        workspace_bytes=operator.workspace_bytes + step.graph.tensors[values].size_bytes,
    )
    normalises = Operator(
        name=str(second.target),
        signature=second.signature,
        stage=second.stage,
        reads=tuple(step.tensor_of[key] for key in second.reads if key in step.tensor_of),
        writes=(values,),
        flops=second.flops,
    )
    return statistics, normalises


def _signature(part: str, whole: Call) -> str:
    return hashlib.sha256(json.dumps([part, whole.signature]).encode()).hexdigest()
