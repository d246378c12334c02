"""The command `tensile model export`."""

from pathlib import Path

import click

from indb_tensile.cli.output import show_one
from indb_tensile.cli.shared_options import dsn_option, json_option


@click.group()
def model() -> None:
    """Write a version of a model to a file."""


@model.command("export")
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
