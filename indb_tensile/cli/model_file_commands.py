"""The commands `tensile models export` and, for a file, `tensile models import`."""

from pathlib import Path

import click

from indb_tensile.cli.output import show_one
from indb_tensile.cli.shared_options import dsn_option, json_option


@click.command("export")
@dsn_option
@json_option
@click.argument("name")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--version", type=int, help="a version other than the deployed one")
def export_model(dsn: str | None, as_json: bool, name: str, file: Path, version: int | None) -> None:
    """Write the model NAME to FILE.

    FILE ends in .safetensors (weights and preprocessing), .pt2 or .onnx (the network alone). Only the owner of the
    model, and roles with the privilege "weights" on it, may do this.
    """
    from indb_tensile.client.sync_client import Tensile  # slow to import: see `catalog/sqlalchemy`

    with Tensile(dsn) as client:
        written = client.export_model(name, file, version=version)
    show_one({"model": name, "file": str(written), "size_bytes": written.stat().st_size}, as_json=as_json)


def import_model(dsn: str | None, file: Path, name: str, *, deploy: bool | None, as_json: bool) -> None:
    """Write a file into the database as the next version of a model, and print the number of the version."""
    from indb_tensile.client.sync_client import Tensile

    with Tensile(dsn) as client:
        version = client.import_model(file, name, deploy=deploy)
    show_one({"model": name, "version": version}, as_json=as_json)
