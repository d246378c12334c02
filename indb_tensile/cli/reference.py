"""`tensile reference` prints all options and settings of this version as Markdown."""

import importlib

import click


@click.command()
def reference() -> None:
    """Print every option and setting with its type, range, default and meaning, as Markdown."""
    click.echo(importlib.import_module("indb_tensile.reference.page").page())  # late, so that --help is fast
