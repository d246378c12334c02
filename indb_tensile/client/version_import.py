"""Reads a model's file, checks it, and writes it into the catalog as a version of a model.

The checks here name what is wrong before anything is sent. Row-level security decides who may write what
(sql/48_imports.sql), and a worker checks the version again when it loads it.
"""

import hashlib
from pathlib import Path

from sqlalchemy import Connection, func, insert, select
from sqlalchemy.dialects import postgresql

from indb_tensile.catalog.chunks import CHUNK_BYTES
from indb_tensile.catalog.sqlalchemy.catalog_tables import artifacts, model_versions, models, version_bundles
from indb_tensile.client import catalog_requests as requests
from indb_tensile.client.catalog_requests import Request
from indb_tensile.client.file_model import check_suffix_of_model, checked_predictor
from indb_tensile.client.model_file import ModelFile, read_model_file
from indb_tensile.errors import PrivilegeError, RequestError, UnsupportedError
from indb_tensile.request.network_rules import ESTIMATORS

MOST_BYTES = 1 << 30  # of the weights of a version, as sql/48_imports.sql has it
_MOST_NAME = 200
_MEMBERS = ("task", "target", "architecture", "parameters", "metric_name", "metric", "higher_is_better", "metrics")


def import_version(path: Path, name: str, *, deploy: bool | None) -> Request[int]:
    """Write a file as the next version of a model, which is created if there is none, and return its number.

    `deploy` None deploys the version if the model predicts with no other one. Raises RequestError for a file that is
    no model, and PrivilegeError for a name of another role and for what only administrators may import.
    """
    file = _checked(path)
    if not 1 <= len(name) <= _MOST_NAME:
        raise RequestError(f"a model's name has 1 to {_MOST_NAME} characters, and this one has {len(name)}")

    def request(connection: Connection) -> int:
        _check_administrator(connection, path, file)
        model_id = _own_model(connection, name)
        number = _write_version(connection, model_id, file)
        deployed = select(model_versions.c.number).where(
            model_versions.c.model_id == model_id, model_versions.c.deployed
        )
        if deploy or (deploy is None and connection.execute(deployed).first() is None):
            requests.deploy(name, number, f"imported from {path.name[:_MOST_NAME]}")(connection)
        return number

    return request


def _checked(path: Path) -> ModelFile:
    """Read a file, and build its model once, so that no file is imported that could not predict."""
    check_suffix_of_model(path)
    file = read_model_file(path, most_bytes=MOST_BYTES)
    kind = file.recipe["architecture"].get("type")
    if kind == "pretrained":
        raise UnsupportedError(
            f"{path} needs a registered network, and cannot be imported",
            detail="A file holds what was trained, and not the weights of the network that it began with.",
            hint="Train it here: tensile_train with an architecture of type pretrained.",
        )
    for member in ("architecture", "task"):
        if file.recipe["bundle"].get(member) != file.recipe[member]:
            raise RequestError(f"{path} contradicts itself: its {member} is not that of its preprocessing")
    checked_predictor(str(path), file)
    return file


def _check_administrator(connection: Connection, path: Path, file: ModelFile) -> None:
    kind = file.recipe["architecture"]["type"]
    allowed = select(func.pg_catalog.pg_has_role("tensile_admin", "usage"))
    if kind in ESTIMATORS and not connection.execute(allowed).scalar_one():
        raise PrivilegeError(
            f"{path} is a {kind} model, which only members of tensile_admin may import",
            detail="The state of a model of scikit-learn cannot be checked as the tensors of a network can.",
            hint="Ask an administrator to import it and to grant it: select tensile_grant_model('model', 'role');",
        )


def _own_model(connection: Connection, name: str) -> int:
    """Create the model if there is none, and lock it against other publications."""
    create = postgresql.insert(models).values(name=name)
    connection.execute(
        create.on_conflict_do_nothing(index_elements=[models.c.name], index_where=models.c.dropped_at.is_(None))
    )
    lock = func.tensile.lock_own_model(name, "import a version of")
    return int(connection.execute(select(lock)).scalar_one())


def _write_version(connection: Connection, model_id: int, file: ModelFile) -> int:
    last = select(func.max(model_versions.c.number)).where(model_versions.c.model_id == model_id)
    number = (connection.execute(last).scalar_one() or 0) + 1
    values = {member: file.recipe[member] for member in _MEMBERS}
    stored = {"weights_bytes": len(file.weights), "weights_digest": hashlib.sha256(file.weights).hexdigest()}
    version = insert(model_versions).values(model_id=model_id, number=number, **values, **stored)
    version_id = connection.execute(version.returning(model_versions.c.version_id)).scalar_one()
    connection.execute(insert(version_bundles).values(version_id=version_id, bundle=file.recipe["bundle"]))
    for chunk_no, begin in enumerate(range(0, len(file.weights), CHUNK_BYTES)):
        chunk = file.weights[begin : begin + CHUNK_BYTES]
        connection.execute(insert(artifacts).values(version_id=version_id, chunk_no=chunk_no, chunk=chunk))
    return number
