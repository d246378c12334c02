"""Defines models, and reads the arguments of a model's last training."""

from ..request.estimator_rules import check_ensemble, check_estimator
from ..request.json_text import json_text
from ..request.request_fields import read_model_name
from . import training_arguments
from .inherited_arguments import LastRun, read_last_run
from .refusals import DENIED, DUPLICATE, RefusalError
from .spi import Json, Plpy, fetch, literal


def create_model(plpy: Plpy, request: Json) -> Json:
    """Store a definition under a new name, or under a name that a running training has reserved.

    Refuses a name that another model has.
    """
    name = read_model_name(request)
    definition = {
        "architecture": training_arguments.architecture(request, {}),
        "hyperparams": training_arguments.hyperparams(request, {}),
    }
    check_estimator(definition)
    check_ensemble(definition["architecture"], definition["hyperparams"])
    values = (name, json_text(definition))
    created = fetch(plpy, DEFINE_RESERVED, *values) or fetch(plpy, CREATE_MODEL, *values)
    if not created:
        models = fetch(plpy, MODEL, name)
        if models and models[0]["own"]:
            hint = f"To replace it, drop it first: select tensile_drop_model({literal(name)})."
            raise RefusalError(DUPLICATE, f'model "{name}" already exists', hint=hint)
        raise _name_taken(name)
    return {"model": created[0]["model_id"]}


def last_run(plpy: Plpy, name: str) -> LastRun:
    """Return the model's last successful run, or its definition if it never ran."""
    models = fetch(plpy, MODEL, name)
    if not models:
        return LastRun(arguments={})
    if not models[0]["own"]:
        raise _name_taken(name)
    facts = models[0]
    return read_last_run(
        facts["last_spec"], facts["last_job_id"], facts["target_kind"], facts["definition"], facts["advice"]
    )


def _name_taken(name: str) -> RefusalError:
    hint = "Model names are unique in the database: choose another name."
    return RefusalError(DENIED, f'model "{name}" belongs to another role', hint=hint)


# A running training has reserved the name and may continue. The definition applies to later trainings.
DEFINE_RESERVED = """
update tensile.models as m set definition = $2::jsonb
 where m.name = $1::text and m.dropped_at is null and m.definition is null and m.last_spec is null
   and m.owner_oid = tensile.current_role_oid() and m.installation = tensile.installation()
   and not exists (select from tensile.model_versions as v where v.model_id = m.model_id)
returning m.model_id"""
CREATE_MODEL = """
insert into tensile.models (name, definition) values ($1::text, $2::jsonb)
on conflict (name) where dropped_at is null do nothing returning model_id"""
MODEL = """
select m.owner_oid = tensile.current_role_oid() and m.installation = tensile.installation() as own,
       m.definition::text as definition, m.last_spec::text as last_spec, m.last_job_id,
       (select b.bundle #>> '{preprocessor,target,kind}'
          from tensile.model_versions as v join tensile.version_bundles as b on b.version_id = v.version_id
         where v.model_id = m.model_id and v.job_id = m.last_job_id
         order by v.version_id desc limit 1) as target_kind,
       (select e.detail ->> 'message' from tensile.job_events as e
         where e.job_id = m.last_job_id and e.kind = 'warning' and e.detail ->> 'baseline' is not null
         order by e.event_id desc limit 1) as advice
  from tensile.models as m where m.name = $1::text and m.dropped_at is null"""
