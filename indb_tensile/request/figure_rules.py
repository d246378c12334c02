"""The figures that show the quality of a version in detail, such as a confusion matrix, and their arguments."""

from ..errors import RequestError

# Figures of models with labels. For a relation they are computed when a user asks. For the held-out rows the training
# stores them.
CLASS_FIGURES = ("confusion_matrix", "roc_curve", "calibration")
FIGURES = (*CLASS_FIGURES, "label_metrics", "feature_importance", "forecast")

# The metrics of each label or value by itself, in the order in which they are listed.
REPORTED_METRICS = (
    "precision",
    "recall",
    "f1",
    "accuracy",
    "roc_auc",
    "log_loss",
    "r2",
    "rmse",
    "mae",
    "mape",
    "median_absolute_error",
)
# For each metric of a model of label sets, the metric that is listed for a single label.
METRIC_OF_LABEL = {
    "f1_micro": "f1",
    "f1_macro": "f1",
    "precision_micro": "precision",
    "recall_micro": "recall",
    "subset_accuracy": "accuracy",
    "hamming_loss": "accuracy",
    "roc_auc": "roc_auc",
    "log_loss": "log_loss",
}
# Bins of a stored calibration. A request may ask for any number that divides this: neighbouring bins are then merged.
STORED_BINS = 120
MOST_BINS = 1000
MOST_REPEATS = 100


def figure_title(figure: str) -> str:
    """Return the words for a figure in a message."""
    return "ROC curve" if figure == "roc_curve" else figure.replace("_", " ")


def check_bins(bins: int | None, *, stored: bool) -> int:
    """Return the number of bins of a calibration, 15 if it is left out. Raises RequestError for an invalid number.

    `stored` says whether the stored figure of the held-out rows is requested.
    """
    if bins is None:
        return 15  # the metric calibration_error has as many
    if not 1 <= bins <= MOST_BINS:
        raise RequestError(f"bins is {bins}", hint=f"Give a number from 1 to {MOST_BINS}, such as 15.")
    if stored and STORED_BINS % bins:
        divisors = ", ".join(str(number) for number in range(1, STORED_BINS + 1) if STORED_BINS % number == 0)
        raise RequestError(
            f"bins is {bins}, which does not divide the {STORED_BINS} stored bins of the held-out rows",
            hint=f"Give one of {divisors}, or name the rows with relation => '...'.",
        )
    return bins


def check_permutations(repeats: int | None, seed: int | None, label: str | None, *, stored: bool) -> tuple[int, int]:
    """Return how often each column is permuted, 5 if it is left out, and the seed. Raises RequestError if invalid.

    `stored` says whether the stored importance of the held-out rows is requested, which has no arguments.
    """
    if stored and not (repeats is None and seed is None and label is None):
        raise RequestError(
            "repeats, seed or label is given without a relation",
            hint="Leave them out for the stored importance on held-out rows, or name rows with relation => '...'.",
        )
    repeats, seed = 5 if repeats is None else repeats, 0 if seed is None else seed
    if not 1 <= repeats <= MOST_REPEATS:
        raise RequestError(f"repeats is {repeats}", hint=f"Give a number from 1 to {MOST_REPEATS}, such as 5.")
    if seed < 0:
        raise RequestError(f"seed is {seed}", hint="Give a number from 0.")
    return repeats, seed
