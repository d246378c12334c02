"""The options of a forecast: the columns of a series, its steps in time, and how far ahead to look.

The target has the values to forecast. `series` are the columns that tell series apart; without them the table is one
series. `known` columns have values that are known in advance, `observed` ones only past values, and `static` ones a
single value for each series.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..errors import RequestError
from .abbreviation import shown
from .parameter_rules import Json, Rule, check_parameters

_COLUMNS: Rule = {"type": "texts", "length": (1, 100), "default": None}
FORECAST: dict[str, Rule] = {
    "horizon": {"type": "integer", "minimum": 1, "maximum": 1000},
    "time": {"type": "text", "default": None},
    "series": _COLUMNS | {"length": (1, 8)},
    "step": {"type": "text", "default": None},
    "window": {"type": "integer", "minimum": 2, "maximum": 10000, "default": None},
    "season": {"type": "integer", "minimum": 1, "maximum": 10000, "default": None},
    "known": _COLUMNS,
    "observed": _COLUMNS,
    "static": _COLUMNS,
    "calendar": {"type": "boolean", "default": True},
    "gaps": {"type": "choice", "values": ["previous", "zero", "error"], "default": "previous"},
    "duplicates": {"type": "choice", "values": ["error", "mean", "sum"], "default": "error"},
    "interval": {"type": "number", "above": 0, "below": 1, "default": 0.9},
    "time_zone": {"type": "text", "default": None},
}
ROLES = ("series", "known", "observed", "static")  # the options that name columns beside the time
# The kinds of columns that each option may name.
ROLE_KINDS: dict[str, tuple[str, ...]] = {
    "time": ("date", "time", "integer"),
    "series": ("integer", "text", "boolean", "date"),
    "known": ("integer", "float", "boolean"),
    "observed": ("integer", "float", "boolean"),
    "static": ("integer", "float", "boolean", "text"),
}
_ROLE_HINTS = {
    "time": "Name a date, a timestamp, or an integer that counts the steps.",
    "series": "Name integer, text, boolean or date columns, whose values tell the series apart.",
    "known": 'Name numbers or booleans. A text such as a holiday becomes one with transform: {"is_holiday": '
    '"holiday is not null"}.',
    "observed": "Name numbers or booleans.",
    "static": "Name numbers, booleans or texts.",
}
UNITS = ("second", "minute", "hour", "day", "week", "month", "quarter", "year")
_STEP = re.compile(rf"(?:(\d{{1,6}})\s+)?({'|'.join(UNITS)})s?")
_COUNT = re.compile(r"[1-9]\d{0,17}")
MOST_TARGETS_OF_FORECAST = 20
MOST_OUTPUTS = 3000  # largest product of steps and targets: each has three outputs of the network
# The arguments of a training that have no meaning for a forecast, with the way out.
_REFUSED = {
    "features": 'Name columns in forecast => \'{"known": [...], "observed": [...], "static": [...]}\'.',
    "exclude": "Leave it out: only the columns that forecast names are used.",
    "preprocess": "Leave it out: each window is scaled by its own values.",
    "init_from": "Leave it out, or repeat the last training on new rows with tensile_retrain.",
}
_OF_SPLIT = ("test_size", "valid_size")


def check_forecast(forecast: Any) -> Json:
    """Return the options without nulls.

    Raises RequestError for an invalid option, for a step that cannot be read, and for a column with two roles. A
    column that tells series apart may be static too: the network then knows which series it sees.
    """
    options = check_parameters("forecast", forecast, FORECAST)
    if "step" in options:
        parse_step(options["step"])
    roles: dict[str, str] = {}
    for role, name in named_columns(options):
        if name in roles and {roles[name], role} != {"series", "static"}:
            message = f'forecast: column "{name}" is both {roles[name]} and {role}'
            if roles[name] == role:
                message = f'forecast: "{role}" names column "{name}" twice'
            raise RequestError(message, hint="Name it once.")
        roles[name] = role
    if options.get("season", 1) > options.get("window", 10000):
        raise RequestError(
            f'forecast: "season" {options["season"]} is longer than "window" {options["window"]}',
            hint='Make the "window" two seasons long or longer, or leave it out.',
        )
    return options


def parse_step(text: str) -> tuple[int, str]:
    """Return the count and the unit of a step, such as (15, "minute"); the unit of plain numbers is "one"."""
    if _COUNT.fullmatch(text.strip()):
        return int(text), "one"
    match = _STEP.fullmatch(text.strip().lower())
    if match is None or match[1] == "0":
        raise RequestError(
            f'forecast: "step" is {shown(text)}',
            hint=f"Give a number and a unit of {', '.join(UNITS)}, as '15 minutes'; for an integer time a number.",
        )
    return int(match[1] or 1), match[2]


def named_columns(options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each column that the options name, after its role."""
    if options.get("time") is not None:
        yield "time", options["time"]
    for role in ROLES:
        for name in options.get(role) or ():
            yield role, name


def check_role(role: str, name: str, kind: str, description: str) -> None:
    """Raise RequestError for a column of a kind that the role cannot have. `description` names its type."""
    if kind not in ROLE_KINDS[role]:
        message = f'forecast: column "{name}" {description}, which "{role}" cannot be'
        raise RequestError(message, hint=_ROLE_HINTS[role])


def check_roles(options: Json, targets: Sequence[str], kinds: Mapping[str, str]) -> None:
    """Raise RequestError for a target with another role, and for columns of wrong kinds. `kinds` has those known."""
    for role, name in named_columns(options):
        if name in targets:
            raise RequestError(
                f'forecast: column "{name}" is the target, and "{role}" names it', hint="Leave it out."
            )
        if name in kinds:
            check_role(role, name, kinds[name], f"is of kind {kinds[name]}")


def check_steps(options: Json, time_kind: str) -> None:
    """Raise RequestError for a step or a zone that does not suit the time column."""
    if "step" in options:
        unit = parse_step(options["step"])[1]
        if (unit == "one") != (time_kind == "integer"):
            fits = "a number such as '1'" if time_kind == "integer" else "a unit such as 'day' or '15 minutes'"
            raise RequestError(
                f'forecast: "step" is "{options["step"]}", and the time is of kind {time_kind}', hint=f"Give {fits}."
            )
        if time_kind == "date" and unit in ("second", "minute", "hour"):
            raise RequestError(
                f'forecast: "step" is "{options["step"]}", and the time is a date',
                hint="Give a day or more, or name a timestamp as the time.",
            )


def check_sizes(options: Json, targets: int) -> None:
    """Raise RequestError for too many targets, or for too many outputs."""
    if targets > MOST_TARGETS_OF_FORECAST:
        raise RequestError(
            f"forecast has {targets} targets, {MOST_TARGETS_OF_FORECAST} are the most",
            hint="Forecast them as series of one target: a row for each, with its name in a column of series.",
        )
    if options["horizon"] * targets > MOST_OUTPUTS:
        raise RequestError(
            f'forecast: "horizon" {options["horizon"]} times {targets} targets is more than {MOST_OUTPUTS}',
            hint="Shorten the horizon, or forecast in longer steps.",
        )


def check_arguments(request: Mapping[str, Any], split: Json, hyperparams: Json) -> None:
    """Raise RequestError for an argument of a training that a forecast does not take."""
    for name, hint in _REFUSED.items():
        if request.get(name) not in (None, [], {}):
            raise RequestError(f"{name} cannot be combined with task => 'forecast'", hint=hint)
    for name in split:
        if name not in _OF_SPLIT:
            raise RequestError(
                f"split: \"{name}\" cannot be combined with task => 'forecast'",
                detail="A forecast is always tested on the latest steps, and validated on those before them.",
                hint='Give the shares of the steps: split => \'{"test_size": 0.2, "valid_size": 0.15}\'.',
            )
    for name in ("weight", "class_weight"):
        if name in hyperparams:
            raise RequestError(
                f"hyperparams: \"{name}\" cannot be combined with task => 'forecast'", hint="Leave it out."
            )


def check_use(task: str, forecast: Any, *, own: bool = True) -> None:
    """Raise RequestError for a forecast without options, and for options of another task's."""
    if task == "forecast" and forecast is None:
        raise RequestError(
            "task forecast needs the argument forecast",
            hint='Say how many steps ahead: forecast => \'{"time": "day", "series": ["store"], "horizon": 14}\'.',
        )
    if task != "forecast" and forecast is not None and own:
        raise RequestError(f"forecast means nothing to task {task}", hint="Leave it out, or give task => 'forecast'.")
