"""The commands of `tensile models` that import and export models, and that manage registered networks.

A registered network is a pretrained network that an administrator has stored in the catalog. Models of the
architecture `pretrained` start training from it.
"""

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
_DIRECTORY = "indb_tensile.learning.networks.network_directory"
_MOST_SHOWN = 5  # most ignored tensors that the warning names


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
    help="role that may start training from the network, or public; may be repeated",
)
@click.option("--replace", is_flag=True, help="replace the network of this name, and keep its grants")
@click.option(
    "--force",
    is_flag=True,
    help="with --replace: also if versions of models need the old network, which then cannot predict",
)
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
    """Import a model from FILE, or register a pretrained network from a directory.

    FILE is a .safetensors file that `tensile models export` wrote. It becomes the next version of the model of this
    name, which belongs to you and is created if there is none. Nothing in the file is run. Only tensile_admin may
    import a scikit-learn model, because the state of such a model cannot be checked as tensors can.

    With --hf, the command registers the network in a directory that save_pretrained wrote, for the architecture
    `pretrained`. Only tensile_admin may do so. The command reads config.json, tokenizer.json or the vocabulary, and
    safetensors; it runs nothing in the directory and downloads nothing. Families: bert, distilbert, roberta, gpt2.
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
    with importlib.import_module(_DIRECTORY).NetworkDirectory(Path(directory)) as opened:
        network = _new_network(name, opened)
        with _administrator(dsn) as connection, connection.transaction():
            new = stored_networks.register(connection, network, opened.weights(), replace=replace, force=force)
            for grantee in grantees:
                stored_networks.grant(connection, name, grantee)
        ignored = opened.left_out
    if not new:
        warn(f'network "{name}" is already registered with the same contents')
    if ignored:
        shown = ", ".join(ignored[:_MOST_SHOWN]) + (", …" if len(ignored) > _MOST_SHOWN else "")
        warn(f"ignored {len(ignored)} tensors that the encoder does not use ({shown})")
    sizes = {"parameters": network.parameters, "weights_bytes": network.weights_bytes, "digest": network.digest}
    show_one({"network": name, "family": network.family} | sizes, as_json=as_json)


@models.command("imported")
@dsn_option
@json_option
@page_options(None)
def imported(dsn: str | None, as_json: bool, **options: Any) -> None:
    """List the registered networks from which you may start training."""
    list_networks(dsn, options, as_json=as_json)


@models.command("grant")
@click.argument("network")
@click.argument("role")
@dsn_option
def grant(network: str, role: str, dsn: str | None) -> None:
    """Allow ROLE (public: all roles) to start training from NETWORK, a registered network; for tensile_admin."""
    with _administrator(dsn) as connection:
        stored_networks.grant(connection, network, role)


@models.command("revoke")
@click.argument("network")
@click.argument("role")
@dsn_option
def revoke(network: str, role: str, dsn: str | None) -> None:
    """Revoke the right of ROLE to start training from NETWORK, a registered network; for tensile_admin."""
    with _administrator(dsn) as connection:
        stored_networks.revoke(connection, network, role)


@models.command("remove")
@click.argument("network")
@click.option("--force", is_flag=True, help="remove it even if versions of models need it, which then cannot predict")
@dsn_option
def remove(network: str, force: bool, dsn: str | None) -> None:
    """Remove NETWORK, a registered network, unless versions of models need it; for tensile_admin."""
    with _administrator(dsn) as connection:
        stored_networks.drop(connection, network, force=force)


def _new_network(name: str, opened: Any) -> NewNetwork:
    """Return what the catalog stores of the network in an open NetworkDirectory, except its weights."""
    _, weights_bytes = opened.weights_digest
    return NewNetwork(
        name=name,
        digest=opened.digest,
        family=opened.sizes.family,
        config=opened.sizes.stored(),
        tokenizer=opened.tokenizer,
        parameters=opened.parameters,
        weights_bytes=weights_bytes,
    )


def _administrator(dsn: str | None) -> Connection:
    """Connect as the role of --dsn, or to the embedded database as its superuser.

    Raises an error if the role is not a member of tensile_admin.
    """
    connection = connect(resolve(dsn, role="postgres"), application_name="tensile models")
    try:
        with pinned(connection):  # no other schema's function can stand in for the check
            connection.execute(statement("require_admin"))
    except BaseException:
        connection.close()
        raise
    return connection
