"""The command `tensile web`."""

from pathlib import Path

import click

from indb_tensile.cli.output import warn
from indb_tensile.cli.shared_options import dsn_option
from indb_tensile.default_database import resolve
from indb_tensile.errors import UnsupportedError


@click.command()
@click.option("--listen", default="127.0.0.1:8080", show_default=True, help="address and port to listen on")
@click.option(
    "--login",
    type=click.Choice(("link", "password")),
    default="link",
    show_default=True,
    help="link: whoever has the printed link acts as the role of this command; password: each viewer logs in as a "
    "role of the database",
)
@click.option("--metrics", is_flag=True, help="also answer /metrics for Prometheus, without a login")
@click.option("--public", is_flag=True, help="allow an address that other machines can reach; needs TLS")
@click.option("--certificate", type=click.Path(path_type=Path), help="PEM file of the TLS certificate")
@click.option("--key", type=click.Path(path_type=Path), help="PEM file of its private key")
@click.option("--host-name", "names", multiple=True, help="name by which browsers call this page; may be repeated")
@dsn_option
def web(
    listen: str,
    login: str,
    metrics: bool,
    public: bool,
    certificate: Path | None,
    key: Path | None,
    names: tuple[str, ...],
    dsn: str | None,
) -> None:
    """Show devices, queue, jobs and models in a browser, until Ctrl-C ends it.

    The page shows what a database role may see, and does what it may do. It needs the extra `web`:
    pip install 'indb-tensile[web]'.
    """
    try:
        from indb_tensile.web.listening_address import listening_address
        from indb_tensile.web.web_server import serve
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("indb_tensile"):
            raise
        raise UnsupportedError(
            f"the page needs {error.name}, which is not installed",
            hint="Install what it needs: pip install 'indb-tensile[web]'.",
        ) from error
    address = listening_address(listen, public=public, certificate=certificate, key=key, names=names)
    serve(
        resolve(dsn),
        address,
        by_password=login == "password",
        with_metrics=metrics,
        announce=lambda link: click.echo(f"open this link, which lets one browser in: {link}"),
        tell=warn,
    )
