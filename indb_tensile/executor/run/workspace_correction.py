"""Corrects the workspaces of operators that used more memory in an iteration than their plan has for them.

A workspace is measured once, when the operator runs alone at calibration. Later the operator may choose another
algorithm, or another version of a driver or a library may choose one for it. The operator is then measured again, as
at calibration: its new allocations get planned addresses, and the workspace is as large as they need. If the larger
use does not repeat on made-up inputs, because it depends on the data, and it was seen before, then the workspace is
enlarged by what was missing. The part of a workspace without listed allocations serves any size (program_offsets.py).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from indb_tensile.executor.capture.allocation_script import GPU_ALIGNMENT_BYTES, AllocationScript
from indb_tensile.executor.capture.step_capture import CapturedStep
from indb_tensile.executor.latency.calibrate import record_again, with_scripts
from indb_tensile.executor.run.operator_excess import OperatorExcess
from indb_tensile.scheduler.outgrown_operator import OutgrownOperator


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceCorrection:
    """The steps with new allocation scripts, and the operators that have to be planned with larger workspaces.

    `unexplained` are operators whose excess did not repeat when they ran alone.
    """

    steps: tuple[CapturedStep, ...]
    outgrown: tuple[OutgrownOperator, ...]
    unexplained: frozenset[str]

    @property
    def bytes_by_signature(self) -> dict[str, int]:
        """The measured workspaces."""
        return {workspace.signature: workspace.measured_bytes for workspace in self.outgrown}


def correct_workspaces(
    steps: tuple[CapturedStep, ...], excesses: Iterable[OperatorExcess], seen: frozenset[str] = frozenset()
) -> WorkspaceCorrection:
    """Measure these operators again. `seen` are operators whose excess was unexplained before."""
    by_signature = {excess.signature: excess for excess in excesses}
    present = {signature: script for step in steps for signature, script in step.scripts.items()}
    scripts = {
        signature: script
        for signature, script in record_again(steps, frozenset(by_signature)).items()
        if script != present.get(signature)
    }
    explained = {signature for signature, script in scripts.items() if _explains(script, by_signature[signature])}
    unexplained = by_signature.keys() - explained - seen
    needs = {
        signature: scripts[signature].workspace_bytes if signature in explained else excess.needed_bytes
        for signature, excess in by_signature.items()
        if signature not in unexplained
    }
    return WorkspaceCorrection(
        steps=with_scripts(steps, scripts) if scripts else steps,
        outgrown=_larger(by_signature, needs),
        unexplained=frozenset(unexplained),
    )


def refused_operators(excesses: Iterable[OperatorExcess]) -> tuple[OutgrownOperator, ...]:
    """Return the operators with the workspaces that would have been large enough, without running them again."""
    by_signature = {excess.signature: excess for excess in excesses}
    return _larger(by_signature, {signature: excess.needed_bytes for signature, excess in by_signature.items()})


def outgrown_operators(steps: tuple[CapturedStep, ...]) -> tuple[OutgrownOperator, ...]:
    """Return the operators whose recorded allocations need a larger workspace than the graphs have for them.

    The graphs have what an earlier process measured, perhaps with another version of a library.
    """
    outgrown: dict[str, OutgrownOperator] = {}
    for step in steps:
        for operator in step.graph.operators:
            script: AllocationScript | None = step.scripts.get(operator.signature)
            if script is not None and script.steady and script.workspace_bytes > operator.workspace_bytes:
                outgrown[operator.signature] = OutgrownOperator(
                    signature=operator.signature,
                    name=operator.name,
                    planned_bytes=operator.workspace_bytes,
                    measured_bytes=script.workspace_bytes,
                )
    return tuple(outgrown[signature] for signature in sorted(outgrown))


def _explains(script: AllocationScript, excess: OperatorExcess) -> bool:
    """Return whether an operator with this new script has the excess: it needs more, or as much in other sizes.

    Each allocation in the excess was rounded up.
    """
    rounding_bytes = GPU_ALIGNMENT_BYTES * len(script.allocations)
    larger = script.workspace_bytes > excess.planned_bytes
    return larger or script.workspace_bytes + rounding_bytes >= excess.excess_bytes


def _larger(excesses: Mapping[str, OperatorExcess], needs: Mapping[str, int]) -> tuple[OutgrownOperator, ...]:
    return tuple(
        OutgrownOperator(
            signature=signature,
            name=excesses[signature].name,
            planned_bytes=excesses[signature].planned_bytes,
            measured_bytes=measured_bytes,
        )
        for signature, measured_bytes in sorted(needs.items())
        if measured_bytes > excesses[signature].planned_bytes
    )
