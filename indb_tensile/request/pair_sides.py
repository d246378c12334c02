"""The sides of pairs, of which one is embedded at a time."""

from ..errors import RequestError
from .abbreviation import shown
from .near_names import did_you_mean

QUERY, ITEM = "query", "item"
SIDES = (QUERY, ITEM)


def check_side(side: str | None) -> None:
    """Raise RequestError for a side that pairs do not have. None is no side."""
    if side is not None and side not in SIDES:
        raise RequestError(
            f"side is {shown(side)}", hint=f"{did_you_mean(side, SIDES)}Give one of {', '.join(SIDES)}."
        )
