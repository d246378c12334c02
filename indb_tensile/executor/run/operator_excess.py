"""An operator that used more memory in an iteration than its plan has for it."""

from dataclasses import dataclass
from typing import Self

from indb_tensile.executor.capture.allocation_script import GPU_ALIGNMENT_BYTES
from indb_tensile.executor.run.program import Program
from indb_tensile.scheduler.rewrite import captured_order


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorExcess:
    """The most bytes that the operator used at once beyond its planned workspace and outputs."""

    signature: str
    name: str
    planned_bytes: int  # its planned workspace
    excess_bytes: int

    @property
    def needed_bytes(self) -> int:
        """The workspace that would have sufficed: the planned one and the excess behind it, aligned."""
        return -(-self.planned_bytes // GPU_ALIGNMENT_BYTES) * GPU_ALIGNMENT_BYTES + self.excess_bytes

    @classmethod
    def at(cls, program: Program, position: int, excess_bytes: int) -> Self:
        """Return the excess of the operator at this position of the program."""
        graph = program.step.graph
        execution = (program.plan.executions or captured_order(graph))[position]
        operator = graph.operators[execution.operator]
        return cls(
            signature=operator.signature,
            name=operator.name,
            planned_bytes=operator.workspace_bytes,
            excess_bytes=excess_bytes,
        )
