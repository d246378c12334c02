"""Whether two versions of a model can be compared: only where both predict the same, from the same rows."""

from collections.abc import Container

from indb_tensile.job import Task
from indb_tensile.learning.features import Preprocessor
from indb_tensile.learning.targets import Target


def why_incomparable(old: Preprocessor, new: Preprocessor, columns: Container[str]) -> str:
    """Why the old version's metric on rows that have `columns` says nothing beside the new one's; empty if it does.

    The answer is a clause without a full stop, in which "that version" is the old one. It names no class: classes are
    values of the training data, and others than the model's owner may read the answer.
    """
    if why := _other_target(old.target, new.target):
        return why
    absent = [name for name in old.recipe.features if name not in columns]
    if absent:
        named = ", ".join(f'"{name}"' for name in absent)
        return f"that version needs column{'s' if len(absent) > 1 else ''} {named}, which this one's rows lack"
    return ""


def _other_target(old: Target, new: Target) -> str:
    if old.name != new.name:
        return f'that version predicts "{old.name}", this one "{new.name}"'
    if old.task is not new.task:
        return f'that version predicts "{old.name}" by {old.task}, this one by {new.task}'
    if old.task is Task.CLASSIFICATION and old.labels != new.labels:
        ours, theirs = set(new.labels), set(old.labels)
        return (
            f"that version knows {len(theirs)} classes and this one {len(ours)}, of which "
            f"{len(ours & theirs)} are the same"
        )
    return ""
