"""The command `tensile predict`."""

import click
from psycopg.types.json import Jsonb

from indb_tensile.catalog.connection import pinned
from indb_tensile.cli.database_choice import open_connection
from indb_tensile.cli.output import show_one
from indb_tensile.cli.shared_options import dsn_option, json_option, parse_json
from indb_tensile.cli.statements import statement


@click.command()
@dsn_option
@json_option
@click.argument("model")
@click.argument("row")
@click.option("--version", type=int, help="number of the model's version; the deployed one if left out")
@click.option("--label", "form", flag_value="predict_label", help="print the label as text")
@click.option("--values", "form", flag_value="predict_values", help="print the list of values of several targets")
def predict(dsn: str | None, as_json: bool, model: str, row: str, version: int | None, form: str | None) -> None:
    """Predict with MODEL for one ROW, a JSON object such as '{"age": 41, "plan": "basic"}'."""
    features = parse_json("the row", row, """an object of columns in quotes, such as '{"age": 41}'""")
    with open_connection(dsn) as connection, pinned(connection):
        result = connection.execute(
            statement(form or "predict"), {"model": model, "row": Jsonb(features), "version": version}
        ).fetchone()
    assert result is not None
    show_one({"prediction": result[0]}, as_json=as_json)
