"""Move feature maps layer by layer, as vDNN and SuperNeurons do: out in the forward pass, back in the backward pass.

A layer's computation hides one layer's copy. In the forward pass the offload of a layer's feature map starts when the
last layer that uses it there has run (vDNN counts references for networks that fork and join). In the papers it can
start earlier, beside the layer that reads the map. Here it cannot, because a plan's tensor leaves after an access.
The copy therefore either gets the next layer's computation to hide behind (NEXT_LAYER), or is waited for at once
(AT_ONCE); then the memory is free as early as in the papers, and nothing is hidden. In the backward pass the prefetch
starts with the backward computation of the preceding layer, in the order of that pass, which has to hide it.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto

from indb_tensile.scheduler.graph import OpIndex, Stage, StepGraph, TensorId
from indb_tensile.scheduler.memory.peak import Gap, accesses
from indb_tensile.scheduler.plan import Swap
from indb_tensile.scheduler.policies.layer_kinds import LayerKind, is_backward, kind_of
from indb_tensile.scheduler.recomputation.carry import with_copies

_LAYERS = frozenset(
    {LayerKind.CONVOLUTION, LayerKind.LINEAR}
)  # the kinds that compute long enough to count as a layer


class Offload(Enum):
    """The time by which the copy of a feature map to the host has to be over."""

    AT_ONCE = auto()  # before anything else is computed
    NEXT_LAYER = auto()  # when the next layer's computation ends


def turning_point(graph: StepGraph) -> int:
    """Return the first operator of the backward pass; past the end if there is none."""
    count = len(graph.operators)
    return next((k for k, op in enumerate(graph.operators) if is_backward(op)), count)


def feature_gaps(graph: StepGraph, turn: int | None = None) -> dict[TensorId, Gap]:
    """Return for each tensor of the forward pass that the backward pass uses the gap between the passes, if there is
    one.

    The backward pass starts at `turn`: at its first operator, or earlier with operators that are re-run for it.
    """
    turn = turning_point(graph) if turn is None else turn
    gap_of = {}
    for tensor, ops in zip(graph.tensors, accesses(graph), strict=True):
        split = bisect_left(ops, turn)
        if not tensor.persistent and 0 < split < len(ops) and ops[split] > ops[split - 1] + 1:
            gap_of[tensor.id] = Gap(tensor=tensor.id, out_after=ops[split - 1], needed_by=ops[split])
    return gap_of


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPasses:
    """The positions at which the layers of both passes compute."""

    forward: tuple[int, ...]  # convolutions and linear layers
    backward: tuple[int, ...]  # gradients of convolutions
    turn: int

    @staticmethod
    def of(graph: StepGraph, turn: int) -> "LayerPasses":
        """Determine the passes from the names of operators and from the start of the backward pass."""
        kinds = [kind_of(operator.name) for operator in graph.operators]
        stages = [operator.stage for operator in graph.operators]
        return LayerPasses(
            forward=tuple(k for k, kind in enumerate(kinds[:turn]) if kind in _LAYERS and stages[k] is Stage.FORWARD),
            backward=tuple(
                k for k, kind in enumerate(kinds) if kind is LayerKind.CONVOLUTION and stages[k] is Stage.BACKWARD
            ),
            turn=turn,
        )

    def offloaded_by(self, gap: Gap, offload: Offload) -> int:
        """Return the boundary at which the gap's tensor is away."""
        if offload is Offload.AT_ONCE:
            return gap.out_after + 1
        following = bisect_right(self.forward, gap.out_after)
        return (self.forward[following] if following < len(self.forward) else gap.out_after + 1) + 1

    def prefetched_from(self, gap: Gap) -> int:
        """Return the boundary that takes the tensor's memory: with the preceding layer, at the earliest at the pass's
        start.
        """
        before = bisect_left(self.backward, gap.needed_by)
        return self.backward[before - 1] if before else min(self.turn, gap.needed_by)


def swapped(
    graph: StepGraph, tensors: Iterable[TensorId], offload: Offload, turn: int | None = None
) -> tuple[Swap, ...]:
    """Return swaps of these tensors between the passes. Tensors that would be away at no operator are left out."""
    turn = turning_point(graph) if turn is None else turn
    passes, gaps = LayerPasses.of(graph, turn), feature_gaps(graph, turn)
    swaps = []
    for tensor in tensors:
        gap = gaps.get(tensor)
        if gap is None:
            continue
        free, back = passes.offloaded_by(gap, offload), passes.prefetched_from(gap)
        if gap.out_after < free < back <= gap.needed_by:
            swaps.append(
                Swap(
                    tensor=tensor,
                    out_after=gap.out_after,
                    free_at=OpIndex(free),
                    in_at=OpIndex(back),
                    needed_by=gap.needed_by,
                )
            )
    return with_copies(graph, swaps)
