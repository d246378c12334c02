"""No value after an origin enters its window, windows equal a plain computation, and wrong rows are named."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indb_tensile.errors import DataError, RequestError
from indb_tensile.learning.encoding.forecast_encoding import ForecastValues, forecast_metrics, interval_width
from indb_tensile.learning.forecasting.forecast_recipe import FUTURE, HISTORY
from indb_tensile.learning.forecasting.forecast_table import window_table
from indb_tensile.learning.forecasting.naive_forecasts import naive_forecast, smooth
from indb_tensile.learning.forecasting.seasons import detect_season
from indb_tensile.learning.forecasting.series_grid import SeriesColumns, filled_known, make_grid
from indb_tensile.learning.forecasting.time_steps import TimeSteps, detected_steps, requested_steps
from indb_tensile.learning.forecasting.windows import naive_errors
from indb_tensile.learning.storage.columns import ColumnKind
from indb_tensile.learning.training.preparation import assemble_windows
from tests.learning.series_tables import DAY_S, column, daily, forecast_spec, series_table

VALUES = st.lists(
    st.one_of(st.none(), st.integers(-1_000_000, 1_000_000).map(lambda own: own / 64)), min_size=30, max_size=60
)


def named(**options: Any) -> Any:
    return forecast_spec(series=["name"], window=6, season=1, **options)


@settings(max_examples=25, deadline=None)
@given(first=VALUES, second=VALUES, changed=st.floats(-1e9, 1e9))
def test_no_value_at_or_after_an_origin_enters_its_window(
    first: list[float | None], second: list[float | None], changed: float
) -> None:
    first[0] = second[0] = first[-1] = second[-1] = 1.0
    table = daily({"a": first, "b": second})
    windows = window_table(table, named())
    grid, recipe = windows.rows.grid, windows.rows.recipe
    series, known = windows.rows.origins[0].tolist()
    origins = np.array([[series, known]])
    before = recipe.windows(grid, filled_known(grid), origins)
    start = int(grid.offsets[series])
    later = grid.values.copy()
    later[start + known :] = changed
    after = recipe.windows(replace(grid, values=later), filled_known(grid), origins)
    for part in ("history", "known", "level", "spread"):
        assert getattr(before, part).tobytes() == getattr(after, part).tobytes()


@settings(max_examples=25, deadline=None)
@given(values=VALUES)
def test_windows_equal_a_plain_computation(values: list[float | None]) -> None:
    values[0] = values[-1] = 2.0
    windows = window_table(daily({"a": values}), named())
    table = windows.table.columns
    parts = table["part"].values.tolist()
    filled, last = [], 0.0
    for value in values:
        last = last if value is None else value
        filled.append(last)
    row = 0
    for part in ("train", "valid", "test"):
        rows = windows.rows
        begin, end = {
            "train": (4, rows.valid_from),
            "valid": (rows.valid_from, rows.test_from),
            "test": (rows.test_from, len(values)),
        }[part]
        for origin in range(begin, end - 3 + 1):
            own = [filled[max(place, 0)] for place in range(origin - 6, origin)]
            spread = max(float(np.std(own)), 1e-3 * abs(own[-1])) or 1.0
            assert table[HISTORY].values[row] == pytest.approx(
                [(x - own[-1]) / spread for x in own], rel=1e-5, abs=1e-6
            )
            packed = table[FUTURE].values[row]
            outcome = values[origin : origin + 3]
            expected = [0.0 if x is None else (x - own[-1]) / spread for x in outcome]
            assert packed[:3] == pytest.approx(expected, rel=1e-5, abs=1e-5)
            assert packed[3:6].tolist() == [x is not None for x in outcome]
            assert packed[6:8] == pytest.approx([own[-1], spread], rel=1e-6)
            assert parts[row] == part
            row += 1
    assert row == windows.table.rows


def test_training_windows_end_before_the_first_step_that_validates() -> None:
    windows = window_table(daily({"a": list(np.sin(np.arange(100.0)))}), named())
    assert (windows.rows.valid_from, windows.rows.test_from) == (70, 85)
    assert windows.rows.windows == (64, 13, 13)
    assert windows.rows.origins[:, 1].tolist() == list(range(85, 98))


def test_a_forecast_is_assembled_as_any_training() -> None:
    for kind in ("auto", "dlinear", "tcn", "window_lstm", "mlp", "tabm"):
        table = daily({name: list(np.sin(np.arange(80.0)) + place) for place, name in enumerate("ab")})
        prepared = assemble_windows(
            window_table(table, forecast_spec(series=["name"], static=["name"], architecture=kind))
        )
        outputs = prepared.module.eval()(prepared.test.x).detach()
        assert outputs.shape == (prepared.test.rows, 9)
        assert np.isfinite(float(prepared.loss(outputs, prepared.test.y)))


def test_mase_divides_by_seasonal_naive_errors_of_training_steps_alone() -> None:
    values = [float(place % 4) + (100 if place >= 20 else 0) + place for place in range(40)]
    columns = SeriesColumns(time="day", targets=("sold",), kinds={})
    grid = make_grid(columns, daily({"a": values}).columns, requested_steps("day", "date", None, truncates=False))
    assert naive_errors(grid, 20, 4, 1).tolist() == [[4.0]]


@pytest.mark.parametrize(
    ("times", "form", "expected"),
    [
        ([0, 86_400, 172_800, 345_600], "date", (1, "day")),
        ([0, 900, 1800, 2700], "timestamp", (15, "minute")),
        ([0, 604_800, 1_209_600], "date", (1, "week")),
        ([5, 15, 25], "integer", (10, "one")),
        ([31 * DAY_S * 0, 31 * DAY_S, 59 * DAY_S, 90 * DAY_S], "date", (1, "month")),
        ([0, 365 * DAY_S, 730 * DAY_S, 1096 * DAY_S], "date", (1, "year")),
    ],
)
def test_the_step_is_detected(times: list[float], form: str, expected: tuple[int, str]) -> None:
    steps = detected_steps(np.array(times, np.float64), form, None)
    assert (steps.count, steps.unit) == expected


def test_months_end_on_their_last_day_and_days_follow_the_zone() -> None:
    months = TimeSteps(count=1, unit="month", form="date")
    last_of_january = np.datetime64("2026-01-31").astype("datetime64[s]").astype(np.int64).astype(np.float64)
    assert months.texts(months.times(np.full(3, last_of_january), np.arange(1, 4))) == [
        "2026-02-28",
        "2026-03-31",
        "2026-04-30",
    ]
    # The clock goes forward in Berlin on 29 March 2026, so that day has 23 hours.
    days = TimeSteps(count=1, unit="day", form="timestamptz", zone="Europe/Berlin", phase_s=0.0)
    midnight = np.datetime64("2026-03-27T23:00").astype("datetime64[s]").astype(np.int64).astype(np.float64)
    later = days.times(np.full(2, midnight), np.array([1, 2]))
    assert days.texts(later) == ["2026-03-28 23:00:00+00", "2026-03-29 22:00:00+00"]
    assert np.diff(days.numbers(np.append(midnight, later))).tolist() == [1, 1]


def test_a_season_is_detected_in_changes_and_in_waves() -> None:
    days = TimeSteps(count=1, unit="day", form="date")
    weekly = np.tile([1.0, 2, 3, 4, 9, 9, 0], 20) + np.arange(140.0)
    assert detect_season([weekly], days) == 7
    assert detect_season([np.random.default_rng(0).normal(size=200)], days) == 1
    assert (
        detect_season([np.sin(2 * np.pi * np.arange(200.0) / 11)], TimeSteps(count=1, unit="year", form="date")) == 11
    )


def test_smoothing_follows_a_trend_and_a_season() -> None:
    values = np.arange(80.0) + np.tile([5.0, 0, -5, 0], 20)
    forecasts = smooth(values[:76], 72, 4, 4)
    assert forecasts.shape == (5, 4)
    assert forecasts[0] == pytest.approx(values[72:76], abs=1.5)
    grid = make_grid(
        SeriesColumns(time="day", targets=("sold",), kinds={}),
        daily({"a": values.tolist()}).columns,
        requested_steps("day", "date", None, truncates=False),
    )
    assert naive_forecast(grid, np.array([[0, 10]]), 3, 1).ravel().tolist() == [values[9]] * 3
    assert naive_forecast(grid, np.array([[0, 10]]), 3, 1, 4).ravel().tolist() == values[6:9].tolist()


def test_intervals_are_widened_until_they_hold_their_share() -> None:
    values = ForecastValues(horizon=1, targets=1, interval=0.5)
    outputs = np.tile([-1.0, 0.0, 1.0], (40, 1))
    packed = np.zeros((40, 5))
    packed[:, 0], packed[:, 1], packed[:, 3] = np.linspace(-8, 8, 40), 1.0, 1.0
    width = interval_width(values, outputs, packed)
    assert 3.5 < width < 4.5
    wide = replace(values, width=width)
    assert (
        forecast_metrics(wide, outputs, packed)["coverage"]
        >= 0.5
        > forecast_metrics(values, outputs, packed)["coverage"]
    )
    assert wide.ordered(outputs)[0].ravel().tolist() == [-width, 0.0, width]
    packed[:, 0] = 0.1
    assert interval_width(values, outputs, packed) == 1.0


LONG = [float(place % 5) for place in range(60)]


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        (daily({"a": [1.0, 2, 3]}), {}, "the series have 3 steps, too few for a horizon of 3"),
        (daily({"a": [None] * 60}), {}, 'target "sold" has no value to learn or forecast from in 60 rows'),
        (
            daily({"a": [*LONG[:9], None, *LONG]}),
            {"gaps": "error"},
            'series (name "a") has no value of "sold" at 1970-01-10',
        ),
        (
            series_table(
                {
                    "name": column(ColumnKind.TEXT, ["a"] * 61),
                    "day": column(ColumnKind.DATE, [*(place * DAY_S for place in range(60)), 3 * DAY_S]),
                    "sold": column(ColumnKind.FLOAT, [*LONG, 1.0]),
                }
            ),
            {},
            'series (name "a") has several rows at 1970-01-04',
        ),
        (
            series_table(
                {
                    "name": column(ColumnKind.TEXT, ["a"] * 60),
                    "day": column(ColumnKind.TIME, [place * DAY_S + (place == 7) * 60 for place in range(60)]),
                    "sold": column(ColumnKind.FLOAT, LONG),
                }
            ),
            {},
            "time 1970-01-08 00:01:00+00 is not on the steps of 1 day",
        ),
        (
            series_table(
                {
                    "name": column(ColumnKind.TEXT, ["a", None] * 30),
                    "day": column(ColumnKind.DATE, [place * DAY_S for place in range(60)]),
                    "sold": column(ColumnKind.FLOAT, LONG),
                }
            ),
            {},
            'column "name" is NULL or infinite in 30 of 60 rows',
        ),
    ],
)
def test_rows_that_make_no_series_are_refused_by_series_and_time(
    table: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises((DataError, RequestError), match=re.escape(message)) as caught:
        window_table(table, named(**options))
    assert caught.value.hint


def test_a_time_that_is_too_far_away_to_count_its_steps_is_refused() -> None:
    columns = SeriesColumns(time="n", targets=("sold",))
    table = series_table(
        {
            "n": column(ColumnKind.INTEGER, [0.0, 1.0, 9.2e18, -9e18]),
            "sold": column(ColumnKind.FLOAT, [1.0, 2.0, 3.0, 4.0]),
        }
    )
    steps = detected_steps(np.array([0.0, 1.0, 2.0]), "integer", None)
    with pytest.raises(DataError, match="too far away to count its steps") as caught:
        make_grid(columns, table.columns, steps)
    assert caught.value.hint


def test_several_rows_of_a_step_are_combined_and_gaps_are_filled_from_the_past() -> None:
    columns = SeriesColumns(time="day", targets=("sold",), kinds={}, duplicates="sum")
    table = series_table(
        {
            "day": column(ColumnKind.TIME, [0.0, 3600.0, 3 * DAY_S, 4 * DAY_S]),
            "sold": column(ColumnKind.FLOAT, [1.0, 2.0, None, 5.0]),
        }
    )
    grid = make_grid(columns, table.columns, requested_steps("day", "timestamp", None, truncates=True))
    assert grid.values.ravel().tolist() == [3.0, 3.0, 3.0, 3.0, 5.0]
    assert grid.present.ravel().tolist() == [True, False, False, False, True]
    assert grid.filled == 3
