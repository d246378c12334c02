"""Writes drawings as SVG: shapes, lines and texts, in colours for a light and a dark background.

A drawing of the theme `auto` follows the system's choice of whoever looks at it. The others have fixed colours,
because an image in a page does not know the page's choice.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from html import escape
from types import MappingProxyType

_FONT = "system-ui, sans-serif"
_UNPRINTABLE = dict.fromkeys([*range(9), 11, 12, *range(14, 32), 127, 0xFFFE, 0xFFFF])  # XML has no form for them


class Theme(StrEnum):
    """For which background a drawing is."""

    LIGHT = "light"
    DARK = "dark"
    AUTO = "auto"


# Of paper, text and lines; and of curves and areas, which people with colour-blindness tell apart (Okabe and Ito
# 2008) and which show on both backgrounds.
_LIGHT: Mapping[str, str] = MappingProxyType(
    {
        "paper": "#ffffff",
        "text": "#1b2430",
        "quiet": "#566273",
        "grid": "#e3e7ed",
        "limit": "#b3261e",
        "mark": "#1b2430",
    }
)
_DARK: Mapping[str, str] = MappingProxyType(
    {
        "paper": "#1b212a",
        "text": "#e6eaf0",
        "quiet": "#a3adbb",
        "grid": "#343d4a",
        "limit": "#ff8d85",
        "mark": "#e6eaf0",
    }
)
CURVES = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b8a800", "#7a6fc0")


class Drawing:
    """A drawing of a size in pixels. A colour is a name of the theme, or a hexadecimal one."""

    def __init__(self, width: int, height: int, *, title: str, text: str, theme: Theme = Theme.AUTO) -> None:
        """`title` and `text` are for people who do not see the drawing."""
        self._size = (width, height)
        self._titles = (title, text)
        self._theme = theme
        self._shapes: list[str] = []
        self.rect(0, 0, width, height, "paper")

    def rect(
        self, x: float, y: float, width: float, height: float, colour: str, *, opacity: float = 1.0, note: str = ""
    ) -> None:
        """Draw a filled rectangle. `note` shows while the pointer is on it."""
        size = f'x="{_n(x)}" y="{_n(y)}" width="{_n(max(width, 0))}" height="{_n(max(height, 0))}"'
        faint = "" if opacity == 1 else f' opacity="{_n(opacity)}"'
        self._add(f"<rect {size} {self._paint('fill', colour)}{faint}", "rect", note)

    def area(self, points: Sequence[tuple[float, float]], colour: str, *, note: str = "") -> None:
        """Draw a filled area with these corners."""
        self._add(f'<polygon points="{_points(points)}" {self._paint("fill", colour)}', "polygon", note)

    def line(
        self,
        points: Sequence[tuple[float, float]],
        colour: str,
        *,
        width: float = 1.5,
        dash: str = "",
        note: str = "",
    ) -> None:
        """Draw a line through these points."""
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        paint = f'fill="none" {self._paint("stroke", colour)} stroke-width="{_n(width)}"{dashes}'
        self._add(f'<polyline points="{_points(points)}" {paint}', "polyline", note)

    def text(
        self, x: float, y: float, text: str, *, colour: str = "text", size: int = 12, anchor: str = "start"
    ) -> None:
        """Write a line of text. `anchor` is start, middle or end."""
        place = f'x="{_n(x)}" y="{_n(y)}" font-size="{size}" text-anchor="{anchor}"'
        self._shapes.append(f"<text {place} {self._paint('fill', colour)}>{_escaped(text)}</text>")

    def svg(self) -> str:
        """Return the drawing as an SVG document."""
        width, height = self._size
        title, text = map(_escaped, self._titles)
        body = "\n".join(self._shapes)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
            f'height="{height}" role="img" font-family="{_FONT}">\n'
            f"<title>{title}</title>\n<desc>{text}</desc>\n{self._style()}{body}\n</svg>\n"
        )

    def _style(self) -> str:
        if self._theme is not Theme.AUTO:
            return ""
        rules = "".join(f".f-{n}{{fill:{c}}}.s-{n}{{stroke:{c}}}" for n, c in _DARK.items())
        return f"<style>@media (prefers-color-scheme: dark){{{rules}}}</style>\n"

    def _paint(self, attribute: str, colour: str) -> str:
        palette = _DARK if self._theme is Theme.DARK else _LIGHT
        if colour not in palette:
            return f'{attribute}="{colour}"'
        follows = f' class="{attribute[0]}-{colour}"' if self._theme is Theme.AUTO else ""
        return f'{attribute}="{palette[colour]}"{follows}'

    def _add(self, opened: str, tag: str, note: str) -> None:
        closed = f"><title>{_escaped(note)}</title></{tag}>" if note else "/>"
        self._shapes.append(opened + closed)


def nice_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Return round numbers from `low` to `high`, at most about `most`."""
    if high <= low:
        return [low]
    rough = (high - low) / most
    power = 10.0 ** _floor_log10(rough)
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    first = int(low // step) + (low % step > step * 1e-9)
    ticks, number = [], first
    while number * step <= high * (1 + 1e-12):
        ticks.append(number * step)
        number += 1
    return ticks


def _floor_log10(value: float) -> int:
    return int(f"{value:e}".partition("e")[2])


def _points(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{_n(x)},{_n(y)}" for x, y in points)


def _n(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _escaped(text: str) -> str:
    return escape(text.translate(_UNPRINTABLE).encode("utf-8", "replace").decode())
