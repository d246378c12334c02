"""The options of the commands that train: those of `tensile_train`, and the arguments that they become."""

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import click
from psycopg.types.json import Jsonb

from indb_tensile.cli.shared_options import Decorator, parse_json
from indb_tensile.request.job_rules import DEPLOY
from indb_tensile.request.task_rules import TASKS

_OPTIONS: tuple[Decorator, ...] = (
    click.option("--target", help="the column to predict, or several as a JSON list"),
    click.option("--task", type=click.Choice(TASKS), help="what to learn"),
    click.option("--architecture", help="mlp, cnn, auto, or a JSON definition"),
    click.option("--hyperparams", metavar="JSON", help="""an object, such as '{"epochs": 20}'"""),
    click.option("--features", multiple=True, metavar="COLUMN", help="a column to learn from; may be repeated"),
    click.option("--exclude", multiple=True, metavar="COLUMN", help="a column to leave out; may be repeated"),
    click.option("--preprocess", metavar="JSON", help="an object: how columns are encoded"),
    click.option("--split", metavar="JSON", help="an object: parts for validation and test, seed"),
    click.option("--metric", help="the metric that decides which version is better"),
    click.option("--early-stop", metavar="JSON", help="""an object, such as '{"patience": 5}'"""),
    click.option("--transform", metavar="JSON", help="""features to compute, such as '{"double": "2 * age"}'"""),
    click.option("--forecast", metavar="JSON", help="""for a forecast, such as '{"time": "day", "horizon": 7}'"""),
    click.option(
        "--init-from", metavar="MODEL", help="begin with the weights of MODEL, or of its version 3: MODEL@3"
    ),
    click.option(
        "--priority", default=0, show_default=True, help="of your own jobs, those of higher priority start first"
    ),
    click.option("--memory-limit", metavar="SIZE", help="the most device memory the job may use, such as 200MB"),
    click.option(
        "--devices", type=int, default=1, show_default=True, help="devices that train the job together, as ranks"
    ),
    click.option(
        "--max-runtime", metavar="INTERVAL", help="the longest time that the job may run, such as '2 hours'"
    ),
    click.option(
        "--deploy",
        type=click.Choice(DEPLOY),
        default=DEPLOY[0],
        show_default=True,
        help="whether the new version becomes the one that predicts",
    ),
    click.option(
        "--depends-on", type=int, multiple=True, metavar="JOB_ID", help="start after this job; may be repeated"
    ),
    click.option("--not-before", metavar="TIME", help="start no earlier, such as '2030-01-31 22:00+00'"),
    click.option("--idempotency-key", metavar="TEXT", help="two requests with the same key are one job"),
    click.option(
        "--snapshot/--no-snapshot", default=False, help="train on the rows as they are now, from a copy of them"
    ),
)


def training_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a training to a command."""
    return reduce(lambda decorated, option: option(decorated), reversed(_OPTIONS), command)


def training_arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    """Convert options to arguments of the statement.

    Repeated options become arrays, JSON texts become JSON, and omitted options become null.
    """
    arguments = {name: list(value) or None if isinstance(value, tuple) else value for name, value in options.items()}
    for name in ("hyperparams", "preprocess", "split", "early_stop", "transform", "forecast"):
        if options[name] is not None:
            option = "--" + name.replace("_", "-")
            example = f"""an object in quotes, such as {option} '{_EXAMPLES[name]}'"""
            arguments[name] = Jsonb(parse_json(option, options[name], example))
    return arguments


_EXAMPLES = {
    "hyperparams": '{"epochs": 20}',
    "preprocess": '{"missing": {"age": "median"}}',
    "split": '{"seed": 7}',
    "early_stop": '{"patience": 5}',
    "transform": '{"double": "2 * age"}',
    "forecast": '{"time": "day", "horizon": 7}',
}
