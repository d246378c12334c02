"""An operator that needs a larger workspace than its job's plans have for it."""

from dataclasses import dataclass

from indb_tensile.sizes import compared


@dataclass(frozen=True, slots=True, kw_only=True)
class OutgrownOperator:
    """The workspace of one operator, as it was planned and as it was measured while the job trained."""

    signature: str
    name: str
    planned_bytes: int
    measured_bytes: int

    def __str__(self) -> str:
        measured, planned = compared(self.measured_bytes, self.planned_bytes)
        return f"{self.name} needs a workspace of {measured}, and {planned} were planned for it"
