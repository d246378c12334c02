"""The tasks of a training, the targets that suit them, and the metrics that judge them."""

from ..errors import RequestError

TASKS = ("classification", "regression")
# The kinds of columns that a task can predict.
TARGET_KINDS: dict[str, tuple[str, ...]] = {
    "classification": ("integer", "float", "boolean", "text"),
    "regression": ("integer", "float"),
}
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
}


def check_target(task: str, target: str, kind: str, description: str) -> None:
    """Raise RequestError for a target of a kind that the task cannot predict.

    `target` and `description` name the column and its type for the message.
    """
    if kind in TARGET_KINDS[task]:
        return
    nouns = "numeric" if task == "regression" else "text, boolean or numeric"
    other = ", or use task => 'classification'" if task == "regression" and kind not in ("date", "time") else ""
    raise RequestError(
        f"target {target} {description}, which {task} cannot predict",
        hint=f"Name a {nouns} column with target => '...'{other}.",
    )


def check_metric(task: str, metric: str) -> str:
    """Return the metric that versions are compared by. Raises RequestError for a metric that the task lacks."""
    if metric not in METRICS[task]:
        hint = f"For {task}: {', '.join(METRICS[task])}."
        raise RequestError(f'unknown metric "{metric}" for {task}', hint=hint)
    return metric
