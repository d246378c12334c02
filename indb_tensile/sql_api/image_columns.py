"""Checks the first values of the columns of images: their first bytes, and their sizes. Nothing is decoded here."""

# ruff: noqa: S608 - every name that goes into a statement is quoted by quote_ident

from typing import Any

from ..errors import RequestError
from ..request.abbreviation import shown
from ..request.batch_rules import check_batch_sizes
from ..request.image_rules import (
    CHANNELS,
    FORMATS,
    HEAD_BYTES,
    IMAGE,
    MOST_IMAGE_BYTES,
    check_images,
    check_mixup,
    check_rows_are_images,
    check_sizes,
    format_of,
)
from .feature_columns import used_columns
from .refusals import DATA, RefusalError
from .spi import Json, Plpy, fetch, literal
from .training_table import Table, TableColumn

_ROWS = 200  # values whose first bytes are read; each may be stored out of line
_FLOAT_BYTES = 4


def check_image_options(table: Table, spec: Json) -> None:
    """Refuse networks and hyper-parameters that do not go with the columns of images, or with their absence.

    Batches of one row are among them, because images are encoded by layers that normalise over the batch.
    """
    columns = used_columns(table, spec)
    images = [column.name for column in columns if column.kind == IMAGE]
    check_images(
        spec["architecture"], spec["preprocess"], len(images), len(columns) - len(images), spec["hyperparams"]
    )
    check_rows_are_images(spec["architecture"], [column.kind for column in columns])
    check_mixup(spec["hyperparams"], spec["task"], len(images), len(columns) - len(images))
    check_batch_sizes(spec["architecture"], spec["hyperparams"], images=bool(images))
    if images and spec["task"] == "forecast":
        raise RequestError(
            f"a forecast does not read images: {', '.join(images)}",
            hint="Leave them out with exclude => array[...].",
        )
    for name in images:
        check_sizes(spec["architecture"], spec["preprocess"], name)


def check_image_values(plpy: Plpy, table: Table, spec: Json) -> None:
    """Refuse a column of bytea without images among its first values, and with a value that is too large.

    Also refuses batches whose pixels alone take more memory than the job may use.
    """
    for column in used_columns(table, spec):
        if column.kind == IMAGE:
            _check_values(plpy, table, spec, column)
            _check_batch(plpy, spec, column)


def _check_values(plpy: Plpy, table: Table, spec: Json, column: TableColumn) -> None:
    name = plpy.quote_ident(column.name)
    row = next(
        iter(
            plpy.execute(
                "select pg_catalog.count(*) as known, pg_catalog.max(size) as largest, "
                "pg_catalog.array_agg(distinct head) as heads from (select "
                f"pg_catalog.octet_length({name}) as size, "
                f"pg_catalog.encode(pg_catalog.substr({name}, 1, {HEAD_BYTES}), 'hex') as head "
                f"from {table.source} where {name} is not null limit {_ROWS}) as first_values"
            )
        )
    )
    forms = (_of_column(spec, "size", column.name), _of_column(spec, "channels", column.name))
    if not row["known"] and None in forms and "init_from" not in spec:
        raise RefusalError(
            DATA,
            f'feature "{column.name}" of {table} is NULL in all rows: the size of its images is unknown',
            hint=f"Fill it, or leave it out with exclude => array[{literal(column.name)}].",
        )
    heads = [bytes.fromhex(head) for head in row["heads"] or []]
    if row["known"] and not any(map(format_of, heads)):
        raise RefusalError(
            DATA,
            f'none of the first {row["known"]} values of "{column.name}" of {table} is an image',
            detail=f"A value starts with {heads[0][:4].hex(' ') or 'nothing'}. Images of bytea are in one of these "
            f"formats: {', '.join(FORMATS)}.",
            hint=f"Leave it out with exclude => array[{literal(column.name)}]: a network reads no other bytes.",
        )
    if (row["largest"] or 0) > MOST_IMAGE_BYTES and _of_column(spec, "on_error", column.name) != "skip":
        raise RefusalError(
            DATA,
            f'a value of "{column.name}" of {table} has {row["largest"]} bytes, more than the {MOST_IMAGE_BYTES} '
            "that an image may have",
            hint='Leave such rows out: preprocess => \'{"on_error": "skip"}\'.',
        )


def _check_batch(plpy: Plpy, spec: Json, column: TableColumn) -> None:
    """Refuse a batch whose pixels alone exceed the job's memory limit, or the memory of every device."""
    size = _of_column(spec, "size", column.name)
    batch = spec["hyperparams"].get("batch_size")
    if size is None or batch is None:
        return
    channels = CHANNELS[_of_column(spec, "channels", column.name) or "grey"]
    needed = _FLOAT_BYTES * channels * size[0] * size[1] * batch
    room = fetch(plpy, LARGEST_DEVICE)[0]["budget_bytes"]
    limits = [limit for limit in (spec["memory_limit_bytes"], room) if limit is not None]
    if limits and needed > min(limits):
        raise RefusalError(
            DATA,
            f'a batch of {batch} images of "{column.name}" takes {needed} bytes, and the job may use {min(limits)}',
            detail=f"Each image is {size[0]} x {size[1]} pixels of {channels} "
            f"channel{'' if channels == 1 else 's'} in single precision. preprocess is {shown(spec['preprocess'])}.",
            hint='Give a smaller "size", a smaller "batch_size", or more memory_limit.',
        )


def _of_column(spec: Json, option: str, name: str) -> Any:
    value = spec["preprocess"].get(option)
    return value.get(name) if isinstance(value, dict) else value


LARGEST_DEVICE = """
select max(d.budget_bytes) as budget_bytes
  from tensile.devices as d
  join tensile.workers as w using (worker_id)
 where tensile.is_alive(w)"""
