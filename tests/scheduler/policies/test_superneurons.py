"""Check SuperNeurons on examples computed by hand: checkpoints are swapped, cheap layers are recomputed, and the
budget decides how much of both happens.
"""

import dataclasses
from itertools import pairwise

from indb_tensile.scheduler.graph import OpIndex, StepGraph, TensorId
from indb_tensile.scheduler.judges.check import faults
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import liveness_peak, peak
from indb_tensile.scheduler.plan import Execution, Plan
from indb_tensile.scheduler.policies.superneurons import Join, Layers, superneurons
from tests.scheduler.plan_parts import idle_gap, swap
from tests.scheduler.policies.layers import (
    BACKWARD,
    CONV,
    CONV_BACKWARD,
    FORWARD,
    RELU,
    RELU_BACKWARD,
    UPLOAD,
    job,
    step,
    three_convolutions,
)

LINK = Link(out_bytes_per_s=10**9, in_bytes_per_s=10**9)
NORM, NORM_BACKWARD = "aten._native_batch_norm_legit_functional.default", "aten.native_batch_norm_backward.default"
POOL, POOL_BACKWARD = (
    "aten.max_pool2d_with_indices.default",
    "aten.max_pool2d_with_indices_backward.default",
)
LOSS, LOSS_BACKWARD = "aten.nll_loss_forward.default", "aten.nll_loss_backward.default"


def block() -> StepGraph:
    """Return a network and its backward pass: x -> conv a -> norm n -> relu h -> pool p, i -> conv c -> loss."""
    sizes = {"x": 10, "w1": 1, "w2": 1, "running": 1, "a": 100, "n": 100, "s": 1, "h": 100, "p": 50, "i": 50}
    sizes |= {"c": 300, "loss": 1, "gc": 300, "gp": 50, "gh": 100, "gn": 100, "ga": 100, "g1": 1, "g2": 1}
    return step(
        sizes,
        [
            ("upload", UPLOAD, "", "x"),
            (CONV, FORWARD, "x w1", "a"),
            (NORM, FORWARD, "a running", "n s"),
            ("aten.copy_.default", FORWARD, "running s", "running"),
            (RELU, FORWARD, "n", "h"),
            (POOL, FORWARD, "h", "p i"),
            (CONV, FORWARD, "p w2", "c"),
            (LOSS, FORWARD, "c", "loss"),
            (LOSS_BACKWARD, BACKWARD, "loss c", "gc"),
            (CONV_BACKWARD, BACKWARD, "gc p w2", "gp g2"),
            (POOL_BACKWARD, BACKWARD, "gp h i", "gh"),
            (RELU_BACKWARD, BACKWARD, "gh h", "gn"),
            (NORM_BACKWARD, BACKWARD, "gn a s", "ga"),
            (CONV_BACKWARD, BACKWARD, "ga x w1", "g1"),
        ],
    )


def test_convolutions_are_checkpoints_and_layers_after_them_are_recomputed() -> None:
    graph = block()
    layers = Layers(graph, (1000,) * 14)
    a, h, p, i = _ids(graph, "a", "h", "p", "i")
    assert layers.checkpoints(Join.KEEP) == (a,), "c is used at once, and no convolution makes n and s"
    dropped = (idle_gap(h, 5, 10), idle_gap(p, 6, 9), idle_gap(i, 5, 10))
    assert layers.dropped(Join.KEEP) == dropped
    assert layers.largest_layer() == 601, "the gradient of the loss: c, gc and loss"
    assert layers.memory_centric(dropped) == (), "200 bytes together"


def test_swaps_and_recomputation_are_used_only_as_far_as_the_budget_requires() -> None:
    """The gradient of the loss takes 601 bytes. a, h, p, i, s, x and the parameters take 314 bytes more at that
    moment.
    """
    graph = block()
    (a,) = _ids(graph, "a")
    assert liveness_peak(graph) == 601 + 100 + 200 + 1 + 10 + 3
    assert _planned(graph, 915) == Plan(policy="superneurons")
    swapped = _planned(graph, 914)
    assert swapped == Plan(policy="superneurons", swaps=(swap(a, 2, 4, 11, 12),)), (
        "a layer of 1 us hides copies of 100 ns"
    )
    assert (faults(graph, swapped), peak(graph, swapped)) == ((), 815)
    recomputed = _planned(graph, 814)
    order = (0, 1, 2, 4, 5, 6, 7, 8, 2, 4, 5, 3, 9, 10, 11, 12, 13)
    executions = tuple(Execution(operator=OpIndex(k)) for k in order)
    assert recomputed == Plan(policy="superneurons", executions=executions), "the update of the statistics runs later"
    assert (faults(graph, recomputed), peak(graph, recomputed)) == ((), 915 - 200 - 1), "s is recomputed as well"
    swapped_and_recomputed = _planned(graph, 0)
    assert swapped_and_recomputed == dataclasses.replace(recomputed, swaps=(swap(a, 2, 4, 8, 8),)), (
        "a returns for the second run of the normalisation"
    )
    gradient = 300 + 50 + 50 + 1  # of the convolution: gc, p, gp, g2
    assert (faults(graph, swapped_and_recomputed), peak(graph, swapped_and_recomputed)) == (
        (),
        gradient + 100 + 150 + 1 + 10 + 3,
    )


def test_activation_is_the_checkpoint_if_the_output_of_its_convolution_is_unused() -> None:
    graph = three_convolutions()
    b, d = _ids(graph, "b", "d")
    layers = Layers(graph, (1000,) * 13)
    assert (layers.checkpoints(Join.KEEP), layers.dropped(Join.KEEP)) == ((b, d), ())
    plan = _planned(graph, liveness_peak(graph) - 1)
    assert plan == Plan(policy="superneurons", swaps=(swap(b, 3, 5, 9, 10),)), "least recently used first"
    assert _planned(graph, liveness_peak(graph) - 1, rewrites=False) == plan


def test_segment_larger_than_the_largest_layer_is_recomputed_for_each_use() -> None:
    """conv a is followed by four activations of 100 bytes. The gradient of an activation needs 3 x 100 bytes."""
    names = "abcde"
    sizes = {"x": 1, "w": 1} | dict.fromkeys(names, 100) | {"f": 1, "loss": 1, "w2": 1}
    sizes |= dict.fromkeys(("gf", "gw"), 1) | {f"g{n}": 100 for n in names}
    forward = [(RELU, FORWARD, before, after) for before, after in pairwise(names)]
    backward = [(RELU_BACKWARD, BACKWARD, f"g{n} {n}", f"g{m}") for m, n in zip("dcba", "edcb", strict=True)]
    rows = [("upload", UPLOAD, "", "x"), (CONV, FORWARD, "x w", "a"), *forward, (CONV, FORWARD, "e w2", "f")]
    rows += [(LOSS, FORWARD, "f", "loss"), (LOSS_BACKWARD, BACKWARD, "loss f", "gf")]
    rows += [(CONV_BACKWARD, BACKWARD, "gf e w2", "ge"), *backward, (CONV_BACKWARD, BACKWARD, "ga a x w", "gw")]
    graph = step(sizes, rows)
    layers = Layers(graph, (1000,) * len(rows))
    dropped = layers.dropped(Join.KEEP)
    assert [graph.tensors[g.tensor].name for g in dropped] == ["b", "c", "d", "e"]
    assert layers.largest_layer() == 300
    assert layers.memory_centric(dropped) == dropped
    recomputed_once = layers.recomputation.order(dropped)
    recomputed_for_each_use = layers.recomputation.order(dropped, brief=dropped)
    assert (len(recomputed_once) - len(rows), len(recomputed_for_each_use) - len(rows)) == (4, 4 + 3 + 2 + 1)


def test_tensor_where_branches_meet_is_kept_swapped_or_recomputed() -> None:
    """conv a and conv b are added to s, from which an activation makes h."""
    sizes = {"x": 10, "w1": 1, "w2": 1, "w3": 1, "a": 50, "b": 50, "s": 50, "h": 50, "c": 1, "loss": 1}
    sizes |= {"gc": 1, "gh": 50, "gs": 50, "g3": 1}
    rows = [
        ("upload", UPLOAD, "", "x"),
        (CONV, FORWARD, "x w1", "a"),
        (CONV, FORWARD, "x w2", "b"),
        ("aten.add.Tensor", FORWARD, "a b", "s"),
        (RELU, FORWARD, "s", "h"),
        (CONV, FORWARD, "h w3", "c"),
        (LOSS, FORWARD, "c", "loss"),
        (LOSS_BACKWARD, BACKWARD, "loss c", "gc"),
        (CONV_BACKWARD, BACKWARD, "gc h w3", "gh g3"),
        (RELU_BACKWARD, BACKWARD, "gh h", "gs"),
        (NORM_BACKWARD, BACKWARD, "gs a", ""),
        (NORM_BACKWARD, BACKWARD, "gs b", ""),
    ]
    graph = step(sizes, rows)
    layers = Layers(graph, (1000,) * len(rows))
    a, b, h = _ids(graph, "a", "b", "h")
    gap = idle_gap(h, 5, 8)
    assert [layers.checkpoints(join) for join in Join] == [(a, b), (a, b, h), (a, b)]
    assert [layers.dropped(join) for join in Join] == [(), (), (gap,)]
    assert layers.recomputation.cone(gap).operators == (3, 4)


def test_random_layers_are_not_recomputed() -> None:
    graph = block()
    dropout = dataclasses.replace(graph.operators[4], random=True)
    random_graph = dataclasses.replace(graph, operators=(*graph.operators[:4], dropout, *graph.operators[5:]))
    p, i = _ids(graph, "p", "i")
    assert Layers(random_graph, (1000,) * 14).dropped(Join.KEEP) == (idle_gap(p, 6, 9), idle_gap(i, 5, 10))


def test_each_job_has_its_part_of_the_budget() -> None:
    graph = block()
    whole = liveness_peak(graph)
    plans = superneurons((job(graph), job(graph, number=2)), budget_bytes=2 * whole - 2, link=LINK)
    alone = _planned(graph, whole - 1)
    assert plans == ((alone,), (alone,))


def _planned(graph: StepGraph, budget_bytes: int, *, rewrites: bool = True) -> Plan:
    ((plan,),) = superneurons((job(graph),), budget_bytes=budget_bytes, link=LINK, rewrites=rewrites)
    return plan


def _ids(graph: StepGraph, *names: str) -> tuple[TensorId, ...]:
    by_name = {tensor.name: tensor.id for tensor in graph.tensors}
    return tuple(by_name[name] for name in names)
