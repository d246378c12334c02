"""The operators that used more memory in an iteration than their plan has for them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

from indb_tensile.executor.capture.allocation_script import GPU_ALIGNMENT_BYTES
from indb_tensile.executor.run.placer import Placer
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


class OperatorExcesses:
    """Notes the largest excess of each operator until it is taken."""

    def __init__(self, placer: Placer) -> None:
        self._placer = placer
        self._by_signature: dict[str, OperatorExcess] = {}

    @contextmanager
    def noting(self, program: Program) -> Iterator[None]:
        """Note the operators that use more memory than planned, also if one of them runs out of memory."""
        try:
            yield
        finally:
            for position, size_bytes in self._placer.take_excess():
                excess = OperatorExcess.at(program, position, size_bytes)
                known = self._by_signature.get(excess.signature)
                if known is None or known.excess_bytes < excess.excess_bytes:
                    self._by_signature[excess.signature] = excess

    def take(self) -> tuple[OperatorExcess, ...]:
        """Return the operators noted since the last call, each once, in the order of their signatures."""
        excesses, self._by_signature = self._by_signature, {}
        return tuple(excesses[signature] for signature in sorted(excesses))
