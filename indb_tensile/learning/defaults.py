"""How long and in which batches a training runs where nothing is given: functions of the rows alone.

What makes a network learn is the number of optimizer steps: 40 epochs of 105 rows are 80 steps, of 229,000 rows
143,000. So the batch grows with the rows, and the epochs follow from a number of steps. The constants were chosen
by experiment: see "bench defaults" in bench/RESULTS.md.
"""

import math

_SMALLEST_BATCH = 16
_LARGEST_BATCH = 1024
_BATCHES_AN_EPOCH = 32  # up to the largest batch: few enough to be fast, and noisy enough to generalise
_STEPS = 3_000  # of a whole training
_FEWEST_EPOCHS = 12  # of a large table: each row is seen so often
_MOST_EPOCHS = 500  # of a small table: it has so many validation passes
_PATIENCE_SHARE = 0.2  # of the epochs
_LEAST_PATIENCE = 5
FEWEST_VALID_ROWS = 3  # even four rows bound the overfitting of a table of thirty; fewer say nothing


def batch_size(rows: int) -> int:
    """A power of two, from 16 for small tables to 1,024, for so many training rows."""
    wanted = 2 ** round(math.log2(max(rows, 1) / _BATCHES_AN_EPOCH))
    return int(min(max(wanted, _SMALLEST_BATCH), _LARGEST_BATCH))


def epochs(steps_an_epoch: int) -> int:
    """At least so many as make the wanted number of steps, within bounds."""
    wanted = math.ceil(_STEPS / max(steps_an_epoch, 1))
    return min(max(wanted, _FEWEST_EPOCHS), _MOST_EPOCHS)


def patience(epochs: int) -> int:
    """Epochs without an improvement after which a training of at most `epochs` epochs stops."""
    return max(_LEAST_PATIENCE, math.ceil(_PATIENCE_SHARE * epochs))
