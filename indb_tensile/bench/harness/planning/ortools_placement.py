"""Places intervals by OR-Tools' CP-SAT solver, as a rival of our own placement in `tensile bench placement`.

Each interval is a rectangle: its time is fixed, and its offset is a variable. `no_overlap_2d` keeps rectangles apart.
An interval that is alive over the end of the iteration is two rectangles with one offset. OR-Tools is not a
dependency of this package: `pip install ortools`.
"""

import importlib
from collections.abc import Sequence
from typing import Any

from indb_tensile.errors import MissingError
from indb_tensile.scheduler.memory.residency import Interval, load_bound

_SEED = 1


def solver() -> Any:
    """Return the module of the CP-SAT solver. Raises MissingError if OR-Tools is not installed."""
    try:
        return importlib.import_module("ortools.sat.python.cp_model")
    except ImportError as error:
        raise MissingError(
            f"--rival ortools needs OR-Tools, which is not installed: {error}",
            hint="pip install ortools; the package itself does not need it",
        ) from error


def solved_size(
    intervals: Sequence[Interval],
    count: int,
    *,
    alignment_bytes: int,
    most_bytes: int,
    any_size: bool,
    effort: float,
) -> int | None:
    """Return the size of the solver's placement within `most_bytes`, or None if it has found none.

    With `any_size`, the first placement will do. Otherwise the solver goes on until it has the smallest size. In both
    cases it stops after `effort`, in its own deterministic time, so that equal inputs give equal results. It runs on
    one core, as our own placement does.
    """
    cp_model = solver()
    model = cp_model.CpModel()
    units = [-(-interval.size_bytes // alignment_bytes) for interval in intervals]
    most = most_bytes // alignment_bytes
    height = model.new_int_var(-(-load_bound(intervals, count) // alignment_bytes), most, "height")
    times, spaces = [], []
    for interval, size in zip(intervals, units, strict=True):
        offset = model.new_int_var(0, most - size, "")
        model.add(offset + size <= height)
        for start, stop in _spans(interval, count):
            times.append(model.new_fixed_size_interval_var(start, stop - start, ""))
            spaces.append(model.new_fixed_size_interval_var(offset, size, ""))
    model.add_no_overlap_2d(times, spaces)
    if not any_size:
        model.minimize(height)
    search = cp_model.CpSolver()
    search.parameters.max_deterministic_time = effort
    search.parameters.num_workers = 1
    search.parameters.random_seed = _SEED
    if search.solve(model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    return int(search.value(height)) * alignment_bytes


def _spans(interval: Interval, count: int) -> tuple[tuple[int, int], ...]:
    """Return the interval's time within one iteration: two parts if it goes over the end."""
    if interval.stop <= count:
        return ((interval.first, interval.stop),)
    return ((interval.first, count), (0, interval.stop - count))
