"""Finds the version of a model to predict with."""

from .refusals import MISSING, NOT_READY, RefusalError
from .spi import Plpy, Row, fetch, literal


def find_version(plpy: Plpy, name: str, number: int | None) -> Row:
    """Return a version of a model that the caller may see: the numbered version, or the deployed one."""
    versions = fetch(plpy, VERSION, name, number)
    if not versions:
        hint = "See your models: select * from tensile.model_list. Its owner can train it with tensile_train(...)."
        raise RefusalError(MISSING, f'there is no model "{name}"', hint=hint)
    if versions[0]["version_id"] is not None:
        return versions[0]
    if number is not None:
        hint = f"See its versions: select * from tensile_training_info({literal(name)})."  # noqa: S608 - a hint
        raise RefusalError(MISSING, f'model "{name}" has no version {number}', hint=hint)
    hint = (
        "Predictions become possible when a training has succeeded: see tensile.stat_jobs. "
        "A version that is not deployed is named with version => N: "
        f"tensile_training_info({literal(name)}) lists them."
    )
    raise RefusalError(NOT_READY, f'model "{name}" has no deployed version', hint=hint)


VERSION = """
select v.version_id, v.number, v.target, v.metrics::text as metrics
  from tensile.models as m
  left join tensile.model_versions as v
    on v.model_id = m.model_id and case when $2::int4 is null then v.deployed else v.number = $2 end
 where m.name = $1::text and m.dropped_at is null"""
