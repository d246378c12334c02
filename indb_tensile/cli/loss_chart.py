"""Draws the losses of a training as a chart of characters, for a terminal or a text file."""

import math
from collections.abc import Mapping, Sequence

from rich.text import Text

# The marker of each line, so that the lines differ without colours too, and its colour.
_LINES = (("•", "cyan"), ("○", "yellow"))
_BOTH = "◉"
_HEIGHT = 12
_FEWEST_COLUMNS = 20
_MOST_COLUMNS = 80
_LABEL_COLUMNS = 11  # width of the numbers beside the chart

Points = Sequence[tuple[int, float | None]]  # epoch and value


def loss_chart(lines: Mapping[str, Points], width: int) -> list[Text]:
    """Return the chart of at most two lines by name, a row of text each. Empty if no value is finite.

    If there are more epochs than columns, a column shows the last epoch that falls to it.
    """
    known = {
        name: [(epoch, value) for epoch, value in points if value is not None and math.isfinite(value)]
        for name, points in lines.items()
    }
    drawn = {name: points for name, points in known.items() if points}
    if not drawn:
        return []
    epochs = [epoch for points in drawn.values() for epoch, _ in points]
    values = [value for points in drawn.values() for _, value in points]
    first, last, low, high = min(epochs), max(epochs), min(values), max(values)
    columns = min(last - first + 1, max(_FEWEST_COLUMNS, min(_MOST_COLUMNS, width - _LABEL_COLUMNS - 2)))
    cells: dict[tuple[int, int], int | None] = {}
    for number, points in enumerate(drawn.values()):
        last_of_column = {_scaled(epoch, first, last, columns): value for epoch, value in points}
        for column, value in last_of_column.items():
            place = (_HEIGHT - 1 - _scaled(value, low, high, _HEIGHT), column)
            cells[place] = number if place not in cells else None
    rows = [_row(row, cells, columns, low, high) for row in range(_HEIGHT)]
    axis = (
        f"{first}".ljust(columns - len(str(last))) + str(last) if columns > len(str(first) + str(last)) else str(last)
    )
    rows.append(Text(f"{'epoch':>{_LABEL_COLUMNS}}  {axis}"))
    return [*rows, _legend(tuple(drawn))]


def _scaled(value: float, low: float, high: float, steps: int) -> int:
    """Return the step, of this many equal ones, in which the value is."""
    return 0 if high <= low else min(steps - 1, int((value - low) / (high - low) * steps))


def _row(row: int, cells: Mapping[tuple[int, int], int | None], columns: int, low: float, high: float) -> Text:
    shown = {0: f"{high:.4g}", _HEIGHT - 1: f"{low:.4g}"}
    text = Text(f"{shown.get(row, ''):>{_LABEL_COLUMNS}} │")
    for column in range(columns):
        if (row, column) not in cells:
            text.append(" ")
            continue
        number = cells[row, column]
        marker, style = (_BOTH, "") if number is None else _LINES[number]
        text.append(marker, style)
    return text


def _legend(names: Sequence[str]) -> Text:
    text = Text(" " * (_LABEL_COLUMNS + 2))
    for (marker, style), name in zip(_LINES, names, strict=False):
        text.append(marker, style).append(f" {name}   ")
    text.rstrip()
    return text
