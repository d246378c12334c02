"""Writes JSON for PostgreSQL."""

import json


def json_text(value: object) -> str:
    r"""Return the value as JSON, in which characters beyond ASCII are not escaped.

    A database in SQL_ASCII refuses jsonb with an escape such as \u00e9, which json.dumps writes by default.
    """
    return json.dumps(value, ensure_ascii=False)
