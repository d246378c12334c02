"""The steps of a series: times become whole numbers of steps, and steps become times again.

Steps of seconds to weeks have one length. Months, quarters and years are counted in the calendar. With a time zone,
steps of a day or more are those of its calendar, so that a day in which the clock is changed is one step.
"""

import datetime
import functools
from dataclasses import dataclass
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import numpy.typing as npt

from indb_tensile.errors import DataError, RequestError
from indb_tensile.request.forecast_rules import parse_step

Seconds = npt.NDArray[np.float64]
Steps = npt.NDArray[np.int64]

DAY_S = 86_400
_MONTHS = {"month": 1, "quarter": 3, "year": 12}
_SECONDS = {"one": 1, "second": 1, "minute": 60, "hour": 3600, "day": DAY_S, "week": 7 * DAY_S}
_MONDAY_S = 4 * DAY_S  # 1970-01-05, the first Monday
_DETECTED = ("week", "day", "hour", "minute", "second")  # units that are detected, the longest first
_MOST_STEPS = 2.0**53  # beyond, numbers in double precision differ by more than one
_TOLERANCE = 1e-3  # tolerance of a time as a share of a step, and
_TOLERANCE_S = 0.5  # the largest tolerance: times in seconds are not exact beyond microseconds
_UTC = datetime.UTC


@dataclass(frozen=True, kw_only=True)
class TimeSteps:
    """The length of a step and the form of the times.

    `phase_s` is the remainder of the times by the step. `form` is that of the time column: date, timestamp,
    timestamptz or integer. If `truncates`, a time within a step belongs to the step; otherwise it is refused.
    """

    count: int
    unit: str
    form: str
    phase_s: float = 0.0
    zone: str | None = None
    truncates: bool = False

    @property
    def text(self) -> str:
        """Return the step as a request has it."""
        return str(self.count) if self.unit == "one" else f"{self.count} {self.unit}{'s' if self.count > 1 else ''}"

    @property
    def length_s(self) -> float:
        """Return the length of a step in seconds, of months on average."""
        if self.unit in _MONTHS:
            return self.count * _MONTHS[self.unit] * 30.436875 * DAY_S
        return float(self.count * _SECONDS[self.unit])

    @property
    def local(self) -> bool:
        """Return whether steps are counted in the calendar of the zone."""
        return self.zone is not None and (self.unit in _MONTHS or self.length_s >= DAY_S)

    def numbers(self, times: Seconds) -> Steps:
        """Return the step of each time. Raises DataError for a time that is between two steps."""
        civil = to_civil(times, self.zone) if self.local else times
        if self.unit in _MONTHS:
            return _months(civil) // (self.count * _MONTHS[self.unit])
        places = (civil - self.phase_s) / self.length_s
        far = ~(np.abs(places) < _MOST_STEPS)
        if far.any():
            raise DataError(
                f"a time is {times[far][0]:g}, too far away to count its steps of {self.text}",
                detail=f"{int(far.sum())} of {len(times)} times are 2^53 steps away or more.",
                hint="Correct these rows, or name a view without them.",
            )
        if self.truncates:
            return np.floor(places + _TOLERANCE).astype(np.int64)
        nearest = np.rint(places)
        wrong = np.abs(places - nearest) > min(_TOLERANCE, _TOLERANCE_S / self.length_s)
        if wrong.any():
            raise DataError(
                f"time {self.texts(times[wrong][:1])[0]} is not on the steps of {self.text} of the other times",
                detail=f"{int(wrong.sum())} of {len(times)} times are between two steps.",
                hint='Give the step, and what several rows of a step become: forecast => \'{"step": '
                f'"{self.text}", "duplicates": "mean", ...}}\'.',
            )
        return nearest.astype(np.int64)

    def times(self, last: Seconds, ahead: Steps) -> Seconds:
        """Return the times `ahead` steps after `last`, element by element."""
        civil = to_civil(last, self.zone) if self.local else last
        if self.unit in _MONTHS:
            later = _later_months(civil, ahead * self.count * _MONTHS[self.unit])
        else:
            later = civil + ahead * self.length_s
        return from_civil(later, self.zone) if self.local else later

    def starts(self, numbers: Steps) -> Seconds:
        """Return the first time of each step, in the calendar that the steps are counted in."""
        if self.unit in _MONTHS:
            months = (numbers * self.count * _MONTHS[self.unit]).astype("datetime64[M]")
            return months.astype("datetime64[s]").astype(np.int64).astype(np.float64)
        return numbers.astype(np.float64) * self.length_s + self.phase_s

    def texts(self, times: Seconds) -> list[str]:
        """Return times as PostgreSQL reads them."""
        if self.form == "integer":
            return [str(round(time)) for time in times.tolist()]
        moments = [_EPOCH + datetime.timedelta(seconds=time) for time in times.tolist()]
        if self.form == "date":
            return [moment.date().isoformat() for moment in moments]
        texts = [moment.replace(tzinfo=None).isoformat(sep=" ") for moment in moments]
        return [f"{text}+00" for text in texts] if self.form == "timestamptz" else texts


_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=_UTC)


def requested_steps(step: str, form: str, zone: str | None, *, truncates: bool) -> TimeSteps:
    """Return the steps that a request names."""
    count, unit = parse_step(step)
    phase_s = float(_MONDAY_S) if unit == "week" else 0.0
    return TimeSteps(count=count, unit=unit, form=form, phase_s=phase_s, zone=zone, truncates=truncates)


def detected_steps(times: Seconds, form: str, zone: str | None) -> TimeSteps:
    """Return the steps that the differing, sorted times of a series make: the most frequent distance.

    Distances of 28 to 31 days are a month, of 90 to 92 days a quarter, and of 365 or 366 days a year.
    """
    if form == "integer":
        count = int(_most_frequent(np.diff(times)))
        return TimeSteps(count=count, unit="one", form=form, phase_s=float(times[0] % count))
    civil = to_civil(times, zone) if zone is not None else times
    length = _most_frequent(np.diff(civil))
    days = length / DAY_S
    for unit, (least, most) in {"month": (28, 31), "quarter": (89, 92), "year": (365, 366)}.items():
        if least <= days <= most and _counted_in_months(civil, unit):
            return TimeSteps(count=1, unit=unit, form=form, zone=zone)
    if length != round(length):
        raise DataError(
            f"the times are {length:g} seconds apart, which is no step",
            hint='Give the step: forecast => \'{"step": "1 minute", "duplicates": "mean", ...}\'.',
        )
    unit = next(unit for unit in _DETECTED if length % _SECONDS[unit] == 0)
    used = civil if length >= DAY_S else times
    count = round(length / _SECONDS[unit])
    return TimeSteps(count=count, unit=unit, form=form, phase_s=float(used[0] % length), zone=zone)


def _most_frequent(distances: npt.NDArray[np.float64]) -> float:
    values, counts = np.unique(np.round(distances, 6), return_counts=True)
    return float(values[np.argmax(counts)])


def _counted_in_months(civil: Seconds, unit: str) -> bool:
    """Return whether no two of the times are in one month, quarter or year, and most are in adjacent ones."""
    steps = np.diff(_months(civil) // _MONTHS[unit])
    return bool((steps > 0).all() and np.median(steps) == 1)


def _months(civil: Seconds) -> Steps:
    days = np.floor(civil / DAY_S).astype(np.int64).astype("datetime64[D]")
    return days.astype("datetime64[M]").astype(np.int64)


def _later_months(civil: Seconds, months: Steps) -> Seconds:
    """Return times this many months later, on the same day; the last day of a month stays the last day."""
    days = np.floor(civil / DAY_S).astype(np.int64).astype("datetime64[D]")
    first = days.astype("datetime64[M]")
    within = (days - first.astype("datetime64[D]")).astype(np.int64)
    is_last = (days + 1).astype("datetime64[M]") > first
    target = first + months
    longest = ((target + 1).astype("datetime64[D]") - target.astype("datetime64[D]")).astype(np.int64) - 1
    place = np.where(is_last, longest, np.minimum(within, longest))
    midnight = (target.astype("datetime64[D]") + place).astype(np.int64) * DAY_S
    later: Seconds = midnight + civil % DAY_S
    return later


@functools.cache
def zone_info(name: str) -> ZoneInfo:
    """Return the time zone. Raises RequestError for an unknown one."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise RequestError(
            f'forecast: "time_zone" {name!r} is not known to the worker', hint="Give a name such as Europe/Berlin."
        ) from None


def to_civil(times: Seconds, zone: str | None) -> Seconds:
    """Return the local clock's time of each moment, as if it were in UTC."""
    if zone is None:
        return times
    own = zone_info(zone)
    distinct, places = np.unique(times, return_inverse=True)
    moments = [datetime.datetime.fromtimestamp(time, own) for time in distinct.tolist()]
    shifts = np.array([_offset_s(moment) for moment in moments])
    civil: Seconds = times + shifts[places]
    return civil


def from_civil(civil: Seconds, zone: str | None) -> Seconds:
    """Return the moment at which the local clock shows each time; the earlier one if there are two."""
    if zone is None:
        return civil
    own = zone_info(zone)
    moments = [(_EPOCH + datetime.timedelta(seconds=time)).replace(tzinfo=own) for time in civil.tolist()]
    return np.array([moment.timestamp() for moment in moments])


def _offset_s(moment: datetime.datetime) -> float:
    offset = moment.utcoffset()
    return 0.0 if offset is None else offset.total_seconds()


def form_of(type_name: str, kind: str) -> str:
    """Return the form of a time column of this SQL type and kind."""
    if kind == "integer":
        return "integer"
    if kind == "date":
        return "date"
    return "timestamptz" if "with time zone" in type_name or type_name.startswith("timestamptz") else "timestamp"


def calendar_cycles(steps: TimeSteps, covered_s: float) -> tuple[str, ...]:
    """Return the cycles of the calendar that a step is a part of, and that times of this extent cover twice."""
    if steps.form == "integer":
        return ()
    lengths = {"day": DAY_S, "week": 7 * DAY_S, "year": 365.2425 * DAY_S}
    return tuple(name for name, own in lengths.items() if steps.length_s < own / 2 and covered_s >= 2 * own)


def calendar_values(steps: TimeSteps, numbers: Steps, cycles: tuple[str, ...]) -> npt.NDArray[Any]:
    """Return sine and cosine of the place of each step in each cycle: (steps, 2 * cycles)."""
    starts = steps.starts(numbers)
    if steps.zone is not None and not steps.local:
        starts = to_civil(starts, steps.zone)
    places = {
        "day": starts % DAY_S / DAY_S,
        "week": (starts - _MONDAY_S) % (7 * DAY_S) / (7 * DAY_S),
        "year": starts % (365.2425 * DAY_S) / (365.2425 * DAY_S),
    }
    angles = [2 * np.pi * places[name] for name in cycles]
    waves = [wave(angle) for angle in angles for wave in (np.sin, np.cos)]
    return np.stack(waves, axis=1) if waves else np.empty((len(numbers), 0))
