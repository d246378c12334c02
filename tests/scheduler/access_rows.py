"""Build step graphs from one row of accesses for each tensor, so that a reader sees what a plan has to respect."""

from collections.abc import Mapping

from indb_tensile.scheduler.graph import Operator, Role, Stage, StepGraph, Tensor, TensorId


def graph_from_rows(
    *rows: tuple[int, Role, str], workspace: Mapping[int, int] | None = None, uploads: tuple[int, ...] = ()
) -> StepGraph:
    """Return a step graph of one tensor for each row: its size in bytes, its role, and its accesses.

    Character k of the accesses is what operator k does to the tensor: r reads, w writes, u updates (reads, writes),
    and . does not access it. `workspace` has the bytes by operator, `uploads` the operators of the upload stage.
    """
    tensors = tuple(
        Tensor(id=TensorId(i), name=f"t{i}", size_bytes=size, role=role) for i, (size, role, _) in enumerate(rows)
    )
    operators = tuple(
        Operator(
            name=f"op{k}",
            signature=f"op{k}",
            stage=Stage.UPLOAD if k in uploads else Stage.FORWARD,
            reads=tuple(t.id for t, row in zip(tensors, rows, strict=True) if row[2][k] in "ru"),
            writes=tuple(t.id for t, row in zip(tensors, rows, strict=True) if row[2][k] in "wu"),
            workspace_bytes=(workspace or {}).get(k, 0),
        )
        for k in range(len(rows[0][2]))
    )
    return StepGraph(tensors=tensors, operators=operators)


def dense_graph() -> StepGraph:
    """Return a graph in which operators 2 and 4 concatenate what operators 0, 1 and 3 make.

    Both results are read at the end, and are on the device beside 80 bytes at operator 6. Only the two concatenations
    read tensors 0, 1 and 3.
    """
    return graph_from_rows(
        (10, Role.ACTIVATION, "w.r.r...."),
        (10, Role.ACTIVATION, ".wr.r...."),
        (40, Role.ACTIVATION, "..wr....r"),
        (10, Role.ACTIVATION, "...wr...."),
        (60, Role.ACTIVATION, "....wr.r."),
        (80, Role.ACTIVATION, "......w.."),
    )


DENSE_NS = (1_000, 1_000, 10, 1_000, 10, 100, 100, 100, 100)
