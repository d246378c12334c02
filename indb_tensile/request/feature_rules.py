"""Checks the features of a training, and of one that starts from the weights of another version."""

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


def learned_first(version: str, learned: Sequence[str], features: Sequence[str]) -> tuple[str, ...]:
    """Return the features of a training that starts from a version: first those that the version learned from.

    `version` describes that version, and `learned` are its features. Raises RequestError if the training lacks one.
    """
    absent = [f'"{name}"' for name in learned if name not in features]
    if absent:
        raise RequestError(
            f"init_from: the training is without {' and '.join(absent)}, from which {version} learned",
            detail=f"It learned from: {', '.join(learned)}.",
            hint="Leave features and exclude out, which takes over those of the version, or name more columns.",
        )
    return (*learned, *(name for name in features if name not in learned))
