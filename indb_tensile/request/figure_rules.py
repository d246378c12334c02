"""The figures that judge a version beside its metrics, and their arguments."""

from ..errors import RequestError

# Figures of classifications. They are computed from the rows of a relation, or stored for the held-out rows.
CLASS_FIGURES = ("confusion_matrix", "roc_curve", "calibration")
FIGURES = CLASS_FIGURES
STORED_BINS = 120  # of a stored calibration, which is merged into any number of bins that divides this
MOST_BINS = 1000


def check_bins(bins: int | None, *, stored: bool) -> int:
    """Return the number of bins of a calibration, 15 if it is left out. Raises RequestError for another number."""
    if bins is None:
        return 15  # as in calibration_error
    if not 1 <= bins <= MOST_BINS:
        raise RequestError(f"bins is {bins}", hint=f"Give a number from 1 to {MOST_BINS}, such as 15.")
    if stored and STORED_BINS % bins:
        divisors = ", ".join(str(number) for number in range(1, STORED_BINS + 1) if STORED_BINS % number == 0)
        raise RequestError(
            f"bins is {bins}, which does not divide the {STORED_BINS} stored bins of the held-out rows",
            hint=f"Give one of {divisors}, or name the rows with relation => '...'.",
        )
    return bins
