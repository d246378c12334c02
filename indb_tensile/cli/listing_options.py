"""Options of the commands that list rows: filters, times, sort keys and pages."""

import re
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import click

from indb_tensile.cli.shared_options import Decorator

_LONGEST_AGE = timedelta(days=365_000)  # 1000 years: PostgreSQL counts time from 4713 BC on, Python from the year 1
_AGE = re.compile(r"(?P<number>\d+(\.\d+)?)\s*(?P<unit>[a-z]+)", re.IGNORECASE)
_UNITS = {
    spelling: timedelta(seconds=seconds)
    for seconds, spellings in (
        (1, "s sec secs second seconds"),
        (60, "min mins minute minutes"),
        (3600, "h hour hours"),
        (86_400, "d day days"),
        (604_800, "w week weeks"),
    )
    for spelling in spellings.split()
}


class PointInTime(click.ParamType[datetime | timedelta]):
    """A time in ISO 8601, or an age such as `2h`. An age becomes a timedelta, which the database counts from now."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime | timedelta:
        """Convert the text. A time without a zone stays without one, and means the zone of the database session."""
        text = str(value).strip()
        if match := _AGE.fullmatch(text):
            return self._age(match, text, param, ctx)
        try:
            return datetime.fromisoformat(text)
        except ValueError:
            self.fail(
                f"{text!r} is neither a time, such as 2026-11-22 or '2026-11-22 10:00', nor an age, such as 90min, "
                "2h, 7d or 4w",
                param,
                ctx,
            )

    def _age(
        self, match: re.Match[str], text: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> timedelta:
        unit = _UNITS.get(match["unit"].lower())
        if unit is None:
            self.fail(f"{text!r} is not an age: its unit is s, min, h, d or w, as in 90min, 2h, 7d or 4w", param, ctx)
        seconds = float(match["number"]) * unit.total_seconds()
        if seconds > _LONGEST_AGE.total_seconds():
            self.fail(f"{text!r} is more than 1000 years", param, ctx)
        return timedelta(seconds=seconds)


def name_option(name: str, help: str) -> Decorator:  # noqa: A002 - click's word
    """Return a filter by name. It may be repeated: a row that has one of the names is listed."""
    return click.option(f"--{name}", multiple=True, metavar="NAME", callback=_utf8, help=f"{help}; may be repeated")


def period_options(event: str) -> Decorator:
    """Return the options --since and --until for the time of `event`, such as "that were enqueued"."""
    since = click.option(
        "--since",
        type=PointInTime(),
        metavar="TIME",
        help=f"only {event} at this time or later: a time, such as '2026-11-22 10:00', or an age, such as 2h or 7d",
    )
    until = click.option("--until", type=PointInTime(), metavar="TIME", help=f"only {event} before this time")
    return lambda function: since(until(function))


def page_options(limit: int | None) -> Decorator:
    """Return the options --sort, --limit and --offset. `limit` is the default; None prints all rows."""
    options: tuple[Decorator, ...] = (
        click.option(
            "--sort",
            metavar="COLUMNS",
            callback=_sort_keys,
            help="columns to sort by, separated by commas; -COLUMN sorts from high to low",
        ),
        click.option(
            "--limit",
            default=limit,
            show_default=limit is not None,
            type=click.IntRange(1),
            help="print at most this many rows" + ("" if limit else "; all if left out"),
        ),
        click.option(
            "--offset", default=0, show_default=True, type=click.IntRange(0), help="leave out this many rows first"
        ),
    )

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def _utf8(_: click.Context, __: click.Parameter, names: Sequence[str]) -> Sequence[str]:
    """Refuse bytes of the command line that are not UTF-8: PostgreSQL has no such names."""
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise click.BadParameter(f"{name!r} is not UTF-8") from None
    return names


def _sort_keys(_: click.Context, __: click.Parameter, text: str | None) -> tuple[str, ...]:
    return () if text is None else tuple(key.strip() for key in text.split(","))
