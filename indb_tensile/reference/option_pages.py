"""Generates the reference pages of options, networks and settings from the tables that check them and `meanings.py`.

The rules in these tables are read as data. A key of a rule that this module does not know is printed with its value,
so that the pages are complete.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from indb_tensile import config
from indb_tensile.catalog import install
from indb_tensile.config import GIB, MIB, SettingRule
from indb_tensile.errors import InvariantError
from indb_tensile.reference import meanings, setting_meanings
from indb_tensile.request.early_stop_rules import EARLY_STOP
from indb_tensile.request.forecast_rules import FORECAST
from indb_tensile.request.hyperparam_rules import HYPERPARAMS
from indb_tensile.request.job_rules import DEPLOY
from indb_tensile.request.network_rules import ARCHITECTURES, LAYERS, MOST_LAYERS, MOST_PARAMETERS
from indb_tensile.request.preprocess_rules import PREPROCESS
from indb_tensile.request.split_rules import SPLIT
from indb_tensile.request.task_rules import METRICS

Rules = Mapping[str, Mapping[str, Any]]

_FOLDER = "indb_tensile/reference"
COMMAND = "tensile reference --write docs/reference"
_SETTINGS_FUNCTION = re.compile(r"create function tensile\.known_settings\(\).*?\n\s*values\n(.*?)\n\$\$;", re.DOTALL)
_SETTING = re.compile(r"\('((?:[^']|'')*)', '((?:[^']|'')*)', (null|'(?:[^']|'')*')(?:::jsonb)?, '((?:[^']|'')*)'\)")


def page() -> str:
    """Return all options, networks and settings as one page. Raises InvariantError as `pages` does."""
    bodies = [line for lines in _bodies().values() for line in lines]
    return "\n".join(["# Options and settings", *bodies])


def pages() -> dict[str, str]:
    """Return the text of each page by the name of its file.

    Raises InvariantError if a table and the meanings do not have the same names.
    """
    titles = {"options": "Options of a training", "networks": "Networks and layers", "settings": "Settings"}
    return {f"{name}.md": f"{heading(titles[name])}\n" + "\n".join(lines) + "\n" for name, lines in _bodies().items()}


def heading(title: str) -> str:
    """Return the first lines of a generated page."""
    return f"# {title}\n\nMade by `{COMMAND}`. Do not edit this page: edit its source."


def _bodies() -> dict[str, list[str]]:
    return {
        "options": [*_training(), *_rows_and_judgement()],
        "networks": [*_architectures()],
        "settings": [*_controller(), *_catalog()],
    }


def _training() -> Iterator[str]:
    yield from _section(
        "Hyper-parameters",
        "`hyperparams => '{\"epochs\": 20}'` in `tensile_train`, `tensile_explain` and `tensile_create_model`. Null "
        "has the same effect as omitting a name.",
    )
    yield from _parameters("hyperparams", HYPERPARAMS, meanings.HYPERPARAMS)


def _architectures() -> Iterator[str]:
    yield from _section(
        "Architectures",
        "`architecture => 'mlp'`, or an object with a `type` and parameters: "
        '`\'{"type": "mlp", "hidden": [512, 512]}\'`. A network has at most '
        f"{MOST_PARAMETERS:,} parameters.",
    )
    yield from _types("architectures", ARCHITECTURES, meanings.ARCHITECTURES, meanings.ARCHITECTURE)

    yield from _section(
        "Layers",
        'The elements of `{"type": "layers", "layers": [{"type": "linear", "out": 64}, {"type": "relu"}, '
        '{"type": "linear"}]}`. '
        f"All levels together have at most {MOST_LAYERS} layers.",
    )
    yield from _types("layers", LAYERS, meanings.LAYERS, meanings.LAYER)


def _rows_and_judgement() -> Iterator[str]:
    yield from _section(
        "Preprocessing",
        '`preprocess => \'{"missing": {"age": "median"}}\'`. A value applies to all columns, an object '
        "with names of columns only to these columns.",
    )
    yield from _parameters("preprocess", PREPROCESS, meanings.PREPROCESS)
    yield from _section("Split", "`split => '{\"test_size\": 0.2}'`.")
    yield from _parameters("split", SPLIT, meanings.SPLIT)
    yield from _section("Forecast", '`task => \'forecast\', forecast => \'{"time": "day", "horizon": 14}\'`.')
    yield from _parameters("forecast", FORECAST, meanings.FORECAST)
    yield from _section("Early stopping", "`early_stop => '{\"patience\": 5}'`.")
    yield from _parameters("early_stop", EARLY_STOP, meanings.EARLY_STOP)
    yield from _section("Metrics", "`metric => 'roc_auc'`: the metric that decides whether a version is better.")
    _check("metrics", {name for names in METRICS.values() for name in names}, meanings.METRICS)
    rows = [(f"`{name}`", task, meanings.METRICS[name]) for task, names in METRICS.items() for name in names]
    yield from _table(("metric", "task", "meaning"), rows)
    yield from _section("Deployment", "`deploy => 'if_better'`.")
    _check("deploy", DEPLOY, meanings.DEPLOY)
    yield from _table(("value", "meaning"), [(f"`{name}`", meanings.DEPLOY[name]) for name in DEPLOY])


def _controller() -> Iterator[str]:
    yield from _section(
        "Settings of a controller",
        "The environment variable `TENSILE_` + the name in capitals (`lease_s` is `TENSILE_LEASE_S`), else the TOML "
        "file that `TENSILE_CONFIG` names, else the default. `tensile up` stores its options in a file of its own, "
        "`settings.toml` in the state directory. Sizes are numbers of bytes, or numbers with the unit kB, MB, GB or "
        "TB, each 1024 times the previous one. Durations are numbers of seconds, or numbers with the unit us, ms, s, "
        "min, h or d: `15s`, `10min`. A key of the file that is no setting is refused; a variable that is no setting "
        "has no effect, and the controller's log, `tensile up` and `tensile doctor` name it.",
    )
    rules = config.setting_rules()
    _check("settings", [rule.name for rule in rules], setting_meanings.SETTINGS)
    rows = [(f"`{r.name}`", _setting_takes(r), _setting_default(r), setting_meanings.SETTINGS[r.name]) for r in rules]
    yield from _table(("setting", "takes", "default", "meaning"), rows)


def _catalog() -> Iterator[str]:
    yield from _section(
        "Settings of a database",
        "A member of `tensile_admin` changes a setting: `select tensile_set_setting('retain_jobs', '\"1 year\"')`. "
        "The view `tensile.setting_list` shows all settings with their values.",
    )
    rows = [
        (f"`{name}`", kind, "none" if default is None else f"`{json.dumps(default)}`", f"{meaning.capitalize()}.")
        for name, kind, default, meaning in catalog_settings()
    ]
    yield from _table(("setting", "takes", "default", "meaning"), rows)


def catalog_settings() -> list[tuple[str, str, Any, str]]:
    """Read name, kind, default and meaning of each setting from the source of `tensile.known_settings()`."""
    source = _SETTINGS_FUNCTION.search(install.script(extension=False))
    if source is None:
        raise InvariantError("the source of tensile.known_settings() is not as the reference page expects")
    rows = []
    for name, kind, default, meaning in _SETTING.findall(source[1]):
        value = None if default == "null" else json.loads(_unquoted(default[1:-1]))
        rows.append((name, kind, value, _unquoted(meaning)))
    return rows


def takes(rule: Mapping[str, Any]) -> str:
    """Describe in words the values that a rule allows. An unknown key of the rule is printed with its value."""
    kind, rest = str(rule.get("type", "")), dict(rule)
    rest.pop("type", None)
    rest.pop("default", None)
    rest.pop("source", None)  # words of an error
    values, kinds = rest.pop("values", None), rest.pop("kinds", None)
    text = _NOUNS.get(kind, kind)
    if kind == "choice":
        text = ""
    text += "".join(f" {word} {_number(rest.pop(key))}" for key, word in _BOUNDS if key in rest)
    if "length" in rest:
        few, many = rest.pop("length")
        text += f", {few} of them" if few == many else f", {few} to {many} of them"
    if "rules" in rest:
        text += " " + ", ".join(f"`{name}`" for name in rest.pop("rules"))
    if values is not None:
        text += (" or " if text else "") + ", ".join(f"`{value}`" for value in values)
    if kinds is not None:
        text += f"; for columns of kind {', '.join(kinds)}"
    return text + "".join(f"; {key}: {_shown(value)}" for key, value in rest.items())


_NOUNS = {
    "integer": "integer",
    "number": "number",
    "boolean": "`true` or `false`",
    "text": "text",
    "integers": "list of integers",
    "numbers": "list of numbers",
    "texts": "list of texts",
    "layers": "list of layers",
    "object": "object of",
    "rule": "number",
    "weights": "numbers by class,",
    "encoding": "list of texts",
    "paths": "paths and their kinds",
}
_BOUNDS = (("minimum", "from"), ("above", "above"), ("maximum", "to"), ("below", "below"))


def _parameters(subject: str, rules: Rules, words: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of a table of parameters."""
    _check(subject, rules, words)
    rows = [(f"`{name}`", takes(rule), _default(rule), words[name]) for name, rule in rules.items()]
    yield from _table(("name", "takes", "default", "meaning"), rows)


def _types(
    subject: str, types: Mapping[str, Rules], words: Mapping[str, str], parameters: Mapping[str, str]
) -> Iterator[str]:
    """Yield the lines of a table of types, each with its parameters below it.

    A meaning under the key `linear.out` takes precedence over one under `out`.
    """
    _check(subject, types, words)
    _check_parameters(f"parameters of {subject}", types, parameters)
    rows = []
    for name, rules in types.items():
        rows.append((f"**`{name}`**", "", "", words[name]))
        for key, rule in rules.items():
            meaning = parameters.get(f"{name}.{key}") or parameters[key]
            rows.append((f"`{key}`", takes(rule), _default(rule), meaning))
    yield from _table(("type, parameters", "takes", "default", "meaning"), rows)


def _section(title: str, text: str) -> Iterator[str]:
    yield from ("", f"## {title}", "", text, "")


def _table(headings: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(headings)} |"
    yield f"|{'---|' * len(headings)}"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"


def _check(subject: str, names: Iterable[str], words: Mapping[str, str]) -> None:
    file = "setting_meanings.py" if words is setting_meanings.SETTINGS else "meanings.py"
    missing, surplus = sorted(set(names) - set(words)), sorted(set(words) - set(names))
    if missing:
        raise InvariantError(
            f"{subject}: {', '.join(missing)} have no meaning: write a sentence for each in "
            f"{_FOLDER}/{file}, then run {COMMAND}"
        )
    if surplus:
        raise InvariantError(f"{subject}: {', '.join(surplus)} are in no table: remove them from {_FOLDER}/{file}")


def _check_parameters(subject: str, types: Mapping[str, Rules], words: Mapping[str, str]) -> None:
    pairs = {f"{name}.{key}": key for name, rules in types.items() for key in rules}
    own = {pair for pair in words if pair in pairs}
    _check(subject, {*pairs.values(), *own}, words)


def _default(rule: Mapping[str, Any]) -> str:
    return _shown(rule["default"]) if "default" in rule else "must be given"


def _shown(value: object) -> str:
    return f"`{json.dumps(value)}`" if not isinstance(value, str) else f"`{value}`"


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _setting_takes(rule: SettingRule) -> str:
    if rule.choices:
        return ", ".join(f"`{choice}`" for choice in rule.choices)
    text = rule.kind.removeprefix("a ").removeprefix("the ")
    if rule.range is None:
        return text
    low, high = rule.range
    as_text = {"a size": _size, "a duration": _duration}.get(rule.kind, _number)
    return f"{text} from {as_text(low)} to {as_text(high)}"


def _setting_default(rule: SettingRule) -> str:
    if rule.default == "":
        return "empty"
    if rule.kind == "a size" and isinstance(rule.default, int):
        return f"`{_size(rule.default)}`"
    if rule.kind == "a duration" and isinstance(rule.default, float):
        return f"`{_duration(rule.default)}`"
    return _shown(rule.default)


def _duration(seconds: float) -> str:
    """Format a duration in the largest unit that divides it."""
    for unit, unit_s in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds and seconds % unit_s == 0:
            return f"{seconds / unit_s:g}{unit}"
    return f"{seconds:g}s" if seconds >= 1 or not seconds else f"{seconds * 1000:g}ms"


def _size(size_bytes: float) -> str:
    """Format a size in the largest unit that divides it."""
    whole = int(size_bytes)
    for unit, unit_bytes in (("TB", 1024 * GIB), ("GB", GIB), ("MB", MIB), ("kB", 1024)):
        if 0 < whole < 10_000 * unit_bytes and whole % unit_bytes == 0:
            return f"{whole // unit_bytes}{unit}"
    return f"{whole:,}"


def _unquoted(text: str) -> str:
    return text.replace("''", "'")
