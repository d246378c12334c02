"""One plan of one graph as the ladder knows it, and what is left of many where no other one is as good in both."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from indb_tensile.scheduler.search.step_search import StepSearch


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One plan: how high its peak is, how long an iteration takes alone on its share of the lanes, and copies."""

    order: int  # which of the ladder's orders of execution
    peak_bytes: int
    iteration_ns: int
    lane_ns: int
    choices: tuple[tuple[int, int, int], ...]
    room_bytes: int | None = None  # the memory that they are laid into, where they are

    @property
    def speed(self) -> tuple[int, int, int]:
        """What is compared where each is within the limit."""
        return self.iteration_ns, self.lane_ns, self.peak_bytes


class Standing(Protocol):
    """What an envelope is drawn of."""

    @property
    def peak_bytes(self) -> int:
        """How much memory it needs."""
        ...

    @property
    def iteration_ns(self) -> int:
        """How long it takes."""
        ...


_Ranked = TypeVar("_Ranked", bound=Standing)


def rung_of(order: int, search: StepSearch) -> Rung:
    """What is chosen there now."""
    return Rung(
        order=order,
        peak_bytes=search.peak_bytes,
        iteration_ns=search.iteration_ns,
        lane_ns=search.lane_ns,
        choices=tuple(search.choices),
        room_bytes=search.room_bytes,
    )


def fastest(rungs: Iterable[Rung]) -> Rung:
    """The first of the fastest; of equally fast ones the one that copies least."""
    return min(rungs, key=lambda rung: rung.speed)


def envelope(found: Iterable[_Ranked]) -> tuple[_Ranked, ...]:
    """Those that no other one is as good as in both, from the highest and fastest on; of equal ones the first."""
    kept: list[_Ranked] = []
    for one in sorted(found, key=lambda f: (f.peak_bytes, f.iteration_ns)):
        if not kept or one.iteration_ns < kept[-1].iteration_ns:
            kept.append(one)
    return tuple(reversed(kept))
