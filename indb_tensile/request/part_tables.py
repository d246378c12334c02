"""The tables that hold the rows of one part of a split: which columns they must have."""

from collections.abc import Mapping

SAME_COLUMNS_HINT = (
    "Name a table that has the features and the target with the same types, or a view that casts them. It may have "
    "other columns too."
)


def differing_columns(part: str, table: str, required: Mapping[str, str], present: Mapping[str, str]) -> str:
    """Return an error's message that names every column that is missing or of another type, or an empty text.

    `required` and `present` have the types of columns by name.
    """
    missing = [f'"{name}"' for name in required if name not in present]
    others = [
        f'"{name}" is {present[name]} and not {kind}'
        for name, kind in required.items()
        if name in present and present[name] != kind
    ]
    faults = [f"it has no column {', '.join(missing)}"] if missing else []
    if not (faults or others):
        return ""
    return f"split: table {table} of the {part} part differs from the training table: {'; '.join([*faults, *others])}"
