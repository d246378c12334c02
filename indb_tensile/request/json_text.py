"""Writes JSON for PostgreSQL."""

import json


def json_text(value: object) -> str:
    r"""Return the value as JSON whose characters stand for themselves.

    A database in SQL_ASCII takes no jsonb with an escape such as \u00e9, which Python writes otherwise.
    """
    return json.dumps(value, ensure_ascii=False)
