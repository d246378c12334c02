"""Writes the probabilities of labels as JSON objects, which PostgreSQL reads as jsonb."""

import json
from collections.abc import Sequence

import numpy as np

from indb_tensile.learning.model_metrics import Array


def probability_texts(labels: Sequence[str], chances: Array) -> list[str]:
    """Return a JSON object of each row's probabilities, by label.

    `chances` has shape (rows, labels). JSON has no NaN, so the text "NaN" stands for it.
    """
    form = "{" + ",".join(f"{json.dumps(label).replace('%', '%%')}:%s" for label in labels) + "}"
    if np.isnan(chances).any():
        return [form % tuple(map(_number, row)) for row in chances.tolist()]
    return [form % tuple(map(repr, row)) for row in chances.tolist()]


def _number(chance: float) -> str:
    return repr(chance) if chance == chance else '"NaN"'
