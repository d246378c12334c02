"""The link between device and host in the cost model: two copy lanes that all jobs share."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from indb_tensile.errors import InvariantError

_NS_PER_S = 1_000_000_000
MIB_BYTES = 1 << 20
BORNE_OUT = 0.9  # A measured rate below this share of the nominal rate replaces it: see `nominal_or_measured`.


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The speed of each copy lane, alone and while the other lane copies too.

    `per_copy_ns` is the start-up time of each copy, which makes small copies slow. `duplex` is the share of its speed
    that a lane keeps while the other lane is busy: 1 if the two directions do not slow each other down.
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
        """Return the nanoseconds of one copy to the host on a free lane."""
        return self.per_copy_ns - (-size_bytes * _NS_PER_S // self.out_bytes_per_s)

    def in_ns(self, size_bytes: int) -> int:
        """Return the nanoseconds of one copy to the device on a free lane."""
        return self.per_copy_ns - (-size_bytes * _NS_PER_S // self.in_bytes_per_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyLoss:
    """How much later the operators beside a copy end, if a processor that they need makes the copy.

    Nothing, where copy engines make copies, or a processor is to spare.
    """

    per_copy_ns: int = 0
    per_mib_ns: int = 0

    def __post_init__(self) -> None:
        if self.per_copy_ns < 0 or self.per_mib_ns < 0:
            raise InvariantError(f"what copies cost operators must not be negative: {self}")

    def ns(self, size_bytes: int) -> int:
        """Return what operators lose to one copy."""
        return self.per_copy_ns + self.per_mib_ns * size_bytes // MIB_BYTES


FREE_COPIES = CopyLoss()


class CopyDirection(StrEnum):
    """The direction of a measured copy."""

    OUT = "out"  # from the device to the host
    IN = "in"


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyMeasurement:
    """A measurement of copies of one size on one lane.

    `latency_ns` is the time of one copy on free lanes until the host knows that the copy has ended. `copy_ns` is the
    time that each of several copies in a row adds. `beside` is True if the other lane copied as much at the same
    time.
    """

    way: CopyDirection
    beside: bool
    size_bytes: int
    latency_ns: int
    copy_ns: int


def link_of(measured: Iterable[CopyMeasurement]) -> Link:
    """Return the link that explains measurements in both directions, with and without copies on the other lane.

    The rates come from the largest copies on a free link. The time that the smallest copies take beyond their rate is
    the start-up time of each copy. Raises InvariantError if a direction was not measured alone.
    """
    rows = sorted(measured, key=lambda row: row.size_bytes)
    alone = {way: [row for row in rows if row.way is way and not row.beside] for way in CopyDirection}
    if not all(alone.values()):
        raise InvariantError("link: copies of both ways, alone, have to be measured")
    rate = {way: max(1, copies[-1].size_bytes * _NS_PER_S // copies[-1].copy_ns) for way, copies in alone.items()}
    start_ns = [copies[0].copy_ns - copies[0].size_bytes * _NS_PER_S // rate[way] for way, copies in alone.items()]
    shares = [
        alone[row.way][-1].copy_ns / row.copy_ns
        for row in rows
        if row.beside and row.size_bytes == alone[row.way][-1].size_bytes
    ]
    return Link(
        out_bytes_per_s=rate[CopyDirection.OUT],
        in_bytes_per_s=rate[CopyDirection.IN],
        per_copy_ns=max(0, *start_ns),
        duplex=max(0.5, min([1.0, *shares])),
    )


def nominal_or_measured(measured: Link, nominal: Link) -> Link:
    """Return the nominal link if the measured rates are at least nine tenths of the nominal ones, otherwise the
    measured link.

    Thus noise does not make the plans of equal machines differ, and a machine with a slow link is planned with its
    true rates.
    """
    shares = (
        measured.out_bytes_per_s / nominal.out_bytes_per_s,
        measured.in_bytes_per_s / nominal.in_bytes_per_s,
        measured.duplex / nominal.duplex,
    )
    return nominal if min(shares) >= BORNE_OUT else measured
