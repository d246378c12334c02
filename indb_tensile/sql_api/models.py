"""Models by name: defining one, recalling what its last training was given, finding the version to predict with."""

import json

from . import arguments
from .errors import DENIED, DUPLICATE, MISSING, NOT_READY, RefusalError
from .request import read_model_name
from .spi import Json, Plpy, Row, fetch, literal


def create_model(plpy: Plpy, request: Json) -> Json:
    """Store a definition under a new name."""
    name = read_model_name(request)
    definition = {
        "architecture": arguments.architecture(request, {}),
        "hyperparams": arguments.hyperparams(request, {}),
    }
    made = fetch(plpy, CREATE_MODEL, name, json.dumps(definition))
    if not made:
        found = fetch(plpy, MODEL, name)
        if found and found[0]["own"]:
            hint = f"To define it anew, drop it first: select tensile_drop_model({literal(name)})."
            raise RefusalError(DUPLICATE, f'model "{name}" already exists', hint=hint)
        raise _taken(name)
    return {"model": made[0]["model_id"]}


def last_arguments(plpy: Plpy, name: str) -> Json:
    """What arguments left out mean: those of the model's last successful run, else its definition."""
    found = fetch(plpy, MODEL, name)
    if not found:
        return {}
    if not found[0]["own"]:
        raise _taken(name)
    last = found[0]["last_spec"] or found[0]["definition"]
    return dict(json.loads(last)) if last else {}


def find_version(plpy: Plpy, name: str, number: int | None) -> Row:
    """The version of a model that the caller may see: this one, or the deployed one."""
    found = fetch(plpy, VERSION, name, number)
    if not found:
        hint = "See your models: select * from tensile.model_list. Its owner can train it with tensile_train(...)."
        raise RefusalError(MISSING, f'there is no model "{name}"', hint=hint)
    if found[0]["version_id"] is not None:
        return found[0]
    if number is not None:
        hint = f"See its versions: select * from tensile_training_info({literal(name)})."  # noqa: S608 - a hint
        raise RefusalError(MISSING, f'model "{name}" has no version {number}', hint=hint)
    hint = "Predictions become possible when a training has succeeded: see tensile.stat_jobs."
    raise RefusalError(NOT_READY, f'model "{name}" has no deployed version', hint=hint)


def _taken(name: str) -> RefusalError:
    hint = "Model names are unique in the database: choose another name."
    return RefusalError(DENIED, f'model "{name}" belongs to another role', hint=hint)


CREATE_MODEL = """
insert into tensile.models (name, definition) values ($1::text, $2::jsonb)
on conflict (name) do nothing returning model_id"""
MODEL = """
select m.owner_name = current_user and m.owner_oid = tensile.current_role_oid() as own,
       m.definition::text as definition, m.last_spec::text as last_spec
  from tensile.models as m where m.name = $1::text"""
VERSION = """
select v.version_id, v.target, v.metrics::text as metrics
  from tensile.models as m
  left join tensile.model_versions as v
    on v.model_id = m.model_id and case when $2::int4 is null then v.deployed else v.number = $2 end
 where m.name = $1::text"""
