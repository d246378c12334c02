"""Defines the operator by which each of several devices updates running statistics of batch normalisation.

`tensile::update_statistics_` updates them with the statistics of all parts of a batch, which devices hand out to each
other (owner_operators.py), in the order of the parts, as one device does.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch

from indb_tensile.executor.capture.statistics_rounding import Rounding, updated

_Library: Any = torch.library.Library
_LIBRARY = _Library("tensile", "FRAGMENT")  # the declared operators exist as long as this object
_LIBRARY.define(
    "update_statistics_(Tensor(a!)[] running, Tensor[] parts, *,"
    " int[] places, float[] momenta, str[] roundings) -> ()"
)


def _update_statistics(
    running: list[torch.Tensor],
    parts: list[torch.Tensor],
    *,
    places: Sequence[int],
    momenta: Sequence[float],
    roundings: Sequence[str],
) -> None:
    """Update the running statistics (channels each) in place, with those of one part after the other.

    A part has a statistic for each of `places`, which are positions in `running`; the statistics follow each other in
    one vector. Each has a momentum and a rounding (statistics_rounding.py).
    """
    sizes = [running[place].numel() for place in places]
    groups = [*_groups(places, momenta, roundings)]
    for part in parts:
        statistics = torch.split(part, sizes)
        for group in groups:
            own = [running[places[k]] for k in group]
            new = updated(
                torch.cat(own),
                torch.cat([statistics[k] for k in group]).to(own[0].dtype),
                momenta[group.start],
                Rounding(roundings[group.start]),
            )
            for value, made in zip(own, torch.split(new, [value.numel() for value in own]), strict=True):
                value.copy_(made)


def _groups(places: Sequence[int], momenta: Sequence[float], roundings: Sequence[str]) -> Iterator[range]:
    """Yield consecutive statistics that are updated alike, and each of which has a running one of its own."""
    starts = [0]
    for k in range(1, len(places)):
        alike = (momenta[k], roundings[k]) == (momenta[k - 1], roundings[k - 1])
        if not alike or places[k] in places[starts[-1] : k]:
            starts.append(k)
    for start, end in pairwise([*starts, len(places)]):
        yield range(start, end)


_LIBRARY.impl("update_statistics_", _update_statistics, "CompositeExplicitAutograd")

update_statistics_ = torch.ops.tensile.update_statistics_.default
