"""The commands `tensile models import`, `imported`, `grant`, `revoke` and `remove`: files and registered networks."""

import importlib
from pathlib import Path
from typing import Any

import click

from indb_tensile.catalog import stored_networks
from indb_tensile.catalog.connection import Connection, connect, pinned
from indb_tensile.catalog.stored_networks import NewNetwork
from indb_tensile.cli.listing_commands import list_networks, models
from indb_tensile.cli.listing_options import page_options
from indb_tensile.cli.model_file_commands import export_model, import_model
from indb_tensile.cli.output import show_one, warn
from indb_tensile.cli.shared_options import dsn_option, json_option
from indb_tensile.cli.statements import statement
from indb_tensile.default_database import resolve

# The module is imported by name, and only when a directory is read, because it imports torch, which no other command
# may import.
_DIRECTORY = "indb_tensile.learning.network_directory"
_MOST_SHOWN = 5  # tensors that were left out


models.add_command(export_model)


@models.command("import")
@click.argument("file", required=False, type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--hf", "directory", metavar="DIR", help="directory that save_pretrained wrote, for a registered network"
)
@click.option(
    "--name", required=True, help="name of the model, or name by which an architecture refers to the network"
)
@click.option(
    "--deploy/--no-deploy",
    default=None,
    help="deploy the version of FILE or do not; by default only if the model has no deployed version",
)
@click.option(
    "--grant",
    "grantees",
    multiple=True,
    metavar="ROLE",
    help="role that may train from it, or public; may be repeated",
)
@click.option("--replace", is_flag=True, help="replace the network of this name, and keep its grants")
@click.option("--force", is_flag=True, help="replace it although versions of models need it")
@dsn_option
@json_option
def import_file_or_network(
    file: Path | None,
    directory: str | None,
    name: str,
    deploy: bool | None,
    grantees: tuple[str, ...],
    replace: bool,
    force: bool,
    dsn: str | None,
    as_json: bool,
) -> None:
    """Import a model out of FILE, or register a pretrained network from a directory.

    FILE is a .safetensors file that `tensile models export` wrote. It becomes the next version of the model of this
    name, which belongs to you and is created if there is none. Nothing in the file is run. A model of scikit-learn is
    only for tensile_admin.

    With --hf, which is for tensile_admin, reads config.json, tokenizer.json or the vocabulary, and safetensors, and
    registers them as a network for the architecture `pretrained`. Runs nothing of the directory and downloads
    nothing. Kinds: bert, distilbert, roberta, gpt2.
    """
    if (file is None) == (directory is None):
        raise click.UsageError("Give either FILE, for a model, or --hf DIR, for a registered network.")
    if file is not None:
        if grantees or replace or force:
            raise click.UsageError("--grant, --replace and --force are for a network: give --hf DIR.")
        import_model(dsn, file, name, deploy=deploy, as_json=as_json)
        return
    if deploy is not None:
        raise click.UsageError("--deploy and --no-deploy are for a model: give FILE.")
    assert directory is not None
    _import_network(dsn, directory, name, grantees, replace=replace, force=force, as_json=as_json)


def _import_network(
    dsn: str | None,
    directory: str,
    name: str,
    grantees: tuple[str, ...],
    *,
    replace: bool,
    force: bool,
    as_json: bool,
) -> None:
    with importlib.import_module(_DIRECTORY).NetworkDirectory(Path(directory)) as read:
        network = _new_network(name, read)
        with _administrator(dsn) as connection, connection.transaction():
            new = stored_networks.register(connection, network, read.weights(), replace=replace, force=force)
            for grantee in grantees:
                stored_networks.grant(connection, name, grantee)
        left_out = read.left_out
    if not new:
        warn(f'the same network was registered as "{name}" already')
    if left_out:
        shown = ", ".join(left_out[:_MOST_SHOWN]) + (", …" if len(left_out) > _MOST_SHOWN else "")
        warn(f"left out, since no encoder has them: {len(left_out)} tensors ({shown})")
    sizes = {"parameters": network.parameters, "weights_bytes": network.weights_bytes, "digest": network.digest}
    show_one({"network": name, "family": network.family} | sizes, as_json=as_json)


@models.command("imported")
@dsn_option
@json_option
@page_options(None)
def imported(dsn: str | None, as_json: bool, **options: Any) -> None:
    """List the registered networks that you may train from."""
    list_networks(dsn, options, as_json=as_json)


@models.command("grant")
@click.argument("network")
@click.argument("role")
@dsn_option
def grant(network: str, role: str, dsn: str | None) -> None:
    """Allow ROLE (public: all roles) to train from NETWORK; for tensile_admin."""
    with _administrator(dsn) as connection:
        stored_networks.grant(connection, network, role)


@models.command("revoke")
@click.argument("network")
@click.argument("role")
@dsn_option
def revoke(network: str, role: str, dsn: str | None) -> None:
    """Take back what `tensile models grant` has allowed; for tensile_admin."""
    with _administrator(dsn) as connection:
        stored_networks.revoke(connection, network, role)


@models.command("remove")
@click.argument("network")
@click.option(
    "--force", is_flag=True, help="remove it although versions of models need it, which then cannot predict"
)
@dsn_option
def remove(network: str, force: bool, dsn: str | None) -> None:
    """Remove NETWORK with its weights; refused while versions of models need it; for tensile_admin."""
    with _administrator(dsn) as connection:
        stored_networks.drop(connection, network, force=force)


def _new_network(name: str, read: Any) -> NewNetwork:
    """Return what the catalog stores of a directory's network, beside its weights."""
    _, weights_bytes = read.weights_digest
    return NewNetwork(
        name=name,
        digest=read.digest,
        family=read.sizes.family,
        config=read.sizes.stored(),
        tokenizer=read.tokenizer,
        parameters=read.parameters,
        weights_bytes=weights_bytes,
    )


def _administrator(dsn: str | None) -> Connection:
    """Connect as the role of --dsn, or in the embedded database as its superuser. Refuses any other role."""
    connection = connect(resolve(dsn, role="postgres"), application_name="tensile models")
    try:
        with pinned(connection):
            connection.execute(statement("require_admin"))
    except BaseException:
        connection.close()
        raise
    return connection
