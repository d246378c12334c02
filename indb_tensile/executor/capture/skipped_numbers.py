"""Moves torch's generator of the processor on past the numbers that a dropout would draw, without the dropout.

One of several devices computes its own parts of a batch, and skips the random numbers of the others, so that each
part has the numbers that it has on one device. A dropout takes one or two words of the generator for each element, or
one in all, depending on how torch draws them on this processor. A few small dropouts show which.
"""

from functools import cache
from typing import Any

import torch

from indb_tensile import _native

_Library: Any = torch.library.Library
_LIBRARY = _Library("tensile", "FRAGMENT")  # the declared operator exists as long as this object
# It draws no numbers that are used, but plans must neither move nor repeat it.
_LIBRARY.define("skip_words(int count) -> ()", tags=(torch.Tag.nondeterministic_seeded,))

_RULES = ((1, 0), (2, 0), (0, 1), (0, 2))  # words for each element, and for each dropout
_PROBED = ((1, 0.5), (3, 0.5), (700, 0.1), (5000, 0.5))  # elements, and the probability to drop each


def dropout_words(elements: int) -> int | None:
    """Return how many words a dropout of so many elements takes from the generator; None if no known rule fits."""
    rule = _dropout_rule()
    return None if rule is None else rule[0] * elements + rule[1]


@cache
def _dropout_rule() -> tuple[int, int] | None:
    before = torch.get_rng_state()
    if before.numel() < _native.TWISTER_STATE_BYTES:
        return None
    try:
        after = [_after_dropout(before, elements, rate) for elements, rate in _PROBED]
    finally:
        torch.set_rng_state(before)
    for rule in _RULES:
        skipped = [_after_words(before, rule[0] * elements + rule[1]) for elements, _ in _PROBED]
        if all(map(torch.equal, skipped, after)):
            return rule
    return None


def _after_dropout(state: torch.Tensor, elements: int, rate: float) -> torch.Tensor:
    torch.set_rng_state(state)
    torch.ops.aten.native_dropout.default(torch.zeros(elements), rate, True)
    return torch.get_rng_state()


def _after_words(state: torch.Tensor, count: int) -> torch.Tensor:
    moved = state.clone()
    _native.skip_words(moved.data_ptr(), count)
    return moved


def _skip_words(count: int) -> None:
    torch.set_rng_state(_after_words(torch.get_rng_state(), count))


_LIBRARY.impl("skip_words", _skip_words, "CompositeExplicitAutograd")
skip_words = torch.ops.tensile.skip_words.default
