"""Default batch size, epochs, patience and size of an ensemble, as functions of the number of training rows.

The number of optimizer steps decides how well a network is trained: 40 epochs of 105 rows are 80 steps, 40 epochs of
229,000 rows are 143,000 steps. So the batch size grows with the rows, and the number of epochs follows from a target
number of steps. The constants were chosen by experiment: see "bench defaults" in docs/results/models.md.
"""

import math

_SMALLEST_BATCH = 16
_LARGEST_BATCH = 1024
_BATCHES_AN_EPOCH = 32  # below the largest batch size: few enough to be fast, enough gradient noise to generalise
_STEPS = 3_000  # target number of optimizer steps of a training
PRETRAINED_STEPS = 1_000  # of a training from a registered network: it has learned already, and its steps take long
_FEWEST_EPOCHS = 12  # applies to large tables: each row is trained on at least this often
_MOST_EPOCHS = 500  # applies to small tables: bounds the number of validation passes
_PATIENCE_SHARE = 0.2  # share of the epochs
_LEAST_PATIENCE = 5
# Of the schedule plateau: a quarter of the patience, so the rate falls several times before training stops early.
_DECAY_PATIENCE_SHARE = 0.05
_LEAST_DECAY_PATIENCE = 1
_MEMBERS = 5  # size of a default ensemble; Lakshminarayanan and others find little gain beyond five (see ensemble.py)
# Training rows below which the default is an ensemble. On small tables networks of different seeds differ by several
# points, and five of them still train within seconds.
_ENSEMBLE_ROWS = 1_000
FEWEST_VALID_ROWS = 3  # four rows limit the overfitting of a table of thirty rows; fewer than three are too noisy


def batch_size(rows: int) -> int:
    """Return the batch size for `rows` training rows: a power of two from 16 to 1,024."""
    target = 2 ** round(math.log2(max(rows, 1) / _BATCHES_AN_EPOCH))
    return int(min(max(target, _SMALLEST_BATCH), _LARGEST_BATCH))


def epochs(steps_an_epoch: int, steps: int = _STEPS) -> int:
    """Return the number of epochs that make `steps` optimizer steps, clamped to the bounds above."""
    target = math.ceil(steps / max(steps_an_epoch, 1))
    return min(max(target, _FEWEST_EPOCHS), _MOST_EPOCHS)


def members(rows: int) -> int:
    """Return the number of networks that `auto` trains together for `rows` training rows."""
    return _MEMBERS if rows < _ENSEMBLE_ROWS else 1


def patience(epochs: int) -> int:
    """Return the number of epochs without improvement after which a training of `epochs` epochs stops early."""
    return max(_LEAST_PATIENCE, math.ceil(_PATIENCE_SHARE * epochs))


def decay_patience(epochs: int) -> int:
    """Return the number of epochs without improvement after which the schedule plateau lowers the rate."""
    return max(_LEAST_DECAY_PATIENCE, math.ceil(_DECAY_PATIENCE_SHARE * epochs))
