"""Write a small step graph to a file, for tests."""

from pathlib import Path

from indb_tensile.scheduler.document import Document, write_document
from indb_tensile.scheduler.graph import Operator, Role, Stage, StepGraph, Tensor, TensorId

P, A, B = TensorId(0), TensorId(1), TensorId(2)


def write_graph(path: Path, *, timed: bool = True) -> str:
    """Write a graph with four operators of one second each, and return the path. The first and the last operator read
    p (10 GB), the second writes a (5 GB), the third writes b (1 GB).

    Without planning its peak is 15 GB. Its largest operator needs 10 GB.
    """

    def operator(name: str, reads: tuple[TensorId, ...], writes: tuple[TensorId, ...]) -> Operator:
        return Operator(name=name, signature=name, stage=Stage.FORWARD, reads=reads, writes=writes, flops=10**12)

    graph = StepGraph(
        tensors=(
            Tensor(id=P, name="p", size_bytes=10 * 10**9, role=Role.PARAMETER),
            Tensor(id=A, name="a", size_bytes=5 * 10**9, role=Role.ACTIVATION),
            Tensor(id=B, name="b", size_bytes=10**9, role=Role.ACTIVATION),
        ),
        operators=(
            operator("use", (P,), ()),
            operator("make a", (), (A,)),
            operator("make b", (), (B,)),
            operator("use", (P,), ()),
        ),
        signature="s",
    )
    latency_ns = (10**9,) * 4 if timed else None
    path.write_text(write_document(Document(name="small", graph=graph, latency_ns=latency_ns)), encoding="utf-8")
    return str(path)
