"""Reads the transform that a version stores."""

import json

from .refusals import DENIED, RefusalError
from .spi import Json, Row


def stored_transform(version: Row) -> Json | None:
    """Return the `transform` of a version, or None if it computes no features."""
    if version["transform"] is None:
        return None
    stored = json.loads(version["transform"])
    if not isinstance(stored, dict) or not all(
        isinstance(stored.get(part), dict) for part in ("expressions", "inputs")
    ):
        raise not_admitted(version["number"], "they are not an object of expressions and one of columns")
    return dict(stored)


def not_admitted(number: int, reason: str) -> RefusalError:
    """Return the refusal of what version `number` stores, which its owner may have written."""
    return RefusalError(
        DENIED,
        f"version {number} of the model computes features by an expression that is not admitted",
        detail=f"{reason[0].upper()}{reason[1:]}.",
        hint="Nothing was computed. tensile_train stores no such expression: ask the owner to train it again.",
    )
