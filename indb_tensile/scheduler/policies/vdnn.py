"""vDNN, the convolutional variant: feature maps that convolutions read leave in the forward pass and return in the
backward.

Rhu et al., as TENSILE section V-A (its baseline vDNN_conv) and HOME sections II-B and IV-A describe it. Every feature
map that a convolution reads is offloaded after its last use in the forward pass, and prefetched with the backward
computation of the preceding convolution (static prefetch). Both are synchronous: the device waits for the offload
before the next layer, and in the backward pass each layer waits for its feature map (layerwise.py says what that
means for a plan). Networks without convolutions are not changed.

The paper's vDNN takes the cheapest variant for which there is memory enough, and so does this: nothing moves if the
budget holds everything; then offloads hide behind the next layer; else nothing is computed until they are over. Jobs
that share a device take the same of these three variants. The limitations are the paper's: it does not consider which
tensors make up the peak, leaves parameters and optimizer state alone, and recomputes nothing.
"""

from collections.abc import Sequence

from indb_tensile.scheduler.graph import StepGraph, TensorId
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.plan_cache import PlanCache
from indb_tensile.scheduler.policies.fitting import first_fitting
from indb_tensile.scheduler.policies.layer_kinds import LayerKind, is_backward, kind_of
from indb_tensile.scheduler.policies.layerwise import Offload, swapped
from indb_tensile.scheduler.workload import Workload

_WAYS = (None, Offload.NEXT_LAYER, Offload.AT_ONCE)  # the variants, from the fastest to the one with the least memory


def vdnn(
    workloads: Sequence[Workload],
    *,
    budget_bytes: int,
    link: Link,
    rewrites: bool = True,
    cache: PlanCache | None = None,
) -> tuple[tuple[Plan, ...], ...]:
    """Return the plans of the fastest variant under which the jobs fit, or of the smallest."""
    del link, rewrites
    variants = (
        tuple(tuple(_plan(graph, offload) for graph in workload.graphs) for workload in workloads)
        for offload in _WAYS
    )
    return first_fitting(workloads, variants, budget_bytes, cache)


def convolution_inputs(graph: StepGraph) -> tuple[TensorId, ...]:
    """Return the feature maps that the forward pass's convolutions read, sorted by id."""
    inputs = {
        tensor
        for operator in graph.operators
        if kind_of(operator.name) is LayerKind.CONVOLUTION and not is_backward(operator)
        for tensor in operator.reads
        if not graph.tensors[tensor].persistent
    }
    return tuple(sorted(inputs))


def _plan(graph: StepGraph, offload: Offload | None) -> Plan:
    swaps = swapped(graph, convolution_inputs(graph), offload) if offload else ()
    return Plan(policy="vdnn", swaps=swaps)
