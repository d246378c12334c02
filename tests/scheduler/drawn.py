"""Step graphs drawn as one line of accesses for each tensor, so that a plan can be checked by looking at it."""

from collections.abc import Mapping

from indb_tensile.scheduler.graph import Operator, Role, Stage, StepGraph, Tensor, TensorId


def drawn(
    *rows: tuple[int, Role, str], workspace: Mapping[int, int] | None = None, uploads: tuple[int, ...] = ()
) -> StepGraph:
    """Tensor i has the size and role of row i, and at operator k the access `row[k]`: r, w, u (both) or . (none)."""
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
