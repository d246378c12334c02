"""The link between device and host, as the cost model sees it: two copy lanes that all jobs share."""

from dataclasses import dataclass

from indb_tensile.errors import InvariantError

_NS_PER_S = 1_000_000_000


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
