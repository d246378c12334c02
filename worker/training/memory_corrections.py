"""Reports operators that need more memory than was planned, so that the job is planned anew in place of failing.

The controller gets the graphs with the measured workspaces, and the catalog gets the workspaces, from which later
jobs and this job's next attempt are planned. An attempt that runs out of memory inside an operator stores the missing
amount before it ends, and the next attempt is planned with that amount. The failure counts as the job's fault only if
the amount was known before.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from indb_tensile.errors import DeviceMemoryError, OutgrownMemoryError
from indb_tensile.executor.capture.step_capture import CapturedStep
from indb_tensile.executor.run.open_device import is_out_of_memory
from indb_tensile.executor.run.operator_excess import OperatorExcess
from indb_tensile.executor.run.runner import Runner
from indb_tensile.executor.run.workspace_correction import (
    correct_workspaces,
    outgrown_operators,
    refused_operators,
)
from indb_tensile.messages import Corrected, TrainerLink
from indb_tensile.scheduler.outgrown_operator import OutgrownOperator

from ..captured_steps import CapturedSteps
from .progress_writer import ProgressWriter

log = logging.getLogger("trainer")

_MOST_RELOCATIONS = 8  # an operator that changes its mind in every iteration is served without planned addresses


class MemoryCorrections:
    """The corrections of one training. `scripted` are the runner's first steps, with the operators' scripts."""

    def __init__(
        self,
        *,
        runner: Runner,
        steps: CapturedSteps,
        scripted: tuple[CapturedStep, ...],
        link: TrainerLink,
        progress_writer: ProgressWriter,
    ) -> None:
        self._runner = runner
        self._steps = steps
        self._scripted = scripted
        self._link = link
        self._progress_writer = progress_writer
        self._job = progress_writer.job.job
        self._number = 0
        self._followed = 0  # the correction that the present plans take into account
        self._workspaces: dict[int, dict[str, int]] = {0: {}}  # by correction: all workspaces that differ from before
        self._unexplained: frozenset[str] = frozenset()
        self._relocations = 0

    def start(self) -> None:
        """Report operators whose workspace another version of a library or driver has changed since it was stored."""
        self._report(outgrown_operators(self._scripted))

    def steps_for(self, number: int) -> tuple[CapturedStep, ...]:
        """Return the steps with the workspaces of this correction. No plan for an earlier one may follow."""
        self._followed = number
        self._workspaces = {known: sizes for known, sizes in self._workspaces.items() if known >= number}
        return tuple(step.with_measured(self._workspaces[number]) for step in self._scripted)

    def look(self) -> None:
        """Report the operators that have used more memory than planned since the last call. Call between iterations.

        An operator is reported once for each size: not again before the job follows a plan with the reported size.
        """
        excesses = [excess for excess in self._runner.take_excesses() if not self._is_reported(excess)]
        if not excesses:
            return
        with self._steps.alone():
            correction = correct_workspaces(self._scripted, excesses, self._unexplained)
        moved = correction.steps is not self._scripted
        self._scripted = correction.steps
        self._unexplained |= correction.unexplained
        if correction.outgrown:
            self._report(correction.outgrown)
        elif moved and self._relocations < _MOST_RELOCATIONS:
            self._relocations += 1
            self._runner.relocate(self.steps_for(self._followed))

    def end(self) -> None:
        """Store what the last iteration has shown for later jobs. This job needs no other plan any more."""
        excesses = [excess for excess in self._runner.take_excesses() if not self._is_reported(excess)]
        with self._steps.alone():
            correction = correct_workspaces(self._scripted, excesses, self._unexplained)
        self._store(correction.outgrown)

    @contextmanager
    def storing_refusals(self) -> Iterator[None]:
        """Store the need of an operator that runs out of memory in the context.

        Raises OutgrownMemoryError in place of such an error.
        """
        try:
            yield
        except (RuntimeError, MemoryError, DeviceMemoryError) as error:
            excesses = self._runner.take_excesses()
            if not excesses or not is_out_of_memory(error):
                raise
            raise self._store_refused(excesses) from error

    def _is_reported(self, excess: OperatorExcess) -> bool:
        return self._workspaces[self._number].get(excess.signature, 0) > excess.planned_bytes

    def _report(self, outgrown: tuple[OutgrownOperator, ...]) -> None:
        if not outgrown:
            return
        self._number += 1
        larger = {operator.signature: operator.measured_bytes for operator in outgrown}
        self._workspaces[self._number] = {**self._workspaces[self._number - 1], **larger}
        self._steps.correct(outgrown)
        self._link.send(Corrected(job=self._job, number=self._number, graphs=self._steps.graphs, outgrown=outgrown))
        self._store(outgrown)

    def _store(self, outgrown: tuple[OutgrownOperator, ...]) -> None:
        if outgrown:
            self._progress_writer.keep("workspaces", lambda c: self._steps.raise_workspaces(c, outgrown))
            self._tell(outgrown)

    def _store_refused(self, excesses: tuple[OperatorExcess, ...]) -> OutgrownMemoryError:
        outgrown = refused_operators(excesses)
        raised = self._progress_writer.session.run(lambda c: self._steps.raise_workspaces(c, outgrown))
        self._tell(outgrown)
        known = not raised and not any(self._is_reported(excess) for excess in excesses)
        operators = "; ".join(f"operator {operator}" for operator in outgrown)
        return OutgrownMemoryError(
            f"job {self._job} ran out of device memory: {operators}",
            detail="Its plan took a need as large as this into account already."
            if known
            else "The need is stored, and the next attempt is planned with it.",
            hint="Use a smaller batch_size or a smaller network, or give the controller a larger budget "
            "(TENSILE_BUDGET_BYTES).",
            known=known,
        )

    def _tell(self, outgrown: tuple[OutgrownOperator, ...]) -> None:
        operators = [
            {"operator": o.name, "planned_bytes": o.planned_bytes, "measured_bytes": o.measured_bytes}
            for o in outgrown
        ]
        message = "; ".join(f"operator {operator}" for operator in outgrown)
        log.warning("job %s: %s", self._job, message)
        self._progress_writer.tell("memory_corrected", {"message": message, "operators": operators})
