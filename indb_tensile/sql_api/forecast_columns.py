"""Checks the argument `forecast` of a training: the columns that it names, and the arguments that exclude it."""

from ..errors import RequestError
from ..request.estimator_rules import is_estimator
from ..request.forecast_rules import (
    check_arguments,
    check_forecast,
    check_role,
    check_sizes,
    check_steps,
    check_use,
    named_columns,
)
from ..request.misplaced_parameters import refuse_misplaced
from ..request.network_rules import FORECAST_ARCHITECTURES
from .inherited_arguments import LastRun
from .refusals import INVALID_TEXT, RefusalError
from .spi import Json, Plpy, fetch
from .training_table import Table
from .training_target import TrainingTarget


def choose_forecast(
    plpy: Plpy, request: Json, last: LastRun, table: Table, target: TrainingTarget
) -> tuple[Json, list[str]]:
    """Return the options of a forecast, and the columns that it reads beside the target.

    Without a time column in the request, the table's only date or timestamp is taken.
    """
    requested = request.get("forecast")
    argument = last.arguments.get("forecast") if requested is None else requested
    check_use("forecast", argument)
    refuse_misplaced("forecast", argument)
    options = check_forecast(argument)
    if "time" not in options:
        options["time"] = _only_time_column(plpy, table, target, options)
    for role, name in named_columns(options):
        if name in target.names:
            raise RequestError(
                f'forecast: column "{name}" is the target, and "{role}" names it', hint="Leave it out."
            )
        column = table.column(name, f"forecast, as {role}")
        check_role(role, name, column.kind, f"of {table} has type {column.type}")
    check_steps(options, table.column(options["time"], "forecast").kind)
    check_sizes(options, len(target.columns))
    if "time_zone" in options:
        _check_zone(plpy, table, options)
    return options, list(dict.fromkeys(name for _, name in named_columns(options)))


def check_combination(request: Json, spec: Json) -> None:
    """Refuse arguments that a forecast does not take, and networks that do not fit the task."""
    kind, task = spec["architecture"]["type"], spec["task"]
    check_use(task, request.get("forecast"))
    if task != "forecast":
        if kind in FORECAST_ARCHITECTURES:
            raise RequestError(
                f"architecture {kind} forecasts series, and the task is {task}",
                hint="Give task => 'forecast', or another architecture.",
            )
        return
    check_arguments(request, spec["split"], spec["hyperparams"])
    if is_estimator(spec["architecture"]):
        raise RequestError(
            f"architecture {kind} cannot forecast",
            detail="A forecast has several steps, and an interval for each.",
            hint=f"Give one of auto, {', '.join(FORECAST_ARCHITECTURES)}, or another network.",
        )


def _only_time_column(plpy: Plpy, table: Table, target: TrainingTarget, options: Json) -> str:
    others = {name for _, name in named_columns(options)} | set(target.names)
    names = [column.name for column in table.columns if column.kind in ("date", "time") and column.name not in others]
    if len(names) != 1:
        raise RequestError(
            "forecast names no time, the column that orders the rows of a series",
            detail=f"{table} has the dates and timestamps {', '.join(names)}." if names else f"{table} has no date.",
            hint=f'Name one: forecast => \'{{"time": "{names[0] if names else "..."}", "horizon": '
            f"{options['horizon']}}}'.",
        )
    plpy.notice(f'the time of the series is "{names[0]}", the only date or timestamp of {table}')
    return names[0]


def _check_zone(plpy: Plpy, table: Table, options: Json) -> None:
    column = table.column(options["time"], "forecast")
    if column.base != "timestamptz":
        raise RequestError(
            f'forecast: "time_zone" is given, and "{column.name}" has type {column.type}',
            hint="Leave it out: only timestamps with time zone are moments, whose day depends on a zone.",
        )
    if not fetch(plpy, ZONE, options["time_zone"]):
        raise RefusalError(
            INVALID_TEXT,
            f'forecast: "time_zone" "{options["time_zone"]}" is not known',
            hint="Give a name of pg_timezone_names, such as Europe/Berlin.",
        )


ZONE = "select 1 as known from pg_catalog.pg_timezone_names as z where z.name = $1::text limit 1"
