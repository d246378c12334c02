"""The tasks of a training, the targets that suit them, and the metrics that judge them."""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ..errors import RequestError
from .abbreviation import shown
from .near_names import did_you_mean

TASKS = ("classification", "regression", "multilabel", "forecast", "anomaly", "pairs")
# The kinds of columns that a task can predict. Of arrays, "flags" is one of booleans, "integers" one of integers,
# "labels" one of texts or enums, and "array" any other one of numbers.
TARGET_KINDS: dict[str, tuple[str, ...]] = {
    "classification": ("integer", "float", "boolean", "text"),
    "regression": ("integer", "float", "array", "integers"),
    "multilabel": ("labels", "flags", "integers"),
    "forecast": ("integer", "float"),
    "anomaly": ("boolean", "integer"),  # labels, which judge and do not train
    "pairs": (),  # whatever a feature may be: the columns of the item are not predicted
}
# The kinds of columns of which a target may have several.
_COMBINED_KINDS = {
    "regression": ("integer", "float"),
    "multilabel": ("boolean",),
    "forecast": ("integer", "float"),
}
MOST_TARGETS = 100
METRICS: dict[str, tuple[str, ...]] = {
    "classification": (
        "accuracy",
        "balanced_accuracy",
        "precision_macro",
        "recall_macro",
        "f1_macro",
        "log_loss",
        "roc_auc",
        "brier",
        "calibration_error",
    ),
    "regression": ("r2", "rmse", "mae", "mape", "median_absolute_error"),
    "multilabel": (
        "f1_micro",
        "f1_macro",
        "precision_micro",
        "recall_micro",
        "subset_accuracy",
        "hamming_loss",
        "roc_auc",
        "log_loss",
    ),
    "forecast": ("mase", "mae", "rmse", "smape", "pinball"),
    "anomaly": ("reconstruction_error", "roc_auc", "average_precision"),
    "pairs": ("mrr", "recall_at_1", "recall_at_10"),
}


def check_target(task: str, target: str, kind: str, description: str) -> None:
    """Raise RequestError for a target of a kind that the task cannot predict.

    `target` and `description` name the column and its type for the message.
    """
    if kind in TARGET_KINDS[task]:
        return
    others = [other for other in TASKS if kind in TARGET_KINDS[other] and other not in ("forecast", "anomaly")]
    other = f", or use task => '{others[0]}'" if others else ""
    raise RequestError(
        f"target {target} {description}, which {task} cannot predict",
        hint=f"Name {_NOUNS[task]} with target => '...'{other}.",
    )


def check_target_columns(task: str, kinds: Mapping[str, str]) -> None:
    """Raise RequestError for several columns that cannot be predicted together. `kinds` has the kind of each."""
    allowed = _COMBINED_KINDS.get(task)
    if allowed is None:
        raise RequestError(
            f"{task} predicts one column, and target names {len(kinds)}",
            detail="Several numbers are predicted by regression, several booleans by multilabel.",
            hint="Name one column, or use another task => '...'.",
        )
    wrong = [name for name, kind in kinds.items() if kind not in allowed]
    if wrong:
        noun = "booleans" if task == "multilabel" else "numbers"
        raise RequestError(
            f'target: {task} of several columns needs {noun}, and column "{wrong[0]}" is of kind {kinds[wrong[0]]}',
            hint=f"Leave it out, or cast it in a view or in tensile_train_query. {_COMBINED_HINT}",
        )


def target_names(target: str) -> list[str]:
    """Return the columns that a target names: those of a JSON list, as '["height", "weight"]', or one.

    Raises RequestError for a list that is empty, too long, or names a column twice, and for other JSON in brackets.
    """
    if not target.lstrip().startswith("["):
        return [target]
    hint = """Name one column, or several as a list: target => '["height", "weight"]'."""
    try:
        names = json.loads(target)
    except (ValueError, RecursionError):
        raise RequestError(f"target {shown(target)} is not a JSON list of columns", hint=hint) from None
    if not names or not all(isinstance(name, str) for name in names):
        raise RequestError(f"target {shown(target)} is not a list of names of columns", hint=hint)
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise RequestError(f'target names column "{twice}" {names.count(twice)} times', hint="Name it once.")
    if len(names) > MOST_TARGETS:
        raise RequestError(
            f"target names {len(names)} columns, the most are {MOST_TARGETS}",
            hint="Combine them to an array in a view or in tensile_train_query, and name the array.",
        )
    return [str(name) for name in names]


def predicts_target(task: str) -> bool:
    """Return whether the columns of the target are predicted, and are no features: those of an item are both."""
    return task != "pairs"


def check_named_targets(target: str, columns: Sequence[str]) -> None:
    """Raise RequestError for a stored specification whose target does not name its several columns."""
    if columns and (len(columns) < 2 or target != target_text(columns) or target_names(target) != list(columns)):
        raise RequestError(
            f"the specification has the targets {shown(list(columns))}, and its target is {shown(target)}",
            hint="Enqueue jobs with tensile_train, which writes both.",
        )


def named_targets(target: str, columns: Collection[str]) -> list[str]:
    """Return the columns that a target names, as `target_names`; a column of exactly this name comes first."""
    return [target] if target in columns else target_names(target) if target else []


def target_columns(spec: Mapping[str, Any]) -> list[str]:
    """Return the columns that the target of a specification is made from: none if it has no target."""
    return list(spec.get("targets") or ([spec["target"]] if spec["target"] else []))


def target_text(names: Sequence[str]) -> str:
    """Return the name of a target of several columns: their JSON list in one form."""
    return json.dumps(list(names), ensure_ascii=False)


def check_metric(task: str, metric: str) -> str:
    """Return the metric that versions are compared by. Raises RequestError for a metric that the task lacks."""
    if metric not in METRICS[task]:
        hint = f"{did_you_mean(metric, METRICS[task])}For {task}: {', '.join(METRICS[task])}."
        raise RequestError(f"unknown metric {shown(metric)} for {task}", hint=hint)
    return metric


_NOUNS = {
    "classification": "a text, boolean or numeric column",
    "regression": "a numeric column",
    "multilabel": "an array of texts, enums or booleans, or of integers,",
    "forecast": "a numeric column",
    "anomaly": "a boolean column, or one of 0 and 1, whose anomalies are true or 1,",
}
_COMBINED_HINT = "Several columns are all numbers (regression) or all booleans (multilabel)."
