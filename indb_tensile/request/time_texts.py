"""Reads intervals and times of day from PostgreSQL's text output, as seconds.

The same functions convert the values of a prediction and the values from which `tensile_split` computes hashes. The
results have the bits of those that learning/decoding/binarytimes.py computes from a table's binary values.
"""

import math
import re

SECOND_US = 1_000_000
DAY_S = 86_400
MONTH_S, YEAR_S = 30 * DAY_S, 31_557_600  # as extract(epoch from interval) counts: a year has 365.25 days

_INFINITE = {"infinity": math.inf, "-infinity": -math.inf}
_UNITS = {"year": (12, 0), "mon": (1, 0), "day": (0, 1)}  # months and days
_CLOCK_UNITS = {"hour": 3600, "min": 60, "sec": 1}
_WORDS = re.compile(r"([+-]?\d+(?:\.\d+)?) (year|mon|day|hour|min|sec)s?")
_CLOCK = re.compile(r"([+-]?)(\d+):(\d\d):(\d\d(?:\.\d+)?)")
_YEAR_MONTH = re.compile(r"([+-]?)(\d+)-(\d+)")
_DAYS = re.compile(r"[+-]?\d+")
_ISO = re.compile(r"P((?:-?\d+[YMD])*)(?:T((?:-?\d+(?:\.\d+)?[HMS])+))?")
_ISO_PART = re.compile(r"(-?[\d.]+)([A-Z])")
_TIME_OF_DAY = re.compile(r"(\d\d):(\d\d)(?::(\d\d(?:\.\d{1,6})?))?([+-]\d\d(?::\d\d(?::\d\d)?)?|Z)?")


def interval_seconds(months: int, days: int, time_us: int) -> float:
    """Return the seconds of an interval, correctly rounded. A month has 30 days, and twelve of them 365.25 days."""
    years, rest = divmod(abs(months), 12)
    whole_s = (years * YEAR_S + rest * MONTH_S) * (1 if months >= 0 else -1) + days * DAY_S
    return (whole_s * SECOND_US + time_us) / SECOND_US


def parse_interval(text: str) -> float:
    """Return the seconds of an interval that is written in any `IntervalStyle`.

    Raises ValueError for a text that PostgreSQL does not write.
    """
    if text in _INFINITE:
        return _INFINITE[text]
    fields = _of_iso(text) if text.startswith("P") else _of_words(text)
    return interval_seconds(*fields)


def parse_time_of_day(text: str) -> float:
    """Return the seconds since midnight of a `time` or `timetz`; the latter in UTC. Raises ValueError otherwise."""
    match = _TIME_OF_DAY.fullmatch(text)
    if match is None:
        raise ValueError(f"not a time of day: {text[:40]!r}")
    hours, minutes, seconds, zone = match.groups()
    time_us = (int(hours) * 60 + int(minutes)) * 60 * SECOND_US + _microseconds(seconds or "0")
    if time_us > DAY_S * SECOND_US or int(minutes) > 59:
        raise ValueError(f"not a time of day: {text[:40]!r}")
    return time_of_day_seconds(time_us, None if zone is None else _zone_seconds(zone))


def time_of_day_seconds(time_us: int, east_s: int | None) -> float:
    """Return the seconds since midnight. With a zone, `east_s` before UTC, they are those in UTC, below 86400."""
    if east_s is not None:
        time_us = (time_us - east_s * SECOND_US) % (DAY_S * SECOND_US)
    return time_us / SECOND_US


def _zone_seconds(zone: str) -> int:
    if zone == "Z":
        return 0
    hours, minutes, seconds = ([int(part) for part in zone[1:].split(":")] + [0, 0])[:3]
    return (hours * 3600 + minutes * 60 + seconds) * (-1 if zone[0] == "-" else 1)


def _of_iso(text: str) -> tuple[int, int, int]:
    """Read the style iso_8601, such as P1Y2M-3DT4H5M6.7S."""
    match = _ISO.fullmatch(text)
    if match is None or text == "P":
        raise ValueError(f"not an interval: {text[:40]!r}")
    months = days = time_us = 0
    for value, unit in _ISO_PART.findall(match[1] or ""):
        months += int(value) * {"Y": 12, "M": 1}.get(unit, 0)
        days += int(value) if unit == "D" else 0
    for value, unit in _ISO_PART.findall(match[2] or ""):
        time_us += _microseconds(value) * {"H": 3600, "M": 60}.get(unit, 1)
    return months, days, time_us


def _of_words(text: str) -> tuple[int, int, int]:
    """Read the styles postgres, postgres_verbose and sql_standard."""
    ago = text.endswith(" ago")
    months = days = time_us = 0
    rest = text.removeprefix("@ ").removesuffix(" ago")
    for value, unit in _WORDS.findall(rest):
        if unit in _CLOCK_UNITS:
            time_us += _microseconds(value) * _CLOCK_UNITS[unit]
        else:
            per_month, per_day = _UNITS[unit]
            months, days = months + int(value) * per_month, days + int(value) * per_day
    words = _WORDS.sub("", rest).split()
    bare = len(words) == 1 and _DAYS.fullmatch(words[0]) and rest != "0"
    if bare or not rest.strip():  # PostgreSQL would read a bare number as seconds, and never writes one
        raise ValueError(f"not an interval: {text[:40]!r}")
    for word in words:
        own = _of_word(word, negative=rest.startswith("-") and not _WORDS.search(rest) and "+" not in rest)
        months, days, time_us = months + own[0], days + own[1], time_us + own[2]
    return (-months, -days, -time_us) if ago else (months, days, time_us)


def _of_word(word: str, *, negative: bool) -> tuple[int, int, int]:
    """Read a clock, years and months, or days. With `negative` a word without a sign has that of the first word."""
    sign = -1 if word.startswith("-") or (negative and not word.startswith("+")) else 1
    if clock := _CLOCK.fullmatch(word):
        _, hours, minutes, seconds = clock.groups()
        return 0, 0, sign * ((int(hours) * 60 + int(minutes)) * 60 * SECOND_US + _microseconds(seconds))
    if month := _YEAR_MONTH.fullmatch(word):
        return sign * (int(month[2]) * 12 + int(month[3])), 0, 0
    if _DAYS.fullmatch(word):
        return 0, sign * abs(int(word)), 0
    raise ValueError(f"not an interval: {word[:40]!r}")


def _microseconds(seconds: str) -> int:
    whole, _, fraction = seconds.partition(".")
    size = int(whole.lstrip("+-") or 0) * SECOND_US + int((fraction + "000000")[:6])
    return -size if seconds.startswith("-") else size
