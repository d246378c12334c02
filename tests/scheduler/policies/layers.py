"""Small networks of named layers, for the tests of policies that decide by layers."""

from indb_tensile.job import JobId
from indb_tensile.scheduler.graph import Operator, Role, Stage, StepGraph, Tensor, TensorId
from indb_tensile.scheduler.workload import Workload

Row = tuple[str, Stage, str, str]  # operator, stage, tensors read, tensors written; names are separated by blanks


def step(sizes: dict[str, int], rows: list[Row]) -> StepGraph:
    """Return a step graph of these tensors and operators. Tensor names that start with w are parameters, with x the
    batch, with r buffers, and all others activations.
    """
    roles = {"w": Role.PARAMETER, "x": Role.INPUT, "r": Role.BUFFER}
    ids = {name: TensorId(k) for k, name in enumerate(sizes)}
    tensors = tuple(
        Tensor(id=ids[name], name=name, size_bytes=size, role=roles.get(name[0], Role.ACTIVATION))
        for name, size in sizes.items()
    )
    operators = tuple(
        Operator(
            name=name,
            signature=name,
            stage=stage,
            reads=tuple(ids[t] for t in reads.split()),
            writes=tuple(ids[t] for t in writes.split()),
            random="dropout.default" in name,
        )
        for name, stage, reads, writes in rows
    )
    return StepGraph(tensors=tensors, operators=operators)


def job(graph: StepGraph, latency_ns: int = 1000, number: int = 1) -> Workload:
    """Return a job of this step graph. All its operators take the same time."""
    return Workload(job=JobId(number), graphs=(graph,), latency_ns=((latency_ns,) * len(graph.operators),))


UPLOAD, FORWARD, BACKWARD = Stage.UPLOAD, Stage.FORWARD, Stage.BACKWARD
CONV, CONV_BACKWARD = "aten.convolution.default", "aten.convolution_backward.default"
RELU, RELU_BACKWARD = "aten.relu.default", "aten.threshold_backward.default"


def three_convolutions() -> StepGraph:
    """Return a network and its backward pass: x -> conv a -> relu b -> conv c -> relu d -> conv e -> loss.

    Operator 0 is the upload, 1 to 5 are the layers, 6 is the loss, 7 its gradient, 8 conv, 9 relu, 10 conv, 11 relu,
    12 conv.
    """
    sizes = {"x": 50, "w1": 4, "w2": 4, "w3": 4}
    sizes |= dict.fromkeys(("a", "b", "c", "d", "e"), 100)
    sizes |= {"loss": 1, "ge": 20, "gd": 20, "gc": 20, "gb": 20, "ga": 20, "g1": 4, "g2": 4, "g3": 4}
    return step(
        sizes,
        [
            ("upload", UPLOAD, "", "x"),
            (CONV, FORWARD, "x w1", "a"),
            (RELU, FORWARD, "a", "b"),
            (CONV, FORWARD, "b w2", "c"),
            (RELU, FORWARD, "c", "d"),
            (CONV, FORWARD, "d w3", "e"),
            ("aten.nll_loss_forward.default", FORWARD, "e", "loss"),
            ("aten.nll_loss_backward.default", BACKWARD, "loss e", "ge"),
            (CONV_BACKWARD, BACKWARD, "ge d w3", "gd g3"),
            (RELU_BACKWARD, BACKWARD, "gd d", "gc"),
            (CONV_BACKWARD, BACKWARD, "gc b w2", "gb g2"),
            (RELU_BACKWARD, BACKWARD, "gb b", "ga"),
            (CONV_BACKWARD, BACKWARD, "ga x w1", "g1"),
        ],
    )
