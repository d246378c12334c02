"""Loads the settings from environment variables and a TOML file. Only `worker/` and `cli/` import this module.

The value of a setting comes from the environment variable `TENSILE_` + the field's name in capitals (`lease_s` is
`TENSILE_LEASE_S`), else from the TOML file that `TENSILE_CONFIG` names (its keys are the fields' names), else from
the field's default. Values are text or TOML's own types; `units.py` says how sizes and durations are written.

A key of the file that is no setting is refused, because the file is ours alone. A variable that is no setting is
reported (`unknown_variables`) and not refused: an environment is shared. During an upgrade, a service manager starts
an old and a new version with the same variables, and a variable of the new version must not stop the old version.

This is the standard library's code on purpose. `docs/developer/decisions.md` compares the libraries that were tried.
"""

import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from indb_tensile.config import (
    CONFIG_VARIABLE,
    OTHER_PREFIXES,
    OTHER_VARIABLES,
    PREFIX,
    Settings,
    setting_rules,
    variable,
)
from indb_tensile.errors import RequestError
from indb_tensile.request.near_names import near_name
from indb_tensile.units import parse_bytes, parse_seconds

_KINDS = {rule.name: rule.kind for rule in setting_rules()}
_EXAMPLES = {
    "a size": ", such as 512MB or 2GB",
    "a duration": ", such as 15s or 10min (a number without a unit is in seconds)",
}
_TRUTHS = {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}


def load(environ: Mapping[str, str], file_text: str | None = None) -> Settings:
    """Read the settings from this environment and from the file that it names.

    With `file_text`, the file is read as if it contained this text, so that the text can be checked before it is
    written. `state_dir` is returned as an absolute path, so that every process means the same directory. Raises
    RequestError.
    """
    values = _read_values(environ, file_text)
    if "capacity_bytes" in values and "budget_bytes" not in values:
        values["budget_bytes"] = values["capacity_bytes"]
    if (
        "budget_bytes" in values
        and "capacity_bytes" not in values
        and not str(values.get("device")).startswith("emulated")
    ):
        # The device's memory is not known yet. The default capacity is the emulated device's, and must not bound
        # the budget of another device.
        values["capacity_bytes"] = max(Settings().capacity_bytes, values["budget_bytes"])
    state_directory = values.get("state_dir") or Settings().state_dir
    return Settings(**{**values, "state_dir": str(Path(state_directory).absolute())})


def configured_names(environ: Mapping[str, str]) -> frozenset[str]:
    """Return the names of the settings that this environment or its file sets. Raises RequestError as `load` does."""
    return frozenset(_read_values(environ))


def configured_state_directory(environ: Mapping[str, str]) -> tuple[Path, str] | None:
    """Return the configured state directory as an absolute path, and which variable or file sets it.

    Returns None if neither does. Raises RequestError as `load` does.
    """
    name = variable("state_dir")
    if environ.get(name):
        return Path(environ[name]).absolute(), name
    directory = _from_file(environ).get("state_dir")
    return (Path(directory), f"state_dir in {environ[CONFIG_VARIABLE]}") if directory else None


def unknown_variables(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return a sentence for each variable of this environment that has our prefix and that nothing reads."""
    known = {variable(name) for name in _KINDS} | OTHER_VARIABLES
    ours = (name for name in environ if name.startswith(PREFIX) and not name.startswith(OTHER_PREFIXES))
    return tuple(_no_effect(name) for name in sorted(ours) if name not in known)


def _no_effect(name: str) -> str:
    sentence = f"the environment variable {name} has no effect, because there is no such setting"
    nearest = near_name(name.removeprefix(PREFIX), _KINDS)
    return f"{sentence}; did you mean {variable(nearest)}?" if nearest else sentence


def _read_values(environ: Mapping[str, str], file_text: str | None = None) -> dict[str, Any]:
    values = _from_file(environ, file_text)
    for name in _KINDS:
        text = environ.get(variable(name))
        if text is not None:
            values[name] = _convert(name, text, variable(name))
    return values


def _from_file(environ: Mapping[str, str], file_text: str | None = None) -> dict[str, Any]:
    path = environ.get(CONFIG_VARIABLE, "")
    if not path:
        return {}
    try:
        table = tomllib.loads(Path(path).read_text(encoding="utf-8") if file_text is None else file_text)
    except OSError as error:
        raise RequestError(
            f"the settings file {path} cannot be read: {error.strerror}", hint=f"Correct or unset {CONFIG_VARIABLE}."
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"the settings file {path} is not TOML: {error}") from error
    for name in table:
        if name not in _KINDS:
            raise _unknown_key(name, path)
    values = {name: _convert(name, value, f"{name} in {path}") for name, value in table.items()}
    directory = values.get("state_dir")
    if directory and not Path(directory).is_absolute():
        # Commands run in any directory, and all of them must find the same one.
        raise RequestError(f"state_dir in {path} is {directory!r}: an absolute path is needed")
    return values


def _unknown_key(name: str, path: str) -> RequestError:
    nearest = near_name(name, _KINDS)
    return RequestError(
        f"the settings file {path} has no setting of the name {name!r}",
        hint=f"Did you mean {nearest}?" if nearest else f"The settings are {', '.join(_KINDS)}.",
    )


def _convert(name: str, value: object, source: str) -> Any:
    """Convert a value to the type of its field. `value` is text from the environment, or a value from TOML."""
    kind = _KINDS[name]
    try:
        match kind:
            case "a size":
                return value if _is_integer(value) else parse_bytes(_text(value))
            case "a whole number":
                return value if _is_integer(value) else int(_text(value))
            case "true or false":
                return value if isinstance(value, bool) else _TRUTHS[_text(value).lower()]
            case "a duration":
                return parse_seconds(value) if isinstance(value, str) else _finite(value)
            case "a number":
                return _finite(value)
            case _:
                return _text(value)
    except (ValueError, KeyError):
        raise RequestError(f"{source} is {value!r}: {kind} is needed{_EXAMPLES.get(kind, '')}") from None


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(value)  # noqa: TRY004 - the only caller reports all faults alike, with the value
    return value


def _finite(value: object) -> float:
    number = float(value) if isinstance(value, str | float) or _is_integer(value) else math.nan  # type: ignore[arg-type]
    if not math.isfinite(number):
        raise ValueError(value)
    return number
