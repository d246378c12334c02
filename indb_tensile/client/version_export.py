"""Reads a version of a model out of the catalog, and writes it to a file.

Row-level security decides who may: a model's owner, and roles with the privilege `weights` on it.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Row, Select, select

from indb_tensile.catalog.sqlalchemy.catalog_tables import artifacts, model_versions, models, version_bundles
from indb_tensile.client.catalog_requests import Request
from indb_tensile.client.model_file import FORMAT, SUFFIX, read_model_file, write_model_file
from indb_tensile.errors import MissingError, PrivilegeError, RequestError, UnsupportedError

SUFFIXES = (SUFFIX, ".pt2", ".onnx")
_MEMBERS = ("task", "target", "architecture", "parameters", "metric_name", "metric", "higher_is_better", "metrics")


def check_suffix(path: Path) -> None:
    """Raise RequestError for a file of another kind."""
    if path.suffix not in SUFFIXES:
        raise RequestError(f'"{path}" has the suffix "{path.suffix}"', hint=f"Give one of {', '.join(SUFFIXES)}.")


def export_version(model: str, version: int | None, path: Path) -> Request[Path]:
    """Write a version to a file, by default the deployed one. The suffix of the file chooses its format."""
    check_suffix(path)

    def request(connection: Connection) -> Path:
        row = _described(connection, model, version)
        recipe = _recipe(connection, model, row)
        target = path if path.suffix == SUFFIX else path.with_name(f".{path.name}{SUFFIX}")
        write_model_file(target, recipe, _weights(connection, row.version_id))
        if target == path:
            return path
        from indb_tensile.client.network_file import write_network_file

        try:
            write_network_file(path, read_model_file(target))
        finally:
            target.unlink()
        return path

    return request


def _described(connection: Connection, model: str, version: int | None) -> Row[Any]:
    model_id = connection.execute(
        select(models.c.model_id).where(models.c.name == model, models.c.dropped_at.is_(None))
    ).scalar_one_or_none()
    if model_id is None:
        raise MissingError(f'there is no model "{model}"', hint="See your models: select * from tensile.model_list;")
    chosen = select(model_versions).where(model_versions.c.model_id == model_id)
    by = model_versions.c.deployed if version is None else model_versions.c.number == version
    row = connection.execute(chosen.where(by)).one_or_none()
    if row is None:
        which = "deployed version" if version is None else f"version {version}"
        raise MissingError(f'model "{model}" has no {which}', hint=f"See its versions: Tensile.versions({model!r}).")
    return row


def _recipe(connection: Connection, model: str, row: Row[Any]) -> dict[str, Any]:
    statement: Select[Any] = select(version_bundles.c.bundle)
    bundle = connection.execute(statement.where(version_bundles.c.version_id == row.version_id)).scalar_one_or_none()
    if bundle is None:
        raise PrivilegeError(
            f'model "{model}" belongs to another role, which has not granted its weights',
            detail="A file holds weights, and the preprocessing with values of the training data.",
            hint=f"Its owner can allow that: select tensile_grant_model('{model}', current_user, 'weights');",
        )
    if bundle.get("forecast"):
        raise UnsupportedError(
            f'model "{model}" is a forecast, which has no file',
            detail="Its input is the past of a series, which the database reads.",
            hint="Ask the database: select * from tensile_forecast(…);",
        )
    if bundle.get("task") == "anomaly":
        raise UnsupportedError(
            f'model "{model}" finds anomalies, and has no file',
            detail="Its outputs are the errors of columns, which the database makes comparable.",
            hint="Ask the database: select * from tensile_predict_table(…);",
        )
    if bundle.get("task") == "pairs":
        raise UnsupportedError(
            f'model "{model}" learns pairs, and has no file',
            detail="It embeds a query and an item each by itself, which the database does.",
            hint="Ask the database: select * from tensile_embed_table(…);",
        )
    bundle = {name: value for name, value in bundle.items() if name != "split"}  # of the training's own table
    training = row.training or {}
    members = {name: getattr(row, name) for name in _MEMBERS}
    recipe = {"format": FORMAT, "model": model, "number": row.number, "bundle": bundle} | members
    plain: dict[str, Any] = json.loads(json.dumps(recipe | {"transform": training.get("transform")}, default=str))
    return plain


def _weights(connection: Connection, version_id: int) -> Iterator[bytes]:
    """Yield the chunks of the weights, one at a time."""
    place = 0
    while True:
        statement = select(artifacts.c.chunk).where(
            artifacts.c.version_id == version_id, artifacts.c.chunk_no == place
        )
        chunk = connection.execute(statement).scalar_one_or_none()
        if chunk is None:
            return
        yield bytes(chunk)
        place += 1
