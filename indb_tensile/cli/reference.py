"""`tensile reference` prints all options and settings of this version, or writes all reference pages."""

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import click

from indb_tensile.cluster import temporary_cluster


@click.command()
@click.option(
    "--write",
    type=click.Path(file_okay=False, path_type=Path),
    help="write all reference pages into this directory instead; starts a PostgreSQL of its own for a moment",
)
def reference(write: Path | None) -> None:
    """Print every option and setting with its type, range, default and meaning, as Markdown."""
    if write is None:
        click.echo(_page_module().page())
        return
    write.mkdir(parents=True, exist_ok=True)
    for name, text in (_page_module().pages() | {"cli.md": command_page()} | _catalog_pages()).items():
        (write / name).write_text(text, encoding="utf-8")
        click.echo(write / name)


def command_page() -> str:
    """Return the page of the command line: the output of `--help` for each command."""
    from indb_tensile.cli.main import tensile

    parts = [_page_module().heading("The command line")]
    parts += [f"## {name}\n\n```text\n{text}\n```" for name, text in _help_texts(tensile, "tensile", None)]
    return "\n\n".join(parts) + "\n"


def _help_texts(command: click.Command, name: str, parent: click.Context | None) -> Iterator[tuple[str, str]]:
    context = command.make_context(
        name.rpartition(" ")[2], [], parent, resilient_parsing=True, terminal_width=100, max_content_width=100
    )
    yield name, command.get_help(context).rstrip()
    if isinstance(command, click.Group):
        for part in command.list_commands(context):
            inner = command.get_command(context, part)
            if inner is not None and not inner.hidden:
                yield from _help_texts(inner, f"{name} {part}", context)


def _catalog_pages() -> dict[str, str]:
    """Return the pages of functions and views, read from a temporary cluster."""
    install = importlib.import_module("indb_tensile.catalog.install")
    connection_module = importlib.import_module("indb_tensile.catalog.connection")
    pages = importlib.import_module("indb_tensile.reference.catalog_pages")
    import psycopg

    with temporary_cluster() as cluster:
        with psycopg.connect(cluster.dsn(database="postgres"), autocommit=True) as maintenance:
            maintenance.execute("create database tensile")
        with connection_module.connect(cluster.dsn(), application_name="tensile reference") as connection:
            install.install(connection)
            made: dict[str, str] = pages.catalog_pages(connection)
    return made


def _page_module() -> ModuleType:
    return importlib.import_module("indb_tensile.reference.option_pages")  # other commands start without its imports
