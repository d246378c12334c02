"""Moving feature maps layer by layer, as vDNN and SuperNeurons do: out in the forward pass, back in the backward one.

What a layer's computation hides is one layer's copy. In the forward pass the offload of a layer's feature map
starts when the last layer that uses it there has run (vDNN counts references for networks that fork and join). Here
it cannot start earlier, beside the layer that reads the map, as the papers have it: a plan's tensor leaves after
an access. So the copy gets the next layer's computation to hide behind (NEXT_LAYER), or it is waited for at once
(AT_ONCE), where the memory is gone as early as in the papers and nothing is hidden. In the backward pass the
prefetch starts with the backward computation of the layer before, in the order of that pass, which has to hide it.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto

from indb_tensile.scheduler.graph import OpIndex, Stage, StepGraph, TensorId
from indb_tensile.scheduler.memory.peak import Gap, accesses
from indb_tensile.scheduler.plan import Swap
from indb_tensile.scheduler.policies.layer_kinds import Kind, is_backward, kind_of
from indb_tensile.scheduler.recomputation.carry import with_copies

_LAYERS = frozenset({Kind.CONVOLUTION, Kind.LINEAR})  # what computes long enough to count as a layer


class Offload(Enum):
    """When the copy of a feature map to the host has to be over."""

    AT_ONCE = auto()  # before anything else is computed
    NEXT_LAYER = auto()  # when the next layer's computation ends


def turning_point(graph: StepGraph) -> int:
    """The first operator of the backward pass; past the end where there is none."""
    count = len(graph.operators)
    return next((k for k, op in enumerate(graph.operators) if is_backward(op)), count)


def feature_gaps(graph: StepGraph, turn: int | None = None) -> dict[TensorId, Gap]:
    """For each tensor of the forward pass that the backward pass uses: the time between, where there is any.

    The backward pass starts at `turn`, by itself at its first operator, or earlier with what is run again for that.
    """
    turn = turning_point(graph) if turn is None else turn
    found = {}
    for tensor, ops in zip(graph.tensors, accesses(graph), strict=True):
        split = bisect_left(ops, turn)
        if not tensor.persistent and 0 < split < len(ops) and ops[split] > ops[split - 1] + 1:
            found[tensor.id] = Gap(tensor=tensor.id, out_after=ops[split - 1], needed_by=ops[split])
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """Where the layers of both passes compute."""

    forward: tuple[int, ...]  # convolutions and linear layers
    backward: tuple[int, ...]  # convolutions' gradients
    turn: int

    @staticmethod
    def of(graph: StepGraph, turn: int) -> "Passes":
        """Found by the names of operators and where the backward pass begins."""
        kinds = [kind_of(operator.name) for operator in graph.operators]
        stages = [operator.stage for operator in graph.operators]
        return Passes(
            forward=tuple(k for k, kind in enumerate(kinds[:turn]) if kind in _LAYERS and stages[k] is Stage.FORWARD),
            backward=tuple(
                k for k, kind in enumerate(kinds) if kind is Kind.CONVOLUTION and stages[k] is Stage.BACKWARD
            ),
            turn=turn,
        )

    def offloaded_by(self, gap: Gap, offload: Offload) -> int:
        """The boundary at which the gap's tensor is gone."""
        if offload is Offload.AT_ONCE:
            return gap.out_after + 1
        following = bisect_right(self.forward, gap.out_after)
        return (self.forward[following] if following < len(self.forward) else gap.out_after + 1) + 1

    def prefetched_from(self, gap: Gap) -> int:
        """The boundary that takes its memory: with the layer before, at the earliest where the pass begins."""
        before = bisect_left(self.backward, gap.needed_by)
        return self.backward[before - 1] if before else min(self.turn, gap.needed_by)


def swapped(
    graph: StepGraph, tensors: Iterable[TensorId], offload: Offload, turn: int | None = None
) -> tuple[Swap, ...]:
    """Swaps of these tensors between the passes; those of them that would be away at no operator stay."""
    turn = turning_point(graph) if turn is None else turn
    passes, gaps = Passes.of(graph, turn), feature_gaps(graph, turn)
    found = []
    for tensor in tensors:
        gap = gaps.get(tensor)
        if gap is None:
            continue
        free, back = passes.offloaded_by(gap, offload), passes.prefetched_from(gap)
        if gap.out_after < free < back <= gap.needed_by:
            found.append(
                Swap(
                    tensor=tensor,
                    out_after=gap.out_after,
                    free_at=OpIndex(free),
                    in_at=OpIndex(back),
                    needed_by=gap.needed_by,
                )
            )
    return with_copies(graph, found)
