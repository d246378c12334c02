"""Candidate plans of one graph with their peak and time, and the Pareto front of candidates."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from indb_tensile.scheduler.search.step_search import StepSearch


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidatePlan:
    """One candidate plan: its peak, the time of an iteration alone on the job's share of the lanes, and its choices.

    `choices` are rows as in `StepSearch.choices`. `lane_ns` is the sum of both lanes' copying times.
    """

    order: int  # number of the order of execution (`ExecutionOrders`)
    peak_bytes: int
    iteration_ns: int
    lane_ns: int
    choices: tuple[tuple[int, int, int], ...]
    room_bytes: int | None = None  # the memory into which the choices are laid out, if they are laid out into a limit

    @property
    def speed(self) -> tuple[int, int, int]:
        """The sort key for candidates that all fit the limit."""
        return self.iteration_ns, self.lane_ns, self.peak_bytes


class HasPeakAndTime(Protocol):
    """An item with a peak and a time, of which a Pareto front can be made."""

    @property
    def peak_bytes(self) -> int:
        """The memory that the item needs."""
        ...

    @property
    def iteration_ns(self) -> int:
        """The time of an iteration."""
        ...


_Ranked = TypeVar("_Ranked", bound=HasPeakAndTime)


def candidate_of(order: int, search: StepSearch) -> CandidatePlan:
    """Return the search's present choices as a candidate."""
    return CandidatePlan(
        order=order,
        peak_bytes=search.peak_bytes,
        iteration_ns=search.iteration_ns,
        lane_ns=search.lane_ns,
        choices=tuple(search.choices),
        room_bytes=search.room_bytes,
    )


def fastest_candidate(candidates: Iterable[CandidatePlan]) -> CandidatePlan:
    """Return the fastest candidate. Of equally fast candidates return the one that copies least, then the one that
    comes first.
    """
    return min(candidates, key=lambda candidate: candidate.speed)


def pareto_front(candidates: Iterable[_Ranked]) -> tuple[_Ranked, ...]:
    """Return the Pareto front: items for which no other item is at least as good in both peak and time.

    The first item has the highest peak and the least time. Of equal items the first is kept.
    """
    front: list[_Ranked] = []
    for candidate in sorted(candidates, key=lambda f: (f.peak_bytes, f.iteration_ns)):
        if not front or candidate.iteration_ns < front[-1].iteration_ns:
            front.append(candidate)
    return tuple(reversed(front))
