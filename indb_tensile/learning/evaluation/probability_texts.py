"""Writes the probabilities of labels, and several values of a row, as JSON, which PostgreSQL reads as jsonb."""

import json
import math
from collections.abc import Sequence

import numpy as np

from indb_tensile.learning.encoding.targets import TargetEncoding
from indb_tensile.learning.evaluation.model_metrics import Array
from indb_tensile.request.json_text import json_text


def probability_texts(labels: Sequence[str], chances: Array) -> list[str]:
    """Return a JSON object of each row's probabilities, by label.

    `chances` has shape (rows, labels). JSON has no NaN, so the text "NaN" stands for it.
    """
    form = _object_form(labels)
    if np.isnan(chances).any():
        return [form % tuple(map(_number, row)) for row in chances.tolist()]
    return [form % tuple(map(repr, row)) for row in chances.tolist()]


def value_texts(target: TargetEncoding, values: Array) -> list[str]:
    """Return each row's values: an object by column for a target of several columns, else a list.

    `values` has shape (rows, values). A value that is not finite is a text, such as "Infinity".
    """
    form = _object_form(target.columns) if target.columns else f"[{','.join(['%s'] * len(target.values))}]"
    return [form % tuple(map(_number, row)) for row in values.tolist()]


def _object_form(names: Sequence[str]) -> str:
    return "{" + ",".join(f"{json_text(name).replace('%', '%%')}:%s" for name in names) + "}"


def _number(number: float) -> str:
    return repr(number) if math.isfinite(number) else f'"{json.dumps(number)}"'
