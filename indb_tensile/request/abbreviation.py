"""Shows a value of a request in a message."""

import json
from typing import Any


def shown(value: Any) -> str:
    """Return the value as JSON, abbreviated if it is long."""
    if isinstance(value, str):
        value = value[:80]
    text = json.dumps(value, ensure_ascii=False).encode(errors="replace").decode()
    return text if len(text) <= 80 else text[:77] + "..."
