"""Argument types that several benchmarks share, for argparse. An error about a value names the option."""

from argparse import ArgumentTypeError
from collections.abc import Callable
from math import inf


def whole(least: int = 1) -> Callable[[str], int]:
    """Return a converter to a whole number of at least `least`."""

    def convert(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise ArgumentTypeError(f"{text!r} is no whole number from {least} on")
        return int(text)

    return convert


def portion(text: str) -> float:
    """Convert to a number from 0 to 1."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise ArgumentTypeError(f"{text!r} is no share: a number from 0 to 1 is needed")
    return value


def number(least: float) -> Callable[[str], float]:
    """Return a converter to a finite number of at least `least`."""

    def convert(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = -inf
        if not least <= value < inf:
            raise ArgumentTypeError(f"{text!r} is no number from {least:g} on")
        return value

    return convert
