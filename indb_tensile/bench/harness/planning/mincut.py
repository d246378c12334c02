"""Plans by torch.compile's `activation_memory_budget`, for comparison with ours.

torch.compile divides a step into a forward and a backward graph by a minimum cut. With a budget below 1 it chooses by
a knapsack which further activations the backward graph recomputes instead of keeping (`partitioners.py` of torch's
functorch). This module takes the choice from torch itself, for the same step, and turns it into a plan: an operator
that torch would recompute runs once more, right before the first operator of the backward pass that needs its result.
Peak and time are the simulator's, as for all policies: operators run one by one. A compiler would fuse cheap
operators, recomputed or not, so these times are upper bounds, as are those of every policy that recomputes.

The comparison is generous to the rival. Besides torch's own estimate of operators' times (floating-point operations)
it also gets ours, the roofline, and it plans for budgets from 1 (keep all activations) to 0. Operators that draw
random numbers are marked as not to be recomputed, since a captured step never draws twice. The rival does not plan
parameters, optimizer state or several jobs, and does not move anything to the host.
"""

import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import fx
from torch._functorch import config, partitioners
from torch._functorch._aot_autograd.descriptors import BufferAOTInput, GradAOTOutput, ParamAOTInput
from torch._inductor.custom_graph_pass import CustomRuntimeEstimator
from torch.utils.checkpoint import CheckpointPolicy

from indb_tensile.bench.harness.networks.known_networks import Network, example
from indb_tensile.bench.harness.results.rows import MINCUT
from indb_tensile.executor.capture.optimizer import OptimizerSettings
from indb_tensile.executor.capture.step_capture import CapturedStep, capture_training
from indb_tensile.executor.capture.step_trace import trace_alone
from indb_tensile.scheduler.graph import OpIndex, Stage, StepGraph
from indb_tensile.scheduler.plan import Execution, Plan
from indb_tensile.scheduler.rewrite import repeatable

_BUDGET_STEPS = 10  # the budgets are 1, 0.9, ... 0


def mincut_plans(
    network: Network, batch: int, graph: StepGraph, latency_ns: Sequence[int]
) -> Iterator[tuple[Plan, float]]:
    """Yield torch's choice for each budget and estimate as a plan for this graph, and the milliseconds torch took.

    A recomputation that a captured step cannot follow, because it would update a tensor twice, is left out.
    """
    module, loss, x, y = example(network, batch)
    step = capture_training(module, loss, x, y, OptimizerSettings(kind="adam"))
    assert step.graph == graph, f"two captures of {network.name} differ"
    joint = trace_alone(module, loss, (x, y))
    operator_of = _operators(step)
    for estimate in ("flops", _Roofline({name: latency_ns[k] for name, k in operator_of.items()})):
        for part in range(_BUDGET_STEPS, -1, -1):
            start_ns = time.perf_counter_ns()
            recomputed = _recomputed_operators(joint, part / _BUDGET_STEPS, estimate, operator_of)
            planning_ms = (time.perf_counter_ns() - start_ns) / 1e6
            can_repeat = repeatable(graph)
            plan = recompute_in_backward(graph, {k for k in recomputed if can_repeat[k]})
            yield plan, planning_ms


def recompute_in_backward(graph: StepGraph, again: set[OpIndex]) -> Plan:
    """Return a plan that repeats each of these forward operators before the first backward operator that needs it."""
    maker = {t: k for k in again for t in graph.operators[k].writes}
    order: list[OpIndex] = []
    repeated: set[OpIndex] = set()

    def make(operator: OpIndex) -> None:
        for tensor in graph.operators[operator].reads:
            needed = maker.get(tensor)
            if needed is not None and needed not in repeated and needed != operator:
                repeated.add(needed)
                make(needed)
                order.append(needed)

    for k, operator in enumerate(graph.operators):
        if operator.stage in (Stage.BACKWARD, Stage.OPTIMIZER):
            make(OpIndex(k))
        order.append(OpIndex(k))
    return Plan(policy=MINCUT, executions=tuple(Execution(operator=k) for k in order) if repeated else ())


def _recomputed_operators(
    joint: fx.GraphModule, budget: float, estimate: Any, operator_of: Mapping[str, OpIndex]
) -> set[OpIndex]:
    """Return the forward operators that torch also puts into its backward graph."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, about copying its graphs
        graph = deepcopy(joint)
    nodes = list(graph.graph.nodes)
    for node in nodes:
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            node.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    descs = next(node for node in nodes if node.op == "output").meta["desc"]
    inputs = [node for node in nodes if node.op == "placeholder"]
    with config.patch(activation_memory_budget=budget, activation_memory_budget_runtime_estimator=estimate):
        forward, backward = partitioners.min_cut_rematerialization_partition(
            graph,
            None,
            num_fwd_outputs=next(k for k, desc in enumerate(descs) if isinstance(desc, GradAOTOutput)),
            static_lifetime_input_indices=[
                k for k, node in enumerate(inputs) if isinstance(node.meta["desc"], ParamAOTInput | BufferAOTInput)
            ],
        )
    return {operator_of[n] for n in _names(forward) & _names(backward) if n in operator_of}


def _names(module: fx.GraphModule) -> set[str]:
    return {node.name for node in module.graph.nodes if node.op == "call_function"}


def _operators(step: CapturedStep) -> dict[str, OpIndex]:
    """Return the operator of each traced forward node that runs a kernel. Its results are named after the node."""
    operator_of = {}
    for index, captured in enumerate(step.steps):
        for position, name in enumerate(captured.kernel.results):
            if name is not None and step.graph.operators[index].stage is Stage.FORWARD:
                node = name if captured.kernel.single else name.removesuffix(f"_{position}")
                operator_of[node] = OpIndex(index)
    return operator_of


class _Roofline(CustomRuntimeEstimator):
    """Estimates operators by our own latencies, in place of floating-point operations."""

    def __init__(self, latency_ns: Mapping[str, int]) -> None:
        self._latency_ns = latency_ns

    def __call__(self, node: fx.Node) -> float:
        return float(self._latency_ns.get(node.name, 1))

    def uuid(self) -> None:
        """Return None: torch keeps no cache of this estimator between runs."""
