"""Options that many commands share."""

from collections.abc import Callable
from typing import Any

import click

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

dsn_option: Decorator = click.option("--dsn", metavar="DSN", help="libpq connection string or URI of the database")
json_option: Decorator = click.option("--json", "as_json", is_flag=True, help="print JSON, one object a line")
