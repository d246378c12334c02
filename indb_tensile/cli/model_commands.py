"""The commands `tensile models` and `tensile predict`."""

import click
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from indb_tensile.catalog.connection import pinned
from indb_tensile.cli.database_choice import open_connection
from indb_tensile.cli.output import show_one, show_rows
from indb_tensile.cli.shared_options import dsn_option, json_option, parse_json
from indb_tensile.cli.statements import statement


@click.command()
@dsn_option
@json_option
def models(dsn: str | None, as_json: bool) -> None:
    """List models and the version that is deployed."""
    with (
        open_connection(dsn) as connection,
        pinned(connection),
        connection.cursor(row_factory=dict_row) as cursor,
    ):
        rows = cursor.execute(statement("models")).fetchall()
    show_rows(rows, as_json=as_json, empty="no model yet: select tensile_train('model', 'table')")


@click.command()
@dsn_option
@json_option
@click.argument("model")
@click.argument("row")
@click.option("--version", type=int, help="number of the model's version; the deployed one if left out")
@click.option("--label", is_flag=True, help="print the label as text")
def predict(dsn: str | None, as_json: bool, model: str, row: str, version: int | None, label: bool) -> None:
    """Predict with MODEL for one ROW, a JSON object such as '{"age": 41, "plan": "basic"}'."""
    features = parse_json("the row", row, """an object of columns in quotes, such as '{"age": 41}'""")
    name = "predict_label" if label else "predict"
    with open_connection(dsn) as connection, pinned(connection):
        result = connection.execute(
            statement(name), {"model": model, "row": Jsonb(features), "version": version}
        ).fetchone()
    assert result is not None
    show_one({"prediction": result[0]}, as_json=as_json)
