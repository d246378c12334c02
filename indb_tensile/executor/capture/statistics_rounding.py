"""How a device rounds new running statistics, and the same rounding for statistics that are known already.

The kernel of batch normalisation updates running statistics with those of the values that it normalises. Several
devices update them with statistics that come from other devices, so they need an update of its own that has the bits
of the kernel's. The new value is momentum times the batch's statistic plus the rest times the old one. Kernels are
compiled with or without fused multiplications and additions, which leave out one of the three roundings; which one
depends on the processor, the types and the version of torch. So the kernel itself is asked, with random numbers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

import torch

from indb_tensile.executor.capture.running_statistics import BATCH_NORM, MEAN, VARIANCE

_CHANNELS = 263  # more than the widest registers have, and no multiple of their width
_TRIALS = 4


class Rounding(StrEnum):
    """Which of both products in the sum of a new running statistic is rounded before the sum is."""

    BOTH = "both"
    OLD = "old"  # that with the old running statistic; the sum is fused with the other
    NEW = "new"  # that with the batch's statistic; the sum is fused with the other


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenValues:
    """What the kernel's choice of a path depends on: the type, dimensions and memory order of what it normalises."""

    dtype: torch.dtype
    dimensions: int
    channels_last: bool

    @classmethod
    def of(cls, values: torch.Tensor) -> "SeenValues | None":
        """Return that of these values; None if their memory order is neither of both."""
        channels_last = not values.is_contiguous()
        if channels_last and not _is_channels_last(values):
            return None
        return cls(dtype=values.dtype, dimensions=values.dim(), channels_last=channels_last)

    def draw(self, place: torch.device, generator: torch.Generator) -> torch.Tensor:
        """Return random values of this kind."""
        sizes = (6, _CHANNELS, *(2,) * (self.dimensions - 2))
        values = torch.randn(sizes, generator=generator).to(place, self.dtype)
        if self.channels_last:
            order = torch.channels_last if self.dimensions == 4 else torch.channels_last_3d
            values = values.contiguous(memory_format=order)
        return values


def updated(running: torch.Tensor, statistic: torch.Tensor, momentum: float, rounding: Rounding) -> torch.Tensor:
    """Return the new running statistics (channels), for those of a batch (channels) of the same type."""
    rounded = torch.tensor(momentum, dtype=running.dtype)
    weight, rest = float(rounded), float(1.0 - rounded)
    if rounding is Rounding.OLD:
        return _fused(weight, statistic, rest * running)
    if rounding is Rounding.NEW:
        return _fused(rest, running, weight * statistic)
    return weight * statistic + rest * running


def roundings(
    place: torch.device, seen: SeenValues, dtype: torch.dtype, momentum: float
) -> dict[int, Rounding | None]:
    """Return how the device's kernel rounds each statistic of this type; None if not in one of the known ways."""
    return dict(_roundings(place, seen, dtype, momentum))


@lru_cache(maxsize=256)
def _roundings(
    place: torch.device, seen: SeenValues, dtype: torch.dtype, momentum: float
) -> tuple[tuple[int, Rounding | None], ...]:
    generator = torch.Generator().manual_seed(11)
    left: dict[int, list[Rounding]] = {MEAN: list(Rounding), VARIANCE: list(Rounding)}
    for _ in range(_TRIALS):
        values = seen.draw(place, generator)
        running = [torch.randn(_CHANNELS, generator=generator).to(place, dtype) for _ in range(2)]
        new, alone = _run(values, running, momentum), _run(values, [torch.zeros_like(old) for old in running], 1.0)
        for (kind, known), old, made, statistic in zip(left.items(), running, new, alone, strict=True):
            left[kind] = [r for r in known if torch.equal(updated(old, statistic, momentum, r), made)]
    return tuple((kind, next(iter(known), None)) for kind, known in left.items())


def _run(values: torch.Tensor, running: list[torch.Tensor], momentum: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the new running mean and variance of the kernel."""
    scale, shift = torch.ones_like(running[0]), torch.zeros_like(running[0])
    run: Callable[..., tuple[torch.Tensor, ...]] = BATCH_NORM
    results = run(values, scale, shift, *running, True, momentum, 1e-5)
    return results[MEAN], results[VARIANCE]


def _is_channels_last(values: torch.Tensor) -> bool:
    order = {4: torch.channels_last, 5: torch.channels_last_3d}.get(values.dim())
    return order is not None and values.is_contiguous(memory_format=order)


def _fused(factor: float, values: torch.Tensor, added: torch.Tensor) -> torch.Tensor:
    """Return factor * values + added with a single rounding, in single precision.

    The product is exact in double precision. The sum is rounded there to an odd last bit, unless it is exact, so that
    rounding it once more is as good as rounding it once (Boldo and Melquiond, "Emulation of FMA and Correctly Rounded
    Sums: Proved Algorithms Using Rounding to Odd", IEEE Transactions on Computers 2008).
    """
    if added.dtype != torch.float32:
        return torch.full_like(added, torch.nan)  # equal to nothing that a kernel computes
    product, summand = factor * values.double(), added.double()
    total = product + summand
    back = total - product
    error = (product - (total - back)) + (summand - back)  # Knuth's exact error of the sum
    bits = total.view(torch.int64)
    away = torch.where((error > 0) == (total > 0), 1, -1)  # towards the exact sum, as a step of the bits
    odd = torch.where(torch.isfinite(error) & (error != 0) & (bits % 2 == 0), bits + away, bits)
    return odd.view(torch.float64).float()
