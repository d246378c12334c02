"""Records the calls of a traced step, node by node, on the recorder's fake tensors.

A batch may be computed in parts (passes.py), like the micro-batches of eager's gradient accumulation. It is uploaded
whole. The traced graph of a part's size is then replayed for each part, forward and backward pass, and the part's
gradients are added to those of earlier parts as soon as they exist.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from indb_tensile.errors import GraphError, RequestError
from indb_tensile.executor.capture.aten import is_operator
from indb_tensile.executor.capture.early_exchanges import EarlyExchanges
from indb_tensile.executor.capture.number_arguments import DROPOUT
from indb_tensile.executor.capture.optimizer import AVERAGE, state_name
from indb_tensile.executor.capture.owner_gradients import OwnerGradients
from indb_tensile.executor.capture.part_gradients import PartGradients
from indb_tensile.executor.capture.passes import Passes
from indb_tensile.executor.capture.rank_gradients import RankGradients
from indb_tensile.executor.capture.rank_share import RankShare, Reduce
from indb_tensile.executor.capture.rank_statistics import PartStatistics, RankStatistics
from indb_tensile.executor.capture.record import Recorder
from indb_tensile.executor.capture.running_statistics import RunningStatistics, find_running_statistics
from indb_tensile.executor.capture.skipped_numbers import dropout_words, skip_words
from indb_tensile.executor.capture.state_division import StateDivision
from indb_tensile.executor.capture.step_trace import Loss, TracedStep, fake_like, fakes_of, trace
from indb_tensile.executor.capture.storage_layout import StoredTensor
from indb_tensile.executor.capture.update import Gradients
from indb_tensile.scheduler.graph import Role, Stage

INPUTS = ("x", "y")

_aten = torch.ops.aten
_HOST = torch.device("cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """The fakes that replaying a traced step leaves on a recorder."""

    loss: torch.Tensor
    outputs: torch.Tensor | None
    trained: tuple[str, ...]  # the parameters that the loss depends on, in the module's order
    gradients: dict[str, torch.Tensor]  # of `trained`, or of those of them that this device updates
    constants: dict[str, torch.Tensor]  # real tensors that the module closes over


def replay_step(
    recorder: Recorder,
    module: nn.Module,
    loss: Loss,
    stored: tuple[StoredTensor, ...],
    batch: tuple[Any, Any],
    *,
    train: bool,
    passes: Passes,
    averaged: bool = False,
    share: RankShare | None = None,
    state_division: StateDivision | None = None,
    place: torch.device | None = None,
) -> Replayed:
    """Trace `module` and `loss` on fakes of the recorder's mode and record every call of the step.

    With a `share` (several devices train together), only this rank's parts are computed, and gradients and losses are
    exchanged with the other ranks. With `state_division` each rank gets the gradients that it updates with. The
    kernels of `place` will run the step, by default those of the processor.

    `batch` holds example tensors: real, fake or meta. Nothing is allocated and the module does not change. All
    persistent values of `stored` are declared first. If `averaged`, the step reads the averages of parameters in
    place of the parameters.
    """
    mode = recorder.mode
    state = {v.name: recorder.declare(v.name, s.role, fake) for s in stored for v, fake in fakes_of(mode, s)}
    if averaged:
        state |= {name: state[average] for name in state if (average := state_name(AVERAGE, name)) in state}
    first_names = _tied(module)
    for subject, example in zip(("a batch of", "the labels' batch of"), batch, strict=True):
        if not example.dim() or not example.shape[0]:
            hint = "Give a batch whose first dimension counts its rows, with at least 1."
            raise RequestError(f"{subject} shape {tuple(example.shape)} has no rows", hint=hint)
    parts = passes.parts(int(batch[0].shape[0]))
    joints: dict[int, TracedStep] = {}  # the graph of forward and backward pass, by the number of rows of a part
    for rows in dict.fromkeys(map(len, parts)):
        examples = [fake_like(mode, example[:rows]) for example in batch]
        joints[rows] = trace(mode, module, loss, state, examples, train=train, autocast=passes.autocast)
    with torch.set_grad_enabled(False):
        uploads = _Uploads(recorder)
        uploads.add_batch([fake_like(mode, example) for example in batch])
        for joint in joints.values():
            uploads.add_constants(joint)
        gradients = _collector(recorder, share, len(parts), state_division)
        replays = [
            _Replay(recorder, joints[len(part)], state, first_names, uploads, _Part.of(parts, k), gradients)
            for k, part in enumerate(parts)
        ]
        names = replays[0].trained  # their order changes a norm over all gradients
        if isinstance(gradients, PartGradients | RankGradients):
            assert share is not None
            statistics = RankStatistics(recorder, state, replays[0].running(), share, len(parts), place or _HOST)
            computed = _run_share(replays, share, statistics)
            exchanges = EarlyExchanges(recorder)
            statistics.plan(exchanges)
            total, ordered = gradients.totals(exchanges, names, [p.loss for p in computed], replays[0].loss_type)
            statistics.update()
        else:
            computed = [replay.run() for replay in replays]
            total, ordered = computed[0].loss, {name: gradients[name] for name in names}
            for other in computed[1:]:
                total = recorder.call(Stage.BACKWARD, _aten.add.Tensor, total, other.loss)
    outputs = computed[0].outputs if computed else None
    own = {name: g for name, g in ordered.items() if state_division is None or state_division.owns(name)}
    return Replayed(loss=total, outputs=outputs, trained=names, gradients=own, constants=uploads.constants)


def _collector(
    recorder: Recorder, share: RankShare | None, parts: int, state_division: StateDivision | None
) -> Gradients | PartGradients:
    """Return what collects the gradients of the parts, of one device or as one of several."""
    if share is None:
        return Gradients(recorder)
    if share.reduce is Reduce.FAST:
        return RankGradients(recorder, share.ranks)
    if state_division is not None:
        return OwnerGradients(recorder, share, parts, state_division)
    return PartGradients(recorder, share, parts)


def _run_share(replays: list["_Replay"], share: RankShare, statistics: RankStatistics) -> list["_Replay"]:
    """Replay the rank's parts, and return them. Their `statistics` are kept, and update no running ones.

    Of other parts only the random numbers are drawn, so that each part has the numbers that it has on one device.
    """
    parts_of_rank = share.own(len(replays))
    for number, replay in enumerate(replays):
        if number in parts_of_rank:
            replay.run(statistics)
        else:
            replay.draw()
    return [replays[number] for number in parts_of_rank]


def _tied(module: nn.Module) -> dict[str, str]:
    """Map every name of a parameter or buffer to the first name of the same tensor."""
    first: dict[int, str] = {}
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    return {name: first.setdefault(id(tensor), name) for name, tensor in named}


class _Uploads:
    """The tensors that the step copies from the host: the batch, and tensors that the module closes over."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.constants: dict[str, torch.Tensor] = {}

    def add_batch(self, inputs: list[torch.Tensor]) -> None:
        for name, fake in zip(INPUTS, inputs, strict=True):
            self._add(name, fake)

    def add_constants(self, joint: TracedStep) -> None:
        for node in joint.nodes:
            if node.op == "get_attr":
                constant = _constant(joint, node)
                if self._name(constant) is None:
                    name = f"constant_{node.name}"
                    name = name if name not in self.constants else f"{name}_{len(self.constants)}"
                    self._add(name, fake_like(self._recorder.mode, constant))
                    self.constants[name] = constant

    def of(self, joint: TracedStep, node: fx.Node) -> torch.Tensor:
        """Return the uploaded fake of the constant that this node reads."""
        name = self._name(_constant(joint, node))
        assert name is not None
        return self._recorder.fake(name)

    def _name(self, constant: torch.Tensor) -> str | None:
        return next((name for name, known in self.constants.items() if known is constant), None)

    def _add(self, name: str, fake: torch.Tensor) -> None:
        # The recorded call only allocates. The program adds the copy from the host.
        uploaded: torch.Tensor = self._recorder.call(
            Stage.UPLOAD,
            _aten.empty.memory_format,
            list(fake.shape),
            dtype=fake.dtype,
            device=fake.device,
            name=name,
        )
        self._recorder.storages[self._recorder.key_of(uploaded)].role = Role.INPUT


def _constant(joint: TracedStep, node: fx.Node) -> torch.Tensor:
    constant = getattr(joint.graph_module, str(node.target))
    if not isinstance(constant, torch.Tensor):
        raise RequestError(
            f"the model uses {node.target}, a {type(constant).__name__}, inside its forward pass",
            hint="Only plain tensor operations can be captured.",
        )
    return constant


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """One part of a batch. `suffix` makes the names of its values unique; `weight` is its share of the rows.

    `alone` is true if the batch has only this part.
    """

    rows: range
    suffix: str
    weight: float
    alone: bool

    @classmethod
    def of(cls, parts: tuple[range, ...], index: int) -> "_Part":
        rows, total = parts[index], parts[-1].stop
        suffix = f"_part_{index}" if index else ""
        return cls(rows=rows, suffix=suffix, weight=len(rows) / total, alone=len(parts) == 1)


class _Replay:
    """Walks one traced graph once, node by node, on the recorder's fakes, and adds to `gradients`."""

    def __init__(
        self,
        recorder: Recorder,
        joint: TracedStep,
        state: dict[str, torch.Tensor],
        first_names: dict[str, str],
        uploads: _Uploads,
        part: _Part,
        gradients: Gradients | PartGradients,
    ) -> None:
        self._recorder = recorder
        self._joint = joint
        self._state = state
        self._first_names = first_names
        self._uploads = uploads
        self._part = part
        self._gradients = gradients
        self._env: dict[fx.Node, Any] = {}  # the value of each node that has been replayed
        self._stage = Stage.FORWARD
        self._kept: PartStatistics | None = None
        self._contributions, self._last_of = self._sort_gradients()

    def run(self, statistics: RankStatistics | None = None) -> "_Replay":
        """Record the part's forward and backward pass.

        The statistics of batch normalisations go to `statistics`; without it they update the running ones.
        """
        if statistics is not None:
            self._kept = statistics.begin_part(self.running())
        for node in self._joint.nodes:
            if node.op == "placeholder":
                self._place(node)
            elif node.op == "get_attr":
                self._env[node] = self._uploads.of(self._joint, node)
            elif node.op == "call_function":
                self._call(node)
            elif node.op != "output":
                raise GraphError(f"the traced step has a node of kind {node.op}: {node.format_node()}")
            for name in self._last_of.get(node, ()):
                self._collect(name)
        if self.loss.dim() != 0:
            raise RequestError(
                f"the loss has shape {tuple(self.loss.shape)}", hint="It must be one number: reduce it."
            )
        return self

    def draw(self) -> None:
        """Record only that random numbers are drawn: dropouts are skipped, and other operators draw.

        Those get tensors of the shapes that the part would have.
        """
        skipped = 0
        for node in self._joint.nodes:
            if node.op == "call_function" and torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
                if (words := _words_of(node)) is not None:
                    skipped += words
                    continue
                name = node.name + self._part.suffix
                args: tuple[Any, ...] = fx.map_arg(node.args, self._blank)
                kwargs: dict[str, Any] = fx.map_arg(node.kwargs, self._blank)
                self._recorder.call(Stage.FORWARD, _operator_of(node), *args, name=name, **kwargs)
        if skipped:
            self._recorder.call(Stage.FORWARD, skip_words, skipped)

    def _blank(self, node: fx.Node) -> Any:
        """Return zeros in the shape of the node's value, which is all that drawing random numbers needs."""
        value = node.meta["val"]
        if not isinstance(value, torch.Tensor):
            return value
        kind: dict[str, Any] = {"dtype": value.dtype, "device": value.device}
        blank = self._recorder.call(
            Stage.FORWARD, _aten.empty_strided.default, list(value.shape), list(value.stride()), **kind
        )
        self._recorder.call(Stage.FORWARD, _aten.zero_.default, blank)
        return blank

    def running(self) -> RunningStatistics:
        """Return the running statistics that the part updates. Raises RequestError if it updates anything else."""
        return find_running_statistics(self._joint, self._first_names)

    @property
    def loss_type(self) -> torch.dtype:
        """The type of the loss, which is known before the part is replayed."""
        dtype: torch.dtype = self._joint.loss.meta["val"].dtype
        return dtype

    @property
    def loss(self) -> torch.Tensor:
        """The loss, weighted by the part's share of the rows."""
        loss: torch.Tensor = self._env[self._joint.loss]
        return loss

    @property
    def outputs(self) -> torch.Tensor | None:
        """The module's return value, if the trace keeps it."""
        return None if self._joint.outputs is None else self._env[self._joint.outputs]

    @property
    def trained(self) -> tuple[str, ...]:
        """The parameters that the loss depends on, in the module's order."""
        return tuple(self._contributions)

    def _place(self, node: fx.Node) -> None:
        if self._kept is not None and self._kept.replaces(node):
            self._env[node] = self._kept.replacement(node)
        elif node in self._joint.state:
            self._env[node] = self._state[self._first_names[self._joint.state[node]]]
        elif node in self._joint.inputs:
            self._env[node] = self._input(INPUTS[self._joint.inputs[node]])

    def _input(self, name: str) -> torch.Tensor:
        whole = self._recorder.fake(name)
        if self._part.alone:
            return whole
        rows = self._part.rows
        label = f"{name}_rows_{rows.start}"
        part: torch.Tensor = self._recorder.call(
            Stage.FORWARD, _aten.slice.Tensor, whole, 0, rows.start, rows.stop, name=label
        )
        return part

    def _call(self, node: fx.Node) -> None:
        if self._stage is Stage.FORWARD and self._joint.tangents.intersection(node.all_input_nodes):
            self._start_backward()
        if self._kept is not None and self._kept.replaces(node):
            self._env[node] = self._kept.replacement(node)
            return
        args: tuple[Any, ...] = fx.map_arg(node.args, lambda n: self._env[n])
        if self._kept is not None:
            args = self._kept.arguments(node, args)
        kwargs: dict[str, Any] = fx.map_arg(node.kwargs, lambda n: self._env[n])
        if node.target is operator.getitem:
            self._env[node] = args[0][args[1]]
        else:
            name = node.name + self._part.suffix
            self._env[node] = self._recorder.call(self._stage, _operator_of(node), *args, name=name, **kwargs)
        if self._kept is not None:
            self._kept.keep(node, self._env[node])
            return
        for buffer, value in self._joint.updates.get(node, ()):
            into = self._state[self._first_names[buffer]]
            self._recorder.call(self._stage, _aten.copy_.default, into, self._env[value])

    def _start_backward(self) -> None:
        loss = self.loss
        if not self._part.alone:
            loss = self._recorder.call(Stage.FORWARD, _aten.mul.Tensor, loss, self._part.weight)
            self._env[self._joint.loss] = loss
        self._stage = Stage.BACKWARD
        for tangent in self._joint.tangents:
            self._env[tangent] = self._tangent(loss, tangent.name + self._part.suffix)

    def _tangent(self, loss: torch.Tensor, name: str) -> torch.Tensor:
        """Record the gradient with which the backward pass begins: 1, weighted by the part's share of the rows."""
        tangent: torch.Tensor = self._recorder.call(
            Stage.BACKWARD, _aten.ones_like.default, loss, pin_memory=False, name=name
        )
        if not self._part.alone:
            tangent = self._recorder.call(Stage.BACKWARD, _aten.mul.Tensor, tangent, self._part.weight)
        return tangent

    def _sort_gradients(self) -> tuple[dict[str, list[fx.Node]], dict[fx.Node, list[str]]]:
        """Return the summands of each parameter's gradient, and the parameters whose gradient each node completes.

        Summands are in the order of computation.
        """
        position = {node: k for k, node in enumerate(self._joint.nodes)}
        contributions: dict[str, list[fx.Node]] = {}
        for name, node in self._joint.gradients:
            contributions.setdefault(self._first_names[name], []).append(node)
        last_of: dict[fx.Node, list[str]] = {}
        for name, nodes in contributions.items():
            nodes.sort(key=position.__getitem__)
            last_of.setdefault(nodes[-1], []).append(name)
        return contributions, last_of

    def _collect(self, name: str) -> None:
        """Add the summands in the order in which they are computed, as eager's engine does."""
        first, *others = (self._env[node] for node in self._contributions[name])
        gradient: torch.Tensor = first
        for other in others:
            gradient = self._recorder.call(Stage.BACKWARD, _aten.add.Tensor, gradient, other)
        if self._part.alone:
            self._gradients.put(name, gradient)
        else:
            self._gradients.add(name, gradient)


def _words_of(node: fx.Node) -> int | None:
    """Return how many words of the processor's generator a dropout takes; None if that is not known."""
    if node.target is not DROPOUT:
        return None
    value, rate, trains = node.args
    assert isinstance(value, fx.Node)
    assert isinstance(rate, float)
    of_processor = value.meta["val"].device.type == "cpu"
    return dropout_words(value.meta["val"].numel()) if of_processor and trains is True and 0.0 < rate < 1.0 else None


def _operator_of(node: fx.Node) -> Callable[..., Any]:
    if not is_operator(node.target) or not callable(node.target):
        raise RequestError(
            f"the model uses {node.target}, which cannot be captured",
            detail=node.format_node() or "",
            hint="Only plain tensor operations can be captured.",
        )
    return node.target
