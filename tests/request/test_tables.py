"""The tables of what a user may ask, and what a worker has for each entry."""

import collections
from pathlib import Path

import indb_tensile
from indb_tensile.job import Task
from indb_tensile.learning.decoding.copy_encodings import of_column
from indb_tensile.learning.networks.layers import _BUILDERS
from indb_tensile.learning.networks.requirements import _STATES
from indb_tensile.learning.storage.columns import ColumnKind
from indb_tensile.request.column_types import KIND_OF_TYPE
from indb_tensile.request.hyperparam_rules import HYPERPARAMS, ONLY_WITH
from indb_tensile.request.network_rules import LAYERS
from indb_tensile.request.split_rules import SPLIT_COLUMN_KINDS
from indb_tensile.request.task_rules import METRICS, TARGET_KINDS, TASKS

PACKAGE = Path(indb_tensile.__file__).parent


def test_a_worker_builds_every_layer_that_a_user_may_name() -> None:
    assert {*_BUILDERS, "residual"} == set(LAYERS)


def test_a_worker_knows_every_optimizer_that_a_user_may_name() -> None:
    assert set(_STATES) == set(HYPERPARAMS["optimizer"]["values"])
    for name, (switch, values) in ONLY_WITH.items():
        assert name in HYPERPARAMS
        assert set(values) <= set(HYPERPARAMS[switch]["values"])


def test_a_worker_reads_every_type_that_a_user_may_name() -> None:
    for name, kind in KIND_OF_TYPE.items():
        encoding = of_column(name, enumerated=False, server_version=150000)
        assert encoding is not None
        assert encoding.kind == kind


def test_kinds_and_tasks_are_those_of_the_worker() -> None:
    kinds = {kind.value for kind in ColumnKind}
    assert set(KIND_OF_TYPE.values()) == kinds
    for table in (TARGET_KINDS, SPLIT_COLUMN_KINDS):
        assert {kind for named in table.values() for kind in named} <= kinds | {"flags", "integers"}
    assert {*TASKS} == {*METRICS} == {*TARGET_KINDS} == {task.value for task in Task}


def test_a_module_has_a_name_that_no_other_module_has() -> None:
    folders = [PACKAGE, PACKAGE.parent / "worker"]
    paths = [path for folder in folders for path in folder.rglob("*.py") if not path.name.startswith("__")]
    # A benchmark is named as its command: `tensile bench capture`.
    names = collections.Counter(path.stem for path in paths if path.parent != PACKAGE / "bench" / "commands")
    assert [name for name, count in names.items() if count > 1] == []
