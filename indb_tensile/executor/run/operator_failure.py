"""Adds the name of the operator to an error of a kernel that broke the device."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from indb_tensile.errors import ComputationError
from indb_tensile.executor.run.placer import Placer
from indb_tensile.executor.run.program import Program


@contextmanager
def naming_failed_operator(program: Program, placer: Placer, check: Callable[[], None] | None) -> Iterator[None]:
    """Name the operator that ran last, or one before it, in a ComputationError.

    The host is ahead of the device, so an earlier operator may be the cause. `check` raises the device's own error
    when torch reports an error.
    """
    try:
        try:
            yield
        except RuntimeError:
            if check is not None:
                check()
            raise
    except ComputationError as error:
        operators, position = program.wiring.graph.operators, placer.position
        last = operators[-1 if position is None else min(position[0], len(operators) - 1)]
        step = f"the {program.step.kind} step for {program.step.batch_size} rows"
        raise ComputationError(
            f"{step}, in operator {last.name} or one before it: {error.message}", hint=error.hint
        ) from error
