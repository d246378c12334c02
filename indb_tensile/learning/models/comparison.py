"""Decides whether two versions of a model can be compared.

Two versions can be compared only if both predict the same target from the same rows.
"""

from collections.abc import Container

from indb_tensile.job import Task
from indb_tensile.learning.encoding.preprocessor import Preprocessor
from indb_tensile.learning.encoding.targets import TargetEncoding
from indb_tensile.learning.forecasting.forecast_recipe import ForecastRecipe


def why_incomparable(old: Preprocessor, new: Preprocessor, columns: Container[str]) -> str:
    """Return why the metrics of two versions cannot be compared, or an empty text if they can.

    The old version is evaluated on rows that have `columns`. The answer is a clause without a full stop, which calls
    the old version "that version". The answer contains no class, since classes are values of the training data and
    the answer may be read by other roles than the model's owner.
    """
    if reason := _target_difference(old.target, new.target):
        return reason
    absent = [name for name in old.recipe.features if name not in columns]
    if absent:
        named = ", ".join(f'"{name}"' for name in absent)
        return f"that version needs column{'s' if len(absent) > 1 else ''} {named}, which this one's rows lack"
    return ""


def why_other_forecast(old: ForecastRecipe | None, new: ForecastRecipe) -> str:
    """Return why an older version cannot forecast from a new one's origins, or an empty text if it can."""
    if old is None:
        return "that version forecasts no series"
    theirs, ours = old.columns, new.columns
    for verb, before, now in (
        ("forecasts", theirs.targets, ours.targets),
        ("tells series apart by", theirs.series, ours.series),
        ("observes", theirs.observed, ours.observed),
        ("knows in advance", theirs.known, ours.known),
        ("has the static columns", theirs.static, ours.static),
    ):
        if before != now:
            return f"that version {verb} {', '.join(before) or 'nothing'}, this one {', '.join(now) or 'nothing'}"
    if old.horizon != new.horizon or old.steps != new.steps:
        return (
            f"that version forecasts {old.horizon} steps of {old.steps.text}, and this one {new.horizon} of "
            f"{new.steps.text}"
        )
    return ""


def _target_difference(old: TargetEncoding, new: TargetEncoding) -> str:
    """Return how the targets differ as a clause, or an empty text if they are the same."""
    if old.name != new.name:
        return f'that version predicts "{old.name}", this one "{new.name}"'
    if old.task is not new.task:
        return f'that version predicts "{old.name}" by {old.task}, this one by {new.task}'
    if len(old.values) != len(new.values):
        return f"that version predicts {old.outputs} values and this one {new.outputs}"
    if old.labels != new.labels:
        ours, theirs = set(new.labels), set(old.labels)
        noun = "classes" if old.task is Task.CLASSIFICATION else "labels"
        return (
            f"that version knows {len(theirs)} {noun} and this one {len(ours)}, of which "
            f"{len(ours & theirs)} are the same"
        )
    return ""
