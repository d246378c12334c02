"""Which columns may be features."""

from collections.abc import Sequence

from ..errors import RequestError


def check_features(targets: Sequence[str], features: Sequence[str], relation: str, columns: Sequence[str]) -> None:
    """Raise RequestError if a target is a feature, or if there are no features.

    `relation` describes the table, and `columns` are all its columns.
    """
    for target in targets:
        if target in features:
            raise RequestError(f'"{target}" is both target and feature', hint="Leave it out of features.")
    if not features:
        hint = f"Name columns with features => array['...']. Columns: {', '.join(columns) or 'none'}."
        raise RequestError(f"no features are left in {relation}", hint=hint)
