"""The text of predicted sets of labels, as PostgreSQL writes an array of texts."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

_PLAIN = re.compile(r"[^\s{}\",\\]+")


def array_element(text: str) -> str:
    """Return a text as an element of an array, quoted if PostgreSQL would quote it."""
    if _PLAIN.fullmatch(text) and text.lower() != "null":
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def label_sets(names: Sequence[str], outputs: npt.NDArray[Any]) -> list[str]:
    """Return the text of the array of labels whose probability is 0.5 or more, for each row.

    `outputs` are the logarithms of the labels' odds, shape (rows, labels). Equal sets share one text.
    """
    elements = [array_element(name) for name in names]
    known: dict[bytes, str] = {}
    texts = []
    for row in np.asarray(outputs >= 0):
        key = row.tobytes()
        if key not in known:
            known[key] = f"{{{','.join(elements[place] for place in np.flatnonzero(row).tolist())}}}"
        texts.append(known[key])
    return texts
