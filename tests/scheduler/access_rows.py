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
