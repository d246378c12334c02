"""Says which columns a version's rows need, and adds the features that its `transform` defines.

Few versions have a transform, so the modules that check and compute its expressions are loaded only for these.
"""

from collections.abc import Sequence

from .spi import Plpy, Row
from .stored_transforms import stored_transform


def raw_columns(version: Row, features: Sequence[str]) -> list[str]:
    """Return the columns that rows need for these features of a version: the inputs of those that are computed."""
    transform = stored_transform(version)
    if transform is None:
        return list(features)
    plain = [name for name in features if name not in transform["expressions"]]
    return list(dict.fromkeys([*plain, *transform["inputs"]]))


def with_features(
    plpy: Plpy, version: Row, rows: Sequence[bytes | None], *, first: int | None = 1, unnamed: bool = False
) -> list[bytes | None]:
    """Return rows, which are JSON, with the computed features of the version. Null rows stay null.

    `first` is the number of the first row, for errors; None if the row has no number. `unnamed` says that the fields
    of the rows have no names of columns.
    """
    if version["transform"] is None or not any(row is not None for row in rows):
        return list(rows)
    from .feature_computation import computed_rows  # most versions compute no feature, and its imports take long

    return computed_rows(plpy, version, rows, first=first, unnamed=unnamed)
