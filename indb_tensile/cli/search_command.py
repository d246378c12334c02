"""The command `tensile search`, which starts a search for the arguments of a training."""

import sys
from typing import Any

import click

from indb_tensile.cli.database_choice import open_connection
from indb_tensile.cli.job_commands import watch_until_ended
from indb_tensile.cli.output import show_one, warn
from indb_tensile.cli.shared_options import dsn_option, json_option
from indb_tensile.cli.statements import statement
from indb_tensile.cli.training_options import training_arguments, training_options
from indb_tensile.request.search_rules import PRUNERS, SAMPLERS, SEARCH_OPTIONS

_OWN = ("trials", "parallel", "sampler", "prune", "search_seed", "max_duration")


@click.command()
@dsn_option
@json_option
@click.argument("model")
@click.argument("relation")
@training_options
@click.option("--trials", type=int, help="most trials; of a grid, its points by default, and else 16")
@click.option(
    "--parallel",
    type=int,
    default=SEARCH_OPTIONS["parallel"]["default"],
    show_default=True,
    help="trials that train at once",
)
@click.option("--sampler", default=SAMPLERS[0], show_default=True, help=f"what draws values: {', '.join(SAMPLERS)}")
@click.option(
    "--prune",
    default="asha",
    show_default=True,
    help=f"what ends trials early: {', '.join(PRUNERS)}, or a JSON object",
)
@click.option("--search-seed", type=int, default=0, show_default=True, help="seed of the sampler")
@click.option(
    "--max-duration", metavar="INTERVAL", help="time after which no further trial begins, such as '2 hours'"
)
@click.option("--wait/--no-wait", "waits", default=False, help="watch the search until it has ended")
def search(dsn: str | None, as_json: bool, waits: bool, **options: Any) -> None:
    """Search for the best arguments of a training of MODEL on the table RELATION, and print the search's number.

    Arguments vary where their JSON has {"choices": […]} or {"range": [low, high], "log": true} in place of a value.
    """
    own = {name: options.pop(name) for name in _OWN}
    with open_connection(dsn) as connection:
        connection.add_notice_handler(lambda notice: warn(f"notice: {notice.message_primary}"))
        row = connection.execute(statement("search"), training_arguments(options) | own).fetchone()
    assert row is not None
    show_one({"search_id": row[0]}, as_json=as_json)
    if waits:
        sys.stdout.flush()
        sys.exit(watch_until_ended(dsn, [row[0]], as_json=as_json))
