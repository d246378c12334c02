"""The commands that list the catalog: `tensile jobs`, `queue`, `searches`, `models`, `workers` and others."""

from collections.abc import Sequence
from typing import Any

import click

from indb_tensile.cli.database_choice import open_engine
from indb_tensile.cli.listing_options import name_option, page_options, period_options
from indb_tensile.cli.output import plain, show_rows, warn
from indb_tensile.cli.shared_options import dsn_option, json_option
from indb_tensile.job import JobState, Task

_LIMIT = 20  # jobs or events fit on a screen; a catalog holds thousands of them
_MOST_NAMES = 20  # most names that a message about a wrong name lists
_PAGE = ("sort", "limit", "offset")
# What tensile.drift_reading returns, and what the view says of a column that is not measured.
DRIFT_READINGS = ("stable", "moderate", "large", "too few rows", "not measured")


@click.command()
@dsn_option
@json_option
@click.option(
    "--state",
    type=click.Choice([state.value for state in JobState]),
    multiple=True,
    help="only jobs in this state; may be repeated",
)
@name_option("model", "only jobs of this model")
@name_option("owner", "only jobs of this role, for roles that see other roles' jobs")
@period_options("jobs that were enqueued")
@page_options(_LIMIT)
def jobs(dsn: str | None, as_json: bool, **options: Any) -> None:
    """List jobs, newest first."""
    _list("JOBS", dsn, options, as_json=as_json, empty="no job yet: select tensile_train('model', 'table')")


@click.command()
@dsn_option
@json_option
@name_option("model", "only jobs of this model")
@name_option("owner", "only jobs of this role, for roles that see other roles' jobs")
@period_options("jobs that were enqueued")
@page_options(_LIMIT)
def queue(dsn: str | None, as_json: bool, **options: Any) -> None:
    """List waiting jobs in the order in which they will start, with what each one waits for."""
    _list("QUEUE", dsn, options, as_json=as_json, empty="no job waits")


@click.command()
@dsn_option
@json_option
@click.option("--job", type=int, multiple=True, metavar="JOB_ID", help="only events of this job; may be repeated")
@name_option("kind", "only events of this kind: a state of a job, or a word such as requeued, resumed or warning")
@name_option("model", "only events of this model's jobs")
@name_option("owner", "only events of this role's jobs, for roles that see other roles' jobs")
@period_options("events")
@page_options(_LIMIT)
def events(dsn: str | None, as_json: bool, **options: Any) -> None:
    """List events in the history of jobs, newest first."""
    _list("EVENTS", dsn, options, as_json=as_json, empty="no event yet")


@click.command()
@dsn_option
@json_option
@name_option("model", "only searches of this model")
@name_option("owner", "only searches of this role, for roles that see other roles' jobs")
@period_options("searches that were enqueued")
@page_options(_LIMIT)
def searches(dsn: str | None, as_json: bool, **options: Any) -> None:
    """List searches, newest first, with their best trials."""
    _list("SEARCHES", dsn, options, as_json=as_json, empty="no search yet: select tensile_search('model', 'table')")


@click.command()
@dsn_option
@json_option
@click.option("--search", type=int, multiple=True, metavar="SEARCH_ID", help="only trials of this search")
@name_option("state", "only trials in this state, such as waiting or pruned")
@name_option("model", "only trials of this model")
@name_option("owner", "only trials of this role, for roles that see other roles' jobs")
@page_options(_LIMIT)
def trials(dsn: str | None, as_json: bool, **options: Any) -> None:
    """List trials of searches, the newest search first."""
    _list("TRIALS", dsn, options, as_json=as_json, empty="no trial yet: select tensile_search('model', 'table')")


@click.group(invoke_without_command=True)
@dsn_option
@json_option
@name_option("model", "only the model of this name")
@name_option("owner", "only models of this role")
@click.option("--task", type=click.Choice([task.value for task in Task]), help="only models for this task")
@click.option("--deployed/--not-deployed", default=None, help="only models with, or without, a deployed version")
@period_options("models that were trained")
@page_options(None)
@click.pass_context
def models(context: click.Context, /, dsn: str | None, as_json: bool, **options: Any) -> None:
    """List models and the version that is deployed; export and import models, and manage registered networks."""
    if context.invoked_subcommand is None:
        _list("MODELS", dsn, options, as_json=as_json, empty="no model yet: select tensile_train('model', 'table')")


@click.command()
@dsn_option
@json_option
@name_option("host", "only workers on this host")
@name_option("device", "only workers with this kind of device")
@click.option("--alive/--stopped", default=None, help="only workers that send heartbeats, or only others")
@period_options("workers whose last heartbeat came")
@page_options(None)
def workers(dsn: str | None, as_json: bool, **options: Any) -> None:
    """List controllers, running and stopped, newest first."""
    _list("WORKERS", dsn, options, as_json=as_json, empty="no controller has run yet: tensile up starts one")


@click.command()
@dsn_option
@json_option
@name_option("host", "only devices of this host")
@name_option("device", "only devices of this kind")
@click.option("--alive/--stopped", default=None, help="only devices of workers that send heartbeats, or only others")
@page_options(None)
def devices(dsn: str | None, as_json: bool, **options: Any) -> None:
    """List devices with the memory that jobs use, newest worker first."""
    _list("DEVICES", dsn, options, as_json=as_json, empty="no device yet: tensile up starts a controller with one")


@click.command()
@dsn_option
@json_option
@name_option("model", "only the use by jobs of this model")
@name_option("owner", "only the use by this role, for roles that see other roles' use")
@page_options(None)
def usage(dsn: str | None, as_json: bool, **options: Any) -> None:
    """List the use of the devices by owner and model, the largest first."""
    _list("USAGE", dsn, options, as_json=as_json, empty="no job has used a device yet")


@click.command()
@dsn_option
@json_option
@name_option("model", "only the inputs of this model")
@name_option("owner", "only models of this role, for roles that see other roles' models")
@name_option("feature", "only this input column")
@click.option(
    "--reading",
    type=click.Choice(DRIFT_READINGS),
    multiple=True,
    help="only inputs whose drift reads so; may be repeated",
)
@click.option("--deployed/--not-deployed", default=None, help="only inputs of deployed versions, or only of others")
@page_options(None)
def drift(dsn: str | None, as_json: bool, **options: Any) -> None:
    """List how far inputs of predictions have drifted from those of the training, the largest drift first."""
    _list("DRIFT", dsn, options, as_json=as_json, empty="no drift is measured: select tensile_measure_drift('model')")


def list_networks(dsn: str | None, options: dict[str, Any], *, as_json: bool) -> None:
    """List the registered networks that the role sees."""
    _list(
        "NETWORKS", dsn, options, as_json=as_json, empty="no network yet: tensile models import --hf DIR --name NAME"
    )


def _list(name: str, dsn: str | None, options: dict[str, Any], *, as_json: bool, empty: str) -> None:
    """Read and print one page of a listing of `catalog_listings`, and say on stderr whether rows follow it."""
    # SQLAlchemy takes about 0.2 s to import, so only a command that lists imports it.
    from indb_tensile.catalog.sqlalchemy import catalog_listings
    from indb_tensile.catalog.sqlalchemy.listing import ListingRequest, names_in_use, read_listing

    listing = getattr(catalog_listings, name)
    page = {option: options[option] for option in _PAGE}
    filters = {option: value for option, value in options.items() if option not in _PAGE}
    request = ListingRequest(filters=filters, **page)
    restricted = page["offset"] or any(value not in (None, ()) for value in filters.values())
    with open_engine(dsn) as engine:
        rows = read_listing(engine, listing, request)
        unmatched = {} if rows.rows or as_json else names_in_use(engine, listing, request, _MOST_NAMES + 1)
    show_rows(rows.rows, as_json=as_json, empty="no row matches" if restricted else empty)
    for option, in_use in unmatched.items():
        _warn_of_names(option, filters[option], in_use)
    if rows.more:
        warn(f"more rows follow: --offset {page['offset'] + page['limit']}")


def _warn_of_names(option: str, names: Sequence[str], in_use: Sequence[str]) -> None:
    """Say that no row has one of the names, and which names rows have."""
    shown = [plain(name) for name in in_use[:_MOST_NAMES]] + ["…"] * (len(in_use) > _MOST_NAMES)
    right = f"the names in use are {', '.join(shown)}" if shown else "there is no row at all"
    warn(f"no row has --{option} {plain(' or '.join(names))}: {right}")
