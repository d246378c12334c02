"""`python -m indb_tensile.reference` prints the reference page, or writes it to the file that `--write` names."""

from pathlib import Path

import click

from indb_tensile.reference.page import page


@click.command()
@click.option("--write", type=click.Path(dir_okay=False, path_type=Path), help="write this file instead of printing")
def main(write: Path | None) -> None:
    """Print every option and setting with its type, range, default and meaning, as Markdown."""
    if write is None:
        click.echo(page())
    else:
        write.write_text(page() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
