"""Draws how a job learns: losses, the metrics of the validation rows, and the learning rate, by epoch."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from indb_tensile.monitor.svg_drawing import CURVES, Drawing, Theme, nice_ticks

_WIDTH, _LEFT, _RIGHT = 1000, 92, 24
_TOP, _HEIGHT, _GAP = 60, 190, 62


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """Curves with one axis, by name: a value for each epoch, None where there is none."""

    title: str
    curves: Mapping[str, Sequence[float | None]]


def learning_picture(title: str, epochs: Sequence[Mapping[str, Any]], theme: Theme = Theme.AUTO) -> str:
    """Return the picture of these epochs as SVG. Each has epoch, loss, valid_loss, learning_rate and metrics."""
    panels = _panels(epochs)
    height = _TOP + len(panels) * (_HEIGHT + _GAP) + 10
    last = epochs[-1]["epoch"] if epochs else 0
    words = f"{last} epochs. " + " ".join(f"{p.title}: {_latest(p)}." for p in panels)
    draw = Drawing(_WIDTH, height, title=title, text=words, theme=theme)
    draw.text(_LEFT, 26, title, size=16)
    at = [int(row["epoch"]) for row in epochs]
    for number, panel in enumerate(panels):
        _draw_panel(draw, _TOP + number * (_HEIGHT + _GAP), panel, at)
    return draw.svg()


def _panels(epochs: Sequence[Mapping[str, Any]]) -> list[Panel]:
    losses = {"training": [row["loss"] for row in epochs], "validation": [row["valid_loss"] for row in epochs]}
    names = sorted({name for row in epochs for name in row["metrics"]})
    metrics = {name: [row["metrics"].get(name) for row in epochs] for name in names}
    rates = {"learning rate": [row.get("learning_rate") for row in epochs]}
    made = (
        Panel(title="Loss", curves=losses),
        *(Panel(title=f"{name}, on the validation rows", curves={name: values}) for name, values in metrics.items()),
        Panel(title="Learning rate", curves=rates),
    )
    return [panel for panel in made if any(_finite(value) for values in panel.curves.values() for value in values)]


def _finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _latest(panel: Panel) -> str:
    texts = []
    for name, values in panel.curves.items():
        known = [value for value in values if value is not None and math.isfinite(value)]
        if known:
            texts.append(f"{name} {known[-1]:.4g}")
    return ", ".join(texts)


def _draw_panel(draw: Drawing, top: float, panel: Panel, at: Sequence[int]) -> None:
    values = [v for curve in panel.curves.values() for v in curve if v is not None and math.isfinite(v)]
    low, high = min(values), max(values)
    margin = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    low, high = low - margin, high + margin
    first, last = at[0], max(at[-1], at[0] + 1)

    def x(epoch: float) -> float:
        return _LEFT + (epoch - first) / (last - first) * (_WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        return top + _HEIGHT * (1 - (value - low) / (high - low))

    draw.text(_LEFT, top - 8, panel.title, size=13)
    for value in nice_ticks(low, high, 5):
        draw.line([(_LEFT, y(value)), (_WIDTH - _RIGHT, y(value))], "grid", width=1)
        draw.text(_LEFT - 8, y(value) + 4, f"{value:.4g}", colour="quiet", anchor="end")
    for epoch in nice_ticks(first, last, 10):
        if epoch == int(epoch):
            draw.text(x(epoch), top + _HEIGHT + 16, f"{epoch:g}", colour="quiet", anchor="middle")
    draw.text(_LEFT - 8, top + _HEIGHT + 16, "epoch", colour="quiet", anchor="end")
    legend = float(_WIDTH - _RIGHT)
    for (name, curve), colour in reversed(list(zip(panel.curves.items(), CURVES, strict=False))):
        if not any(map(_finite, curve)):
            continue
        for stretch in _stretches(at, curve):
            points = [(x(epoch), y(value)) for epoch, value in stretch]
            draw.line(points, colour, width=2, note=name)
            if len(points) == 1:
                draw.rect(points[0][0] - 2, points[0][1] - 2, 4, 4, colour, note=name)
        legend -= 6.6 * len(name)
        draw.text(legend, top - 8, name)
        draw.rect(legend - 17, top - 17, 11, 11, colour)
        legend -= 34


def _stretches(at: Sequence[int], curve: Sequence[float | None]) -> list[list[tuple[int, float]]]:
    """Return the parts of a curve between which values are missing."""
    parts: list[list[tuple[int, float]]] = [[]]
    for epoch, value in zip(at, curve, strict=True):
        if value is None or not math.isfinite(value):
            parts.append([])
        else:
            parts[-1].append((epoch, value))
    return [part for part in parts if part]
