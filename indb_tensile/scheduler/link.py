"""The link between device and host, as the cost model sees it: two copy lanes that all jobs share."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from indb_tensile.errors import InvariantError

_NS_PER_S = 1_000_000_000
BORNE_OUT = 0.9  # of what a link is said to give: less, and it does not


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """How fast each lane copies, alone and while the other one copies too.

    `per_copy_ns` is each copy's start-up, which makes small copies slow. `duplex` is the part of its speed that
    a lane keeps while the other one is busy: 1 where the two directions do not disturb each other.
    """

    out_bytes_per_s: int
    in_bytes_per_s: int
    per_copy_ns: int = 0
    duplex: float = 1.0

    def __post_init__(self) -> None:
        if self.out_bytes_per_s <= 0 or self.in_bytes_per_s <= 0 or self.per_copy_ns < 0:
            raise InvariantError(f"link: rates must be positive and per_copy_ns not negative: {self}")
        if not 0.5 <= self.duplex <= 1.0:
            raise InvariantError(f"link: duplex is {self.duplex}, not between 0.5 (one lane) and 1 (two lanes)")

    def out_ns(self, size_bytes: int) -> int:
        """How long one copy to the host takes on a free lane."""
        return self.per_copy_ns - (-size_bytes * _NS_PER_S // self.out_bytes_per_s)

    def in_ns(self, size_bytes: int) -> int:
        """How long one copy to the device takes on a free lane."""
        return self.per_copy_ns - (-size_bytes * _NS_PER_S // self.in_bytes_per_s)


class Way(StrEnum):
    """Where a copy goes."""

    OUT = "out"  # from the device to the host
    IN = "in"


@dataclass(frozen=True, slots=True, kw_only=True)
class Copying:
    """Copies of one size on one lane, as measured.

    `latency_ns` is one copy's on lanes that were free, until the host knows of its end; `copy_ns` is what each of
    several in a row adds. `beside`: the other lane copied as much at the same time.
    """

    way: Way
    beside: bool
    size_bytes: int
    latency_ns: int
    copy_ns: int


def link_of(measured: Iterable[Copying]) -> Link:
    """The link that explains measurements of both ways, alone and beside: rates from the largest copies alone.

    What the smallest take beyond their rate is each copy's start-up. Raises InvariantError where a way is missing.
    """
    rows = sorted(measured, key=lambda row: row.size_bytes)
    alone = {way: [row for row in rows if row.way is way and not row.beside] for way in Way}
    if not all(alone.values()):
        raise InvariantError("link: copies of both ways, alone, have to be measured")
    rate = {way: max(1, found[-1].size_bytes * _NS_PER_S // found[-1].copy_ns) for way, found in alone.items()}
    start_ns = [found[0].copy_ns - found[0].size_bytes * _NS_PER_S // rate[way] for way, found in alone.items()]
    kept = [
        alone[row.way][-1].copy_ns / row.copy_ns
        for row in rows
        if row.beside and row.size_bytes == alone[row.way][-1].size_bytes
    ]
    return Link(
        out_bytes_per_s=rate[Way.OUT],
        in_bytes_per_s=rate[Way.IN],
        per_copy_ns=max(0, *start_ns),
        duplex=max(0.5, min([1.0, *kept])),
    )


def trusted(measured: Link, nominal: Link) -> Link:
    """What is known of a link where the measurement bears it out, within a tenth; otherwise what was measured.

    So noise does not make plans of equal machines differ, and a machine that cannot keep up is planned as it is.
    """
    shares = (
        measured.out_bytes_per_s / nominal.out_bytes_per_s,
        measured.in_bytes_per_s / nominal.in_bytes_per_s,
        measured.duplex / nominal.duplex,
    )
    return nominal if min(shares) >= BORNE_OUT else measured
