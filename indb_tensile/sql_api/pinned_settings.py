"""Runs statements with settings of their own, so that no setting of a session changes a computed feature."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from .spi import Json, Plpy, fetch

# The settings that results of immutable functions still follow: the texts of numbers and of bytes, and the names
# of time zones.
OUTPUTS: Mapping[str, str] = {
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "timezone_abbreviations": "Default",
}
# Those, and the settings that decide how a text of SQL is read and how values are read from JSON.
ALL: Mapping[str, str] = {
    **OUTPUTS,
    "search_path": "pg_catalog, pg_temp",
    "datestyle": "ISO, MDY",
    "intervalstyle": "postgres",
    "timezone": "UTC",
    "standard_conforming_strings": "on",
    "transform_null_equals": "off",
    "quote_all_identifiers": "off",
}


@contextmanager
def pinned(plpy: Plpy, settings: Mapping[str, str]) -> Iterator[None]:
    """Run the block with these settings, then restore the previous ones, also after an error."""
    if not settings:
        yield
        return
    before: Json = json.loads(fetch(plpy, CURRENT, json.dumps(dict.fromkeys(settings)))[0]["settings"])
    changed = {name: value for name, value in settings.items() if before[name] != value}
    if not changed:
        yield
        return
    fetch(plpy, SET, json.dumps(changed))
    try:
        yield
    finally:
        fetch(plpy, SET, json.dumps({name: before[name] for name in changed}))


CURRENT = """
select pg_catalog.json_object_agg(s.name, pg_catalog.current_setting(s.name))::pg_catalog.text as settings
  from pg_catalog.json_object_keys($1::pg_catalog.json) as s (name)"""
# The settings are local, as those of search_path in spi.py.
SET = """
select pg_catalog.set_config(s.key, s.value, true)
  from pg_catalog.json_each_text($1::pg_catalog.json) as s"""
