"""Finds the registered network that an architecture names, and checks that it can read the texts of a training."""

import json

from ..errors import RequestError
from ..request.pretrained_rules import lora_targets
from .refusals import MISSING, RefusalError
from .spi import Json, Plpy, fetch

_MOST_LISTED = 20


def with_network(plpy: Plpy, architecture: Json) -> Json:
    """Return the architecture with the digest of the network that it names; another architecture as it is.

    Row-level security shows the networks that the caller may train from. Raises RefusalError for any other name.
    """
    if architecture["type"] != "pretrained":
        return architecture
    name, digest = architecture["from"], architecture.get("digest")
    networks = fetch(plpy, NETWORK, name)
    if not networks:
        _refuse_absent(plpy, name)
    network = networks[0]
    if digest is not None and digest != network["digest"]:
        raise RefusalError(
            MISSING,
            f'network "{name}" is not the one that the request names: it was replaced',
            detail=f"Its digest is {network['digest']}, and the request names {digest}.",
            hint='Name the architecture again, without "digest", to train from the present network.',
        )
    lora_targets(network["family"], architecture)
    return architecture | {"digest": network["digest"]}


def check_network_use(plpy: Plpy, spec: Json) -> None:
    """Raise RequestError for a text that is longer than the network reads."""
    architecture = spec["architecture"]
    length = spec["preprocess"].get("length")
    if architecture["type"] != "pretrained" or length is None:
        return
    config = json.loads(fetch(plpy, NETWORK, architecture["from"])[0]["config"])
    positions = int(config["positions"])
    for column, own in length.items() if isinstance(length, dict) else [(None, length)]:
        if own > positions:
            of_column = "" if column is None else f' of column "{column}"'
            reads = f'network "{architecture["from"]}" reads {positions} tokens'
            raise RequestError(
                f'preprocess: "length"{of_column} is {own}, and {reads}',
                hint=f"Give at most {positions}, or leave it out.",
            )


def _refuse_absent(plpy: Plpy, name: str) -> None:
    rows = fetch(plpy, NETWORKS)
    me = rows[0]["me"]
    known = [row["name"] for row in rows if row["name"] is not None]
    listed = ", ".join(known[:_MOST_LISTED]) + (", ..." if len(known) > _MOST_LISTED else "")
    raise RefusalError(
        MISSING,
        f'architecture pretrained: there is no network "{name}" that role "{me}" may train from',
        detail=f"The role may train from: {listed}." if known else "The role may train from no registered network.",
        hint="An administrator registers a network with tensile models import, and allows its use with "
        "tensile_grant_network('network', 'role').",
    )


NETWORK = """
select n.family, n.digest, n.config::text as config from tensile.networks as n where n.name = $1::text"""
NETWORKS = """
select current_user::text as me, n.name
  from (select 1) as one left join tensile.networks as n on true order by n.name limit 100"""
