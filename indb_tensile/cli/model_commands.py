"""The commands `tensile deploy` and `tensile retrain`."""

import click

from indb_tensile.catalog.connection import pinned
from indb_tensile.cli.database_choice import open_connection
from indb_tensile.cli.output import show_one, warn
from indb_tensile.cli.shared_options import dsn_option, json_option
from indb_tensile.cli.statements import statement


@click.command()
@dsn_option
@json_option
@click.argument("model")
@click.argument("version")
@click.option("--reason", help="why, for the history of deployments")
def deploy(dsn: str | None, as_json: bool, model: str, version: str, reason: str | None) -> None:
    """Deploy VERSION of MODEL and print its number; VERSION is a number, `best`, or `previous` for a rollback."""
    with open_connection(dsn) as connection, pinned(connection):
        connection.add_notice_handler(lambda notice: warn(f"notice: {notice.message_primary}"))
        row = connection.execute(
            statement("deploy"), {"model": model, "version": version, "reason": reason}
        ).fetchone()
    assert row is not None
    show_one({"model": model, "version": row[0]}, as_json=as_json)


@click.command()
@dsn_option
@json_option
@click.argument("model")
def retrain(dsn: str | None, as_json: bool, model: str) -> None:
    """Enqueue the last successful training of MODEL again and print the job's number."""
    with open_connection(dsn) as connection:
        connection.add_notice_handler(lambda notice: warn(f"notice: {notice.message_primary}"))
        row = connection.execute(statement("retrain"), {"model": model}).fetchone()
    assert row is not None
    show_one({"job_id": row[0]}, as_json=as_json)
