"""Registers pretrained networks in the catalog, and loads them for trainings and predictions."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from psycopg.types.json import Jsonb

from indb_tensile.catalog.chunks import read_chunks, write_chunks
from indb_tensile.catalog.connection import Connection
from indb_tensile.catalog.queries import query
from indb_tensile.errors import MissingError, PrivilegeError, RequestError
from indb_tensile.job import JobId

_SHOWN_DIGITS = 12  # digits of a digest that a message shows


@dataclass(frozen=True, slots=True, kw_only=True)
class NewNetwork:
    """A network to register. `config` is what its family stores of the configuration."""

    name: str
    digest: str
    family: str
    config: Mapping[str, Any]
    tokenizer: str
    parameters: int
    weights_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredNetwork:
    """A registered network, as the catalog stores it. `weights` is empty if only the description was loaded."""

    name: str
    digest: str
    config: dict[str, Any]
    tokenizer: str
    weights: bytes = field(default=b"", repr=False)


def register(
    connection: Connection, network: NewNetwork, weights: Iterator[memoryview], *, replace: bool, force: bool
) -> bool:
    """Store a network in one transaction. Returns False if the same network has this name already.

    Raises RequestError if another network has the name, unless `replace` is true. With `force` a network is replaced
    even if versions of models need it, which then cannot predict.
    """
    with connection.transaction():
        known = connection.execute(query("network_of_name"), {"name": network.name}).fetchone()
        if known is not None and known[0] == network.digest:
            return False
        if known is not None and not replace:
            raise RequestError(
                f'another network is registered as "{network.name}"',
                detail=f"Its digest is {known[0]}; that of the directory is {network.digest}.",
                hint="Choose another name, or replace it: --replace.",
            )
        grantees = []
        if known is not None:
            grantees = [row[0] for row in connection.execute(query("network_grantees"), {"name": network.name})]
            connection.execute(query("drop_network"), {"name": network.name, "force": force})
        values = {
            "name": network.name,
            "digest": network.digest,
            "family": network.family,
            "config": Jsonb(dict(network.config)),
            "tokenizer": network.tokenizer,
            "parameters": network.parameters,
            "weights_bytes": network.weights_bytes,
        }
        row = connection.execute(query("insert_network"), values).fetchone()
        assert row is not None
        write_chunks(connection, "insert_network_chunk", row[0], weights)
        for grantee in grantees:
            grant(connection, network.name, grantee)
    return True


def grant(connection: Connection, network: str, grantee: str) -> None:
    """Allow a role to start training from a network."""
    connection.execute(query("grant_network"), {"name": network, "grantee": grantee})


def revoke(connection: Connection, network: str, grantee: str) -> None:
    """Revoke the right to start training from a network."""
    connection.execute(query("revoke_network"), {"name": network, "grantee": grantee})


def drop(connection: Connection, network: str, *, force: bool) -> None:
    """Remove a network. Without `force` it is refused while versions of models need it."""
    connection.execute(query("drop_network"), {"name": network, "force": force})


def load_network_of_job(connection: Connection, job: JobId, architecture: Mapping[str, Any]) -> StoredNetwork | None:
    """Load the network that the architecture of a job names, or None if it names none.

    Raises MissingError if it is not registered, PrivilegeError if the job's owner may not use it.
    """
    if architecture.get("type") != "pretrained":
        return None
    name = architecture.get("from")
    keys = {"job": job, "name": name, "digest": architecture.get("digest")}
    row = connection.execute(query("network_of_job"), keys).fetchone()
    if row is None:
        raise _removed(f"job {job}", architecture)
    if not row[1]:
        raise PrivilegeError(
            f'the owner of job {job} may not train from network "{name}"',
            hint=f"An administrator can allow it: select tensile_grant_network('{name}', 'role');",
        )
    return _load(connection, row[0], weights=True)


def load_network_of_version(
    connection: Connection, title: str, architecture: Mapping[str, Any]
) -> StoredNetwork | None:
    """Load the network that a version needs, or None if it needs none. It is found by its digest, whatever its name.

    Raises MissingError if it is not registered.
    """
    if architecture.get("type") != "pretrained":
        return None
    row = connection.execute(query("network_of_digest"), {"digest": architecture.get("digest")}).fetchone()
    if row is None:
        raise _removed(title, architecture)
    return _load(connection, row[0], weights=True)


def describe_network(connection: Connection, architecture: Mapping[str, Any], owner_oid: int) -> StoredNetwork | None:
    """Load a network without its weights, for the plan of a training of this owner. None if there is none to load.

    Raises the errors of `load_network_of_job`.
    """
    if architecture.get("type") != "pretrained":
        return None
    keys = {"name": architecture.get("from"), "digest": architecture.get("digest"), "owner": owner_oid}
    row = connection.execute(query("network_of_owner"), keys).fetchone()
    if row is None:
        raise _removed("the training", architecture)
    return _load(connection, row[0], weights=False)


def _load(connection: Connection, network: int, *, weights: bool) -> StoredNetwork:
    with connection.transaction():
        row = connection.execute(query("load_network"), {"network": network}).fetchone()
        if row is None:
            raise MissingError("the registered network was removed meanwhile", hint="See tensile.network_list.")
        name, digest, family, config, tokenizer, weights_bytes = row
        data = read_chunks(connection, "network_chunks", network, weights_bytes) if weights else b""
    return StoredNetwork(
        name=name, digest=digest, config=config | {"family": family}, tokenizer=tokenizer, weights=data
    )


def _removed(subject: str, architecture: Mapping[str, Any]) -> MissingError:
    name, digest = architecture.get("from"), str(architecture.get("digest") or "")
    which = f" with digest {digest[:_SHOWN_DIGITS]}..." if digest else ""
    return MissingError(
        f'{subject} needs the registered network "{name}"{which}, which is not registered now',
        detail="It was removed or replaced. A version holds only what was trained, and needs the same network again.",
        hint="An administrator can register the same directory again, under any name: tensile models import. "
        "The digests are in tensile.network_list.",
    )
