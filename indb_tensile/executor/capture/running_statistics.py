"""Finds the running statistics that a traced step updates, so that several devices can update them together.

A batch normalisation that trains reads its running statistics only to update them: its result comes from the
statistics of the batch at hand. So each device can compute its parts of a batch with any running statistics, keep the
statistics of the parts, and update the running ones once it has those of all parts (rank_statistics.py). For that,
nothing else may read them.
"""

import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from indb_tensile.errors import RequestError
from indb_tensile.executor.capture.step_trace import TracedStep

_aten = torch.ops.aten
BATCH_NORM = _aten._native_batch_norm_legit_functional.default  # noqa: SLF001 - the operator's name
_BACKWARD = _aten.native_batch_norm_backward.default
# Positions among the arguments of BATCH_NORM. The new running statistics are results at the same positions.
MEAN, VARIANCE = 3, 4
TRAINS, MOMENTUM = 5, 6
_TRAINS_BACKWARD = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistic:
    """The mean or the variance (`kind`) of what a batch normalisation sees, for the running one in `buffer`."""

    norm: fx.Node
    kind: int
    buffer: str

    @property
    def momentum(self) -> float:
        """The weight of the batch's statistic in the new running one."""
        momentum: float = self.norm.args[MOMENTUM]  # type: ignore[assignment] # a number of the traced call
        return momentum

    @property
    def seen(self) -> torch.Tensor:
        """The fake of the values that are normalised."""
        seen: torch.Tensor = self.norm.args[0].meta["val"]  # type: ignore[union-attr] # a node of the graph
        return seen


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningStatistics:
    """The statistics of a traced step in the order in which one device updates the running ones.

    `counts` says by how much a part of a batch raises each counter of batches. `unread` are the nodes whose values
    are running statistics or counters, which have no effect on a part's results.
    """

    statistics: tuple[Statistic, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    unread: frozenset[fx.Node] = frozenset()

    def by_node(self) -> dict[fx.Node, dict[int, Statistic]]:
        """Return the statistics of each batch normalisation, by their positions."""
        nodes: dict[fx.Node, dict[int, Statistic]] = {}
        for k, statistic in enumerate(self.statistics):
            nodes.setdefault(statistic.norm, {})[k] = statistic
        return nodes


def find_running_statistics(joint: TracedStep, first_names: Mapping[str, str]) -> RunningStatistics:
    """Return the running statistics that the step updates. `first_names` has the first name of each shared tensor.

    Raises RequestError if the step updates anything else, or uses running statistics for anything else.
    """
    placeholders = {name: node for node, name in joint.state.items()}
    position = {node: k for k, node in enumerate(joint.nodes)}
    statistics: list[Statistic] = []
    counts: dict[str, int] = {}
    unread: set[fx.Node] = set()
    for updated, value in (update for updates in joint.updates.values() for update in updates):
        chain = _chain(value, placeholders[updated])
        if chain is None or not all(_is_unread(node, chain) for node in chain):
            raise _refused(updated)
        unread.update(chain)
        buffer = first_names[updated]
        for node in chain[1:]:
            if node.target is operator.getitem:
                norm, kind = _statistic_of(node)
                statistics.append(Statistic(norm=norm, kind=kind, buffer=buffer))
            else:
                counts[buffer] = counts.get(buffer, 0) + _counted(node)
    statistics.sort(key=lambda statistic: position[statistic.norm])
    return RunningStatistics(statistics=tuple(statistics), counts=counts, unread=frozenset(unread))


def _chain(value: fx.Node, placeholder: fx.Node) -> list[fx.Node] | None:
    """Return the nodes from the old value of a buffer to its new one; None if that comes from anything else."""
    chain = [value]
    while chain[-1] is not placeholder:
        before: Any = None
        node = chain[-1]
        if node.target is operator.getitem:
            norm, kind = _statistic_of(node)
            if norm.target is BATCH_NORM and kind in (MEAN, VARIANCE) and norm.args[TRAINS] is True:
                before = norm.args[kind]
        elif node.target is _aten.add.Tensor and type(node.args[1]) is int and not node.kwargs:
            before = node.args[0] if not node.meta["val"].is_floating_point() else None
        if not isinstance(before, fx.Node):
            return None
        chain.append(before)
    return chain[::-1]


def _is_unread(node: fx.Node, chain: list[fx.Node]) -> bool:
    """Return whether a value of the chain has no effect but on later values of it."""
    return all(user in chain or user.op == "output" or _ignores(user, node) for user in node.users)


def _ignores(user: fx.Node, value: fx.Node) -> bool:
    """Return whether this node is a batch normalisation that trains, and gets the value as a running statistic."""
    positions = [k for k, argument in enumerate(user.args) if argument is value]
    if user.target is BATCH_NORM:
        return user.args[TRAINS] is True and positions in ([MEAN], [VARIANCE])
    return user.target is _BACKWARD and user.args[_TRAINS_BACKWARD] is True and positions in ([MEAN], [VARIANCE])


def _statistic_of(node: fx.Node) -> tuple[fx.Node, int]:
    norm, kind = node.args
    assert isinstance(norm, fx.Node)
    assert isinstance(kind, int)
    return norm, kind


def _counted(node: fx.Node) -> int:
    number = node.args[1]
    assert isinstance(number, int)
    return number


def _refused(buffer: str) -> RequestError:
    return RequestError(
        f"the model updates its buffer {buffer} while it trains, which only one device can do",
        detail="Of all buffers, several devices together update only the running statistics of batch normalisation.",
        hint="Train on one device, or use a layer without such a buffer.",
    )
