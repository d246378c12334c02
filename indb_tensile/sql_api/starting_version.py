"""Finds the version whose weights a training starts from, and checks that the new network can take them.

The version fixes network and features, so a request takes over both if it leaves them out. Whether the shapes of all
layers fit is known only when the table has been read: a trainer checks them (learning/training/starting_weights.py).
"""

import json
import re
from collections.abc import Sequence
from typing import NamedTuple

from ..errors import RequestError
from ..request.feature_rules import learned_first
from ..request.network_rules import LAYOUT_PARAMETERS, weights_misfit
from ..request.request_fields import read_text
from .inherited_arguments import LastRun
from .refusals import DENIED, MISSING, MISSING_COLUMN, NOT_READY, RefusalError
from .spi import Json, Plpy, Row, fetch, literal
from .training_table import Table


class StartingVersion(NamedTuple):
    """The model, and the version if there is one already. `number` is None for the version deployed at the start.

    `version` has the version's number, task, target, architecture and features. It is None if the version is still to
    be trained by a job that the request depends on.
    """

    model_id: int
    model: str
    number: int | None
    version: Row | None

    def to_spec(self) -> Json:
        """Return the part of the specification that names the version."""
        return {"model_id": self.model_id, "model": self.model, "version": self.number}

    def complete(self, request: Json, table: Table) -> Json:
        """Return the request with the network and the features of the version where it leaves them out.

        Raises RefusalError if the table lacks one of these features.
        """
        if self.version is None:
            return request
        own: Json = {}
        if request.get("architecture") in (None, "auto"):
            # The columns of the new table decide about the layout of the rows.
            resolved = json.loads(self.version["architecture"])
            own["architecture"] = json.dumps(
                {name: value for name, value in resolved.items() if name not in LAYOUT_PARAMETERS}
            )
        if request.get("features") is None and request.get("exclude") is None and self._features is not None:
            absent = [name for name in self._features if name not in table.column_names]
            if absent:
                raise RefusalError(
                    MISSING_COLUMN,
                    f"init_from: {table} has no column {_listed(absent)}, from which {self._title} learned",
                    detail=f"The columns of {table.title} are {table.names}.",
                    hint="Train on a view or a query that has these columns, or leave init_from out.",
                )
            own["features"] = self._features
        return request | own

    def fall_back(self, last: LastRun) -> LastRun:
        """Return the last run with the target and the task of the version, if the model never ran."""
        if self.version is None or last.ran:
            return last
        inherited = {"target": self.version["target"], "task": self.version["task"]}
        return last._replace(arguments=inherited | last.arguments)

    def check(self, spec: Json, features: Sequence[str]) -> None:
        """Put the features into the order of the version. Raises RequestError for a training that does not fit."""
        if self.version is None:
            return
        if spec["task"] != self.version["task"]:
            raise RequestError(
                f"init_from: {self._title} is a {self.version['task']}, and the new training a {spec['task']}",
                detail=f'The version predicts "{self.version["target"]}", and the new training "{spec["target"]}".',
                hint="Name a version of the same task, or leave init_from out.",
            )
        misfit = weights_misfit(spec["architecture"], json.loads(self.version["architecture"]))
        if misfit:
            raise RequestError(
                f"init_from: the network does not fit the weights of {self._title}: {misfit}",
                detail=f"The architecture of the version is {self.version['architecture']}.",
                hint="Leave architecture out, which takes over that of the version.",
            )
        if self._features is not None:
            spec["features"] = list(learned_first(self._title, self._features, features))

    @property
    def _features(self) -> list[str] | None:
        stored = json.loads(self.version["features"] or "null") if self.version is not None else None
        return list(stored) if isinstance(stored, list) else None

    @property
    def _title(self) -> str:
        assert self.version is not None
        return f'version {self.version["number"]} of model "{self.model}"'


def choose_start(plpy: Plpy, request: Json) -> StartingVersion | None:
    """Return the version that `init_from` names, or None: `model` is the deployed one, `model@3` a numbered one.

    Raises RefusalError for a version that does not exist or that the caller may not start from.
    """
    text = read_text(request, "init_from")
    if text is None:
        return None
    rows, number = fetch(plpy, SOURCE, text, None), None
    numbered = re.fullmatch(r"(?s)(.+)@([0-9]{1,9})", text)
    if not rows and numbered is not None:
        number = int(numbered[2])
        rows = fetch(plpy, SOURCE, numbered[1], number)
    if not rows:
        hint = "See your models: select * from tensile.model_list. A version is named as in 'model@3'."
        raise RefusalError(MISSING, f'init_from: there is no model "{text}"', hint=hint)
    source = rows[0]
    if not source["own"] and not source["granted"]:
        raise RefusalError(
            DENIED,
            f'init_from: model "{source["name"]}" belongs to another role',
            detail=f'Role "{source["me"]}" may predict with it, and may not copy its weights.',
            hint=f"Ask its owner for: select tensile_grant_model({literal(source['name'])}, {literal(source['me'])}, "
            "'weights');",
        )
    version = None if source["number"] is None else source
    if version is None:
        _refuse_absent(request, source["name"], number)
    return StartingVersion(model_id=source["model_id"], model=source["name"], number=number, version=version)


def _refuse_absent(request: Json, model: str, number: int | None) -> None:
    """Raise RefusalError, unless the version can come from a job that the request depends on."""
    hint = f"See its versions: select * from tensile_training_info({literal(model)});"  # noqa: S608 - a hint
    if number is not None:
        raise RefusalError(MISSING, f'init_from: model "{model}" has no version {number}', hint=hint)
    if not request.get("depends_on"):
        raise RefusalError(
            NOT_READY,
            f'init_from: model "{model}" has no deployed version',
            detail="A training starts from the version that is deployed when it starts.",
            hint="Deploy a version with tensile_deploy, or name the job that trains it: depends_on => array[...].",
        )


def _listed(names: Sequence[str]) -> str:
    return " and ".join(f'"{name}"' for name in names)


SOURCE = """
select m.model_id, m.name, current_user::text as me,
       m.owner_oid = tensile.current_role_oid() and m.installation = tensile.installation() as own,
       exists (select from tensile.model_privileges as p
                where p.model_id = m.model_id and p.privilege = 'weights' and p.revoked_at is null
                  and p.installation = tensile.installation()
                  and (p.grantee_oid = 0 or pg_has_role(p.grantee_oid, 'usage'))) as granted,
       v.number, v.task::text as task, v.target, v.architecture::text as architecture,
       (v.training -> 'features')::text as features
  from tensile.models as m
  left join tensile.model_versions as v
    on v.model_id = m.model_id and case when $2::int4 is null then v.deployed else v.number = $2 end
 where m.name = $1::text and m.dropped_at is null"""
