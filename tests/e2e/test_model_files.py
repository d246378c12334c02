"""Check that a model in a file predicts what its database predicts, and that nobody exports another's model."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

from indb_tensile.client import Model, Tensile
from indb_tensile.client.model_file import read_model_file
from indb_tensile.errors import MissingError, PrivilegeError, RequestError, UnsupportedError
from indb_tensile.request.network_rules import ARCHITECTURES, ESTIMATORS, FORECAST_ARCHITECTURES
from tests.cli.conftest import Done
from tests.cli.conftest import Tensile as CommandLine
from tests.e2e.conftest import Service

pytestmark = pytest.mark.postgres

TABLE = """
create table every_kind as
  select i as id, i % 17 as whole, (i * 0.37)::real as single, i * 0.11 as exact, i * 0.73::float8 as double,
         i % 3 = 0 as flag, 'kind ' || i % 5 as onehot, 'kind ' || i % 50 as hashed, 'kind ' || i % 4 as ordinal,
         'kind ' || i % 20 as averaged, 'some words about ' || i % 9 || ' things' as tokens,
         date '2020-01-01' + i as day, timestamptz '2021-03-04 05:06:07.89+02' + i * interval '7 hours' as moment,
         time '00:00:01' + i * interval '11 minutes' as clock, i * interval '90 minutes' as span,
         array[i % 7, i % 11]::real[] as vector, array['a' || i % 3, 'b' || i % 4] as labels,
         jsonb_build_object('size', i % 13, 'inner', jsonb_build_object('name', 'n' || i % 3)) as document,
         case when i % 8 <> 0 then i * 1.5 end as missing,
         case when (i % 17) + (i % 3) * 5 > 12 then 'it''s "high"' else 'low' end as y,
         (i % 17) * 2.5 + i % 3 as amount
    from generate_series(1, 1000) as i;
grant select on every_kind to tensile_reader"""
PREPROCESS: dict[str, Any] = {
    "encode": {"hashed": "hash", "ordinal": "ordinal", "averaged": "target"},
    "missing": {"missing": "indicator"},
    "scale": {"double": "log", "exact": "quantile"},
    "paths": {"document": {"size": "number", "inner.name": "text"}},
}


@pytest.fixture(scope="module")
def client(running: Service) -> Iterator[Tensile]:
    """A client of the user whose table has a column of every kind."""
    with running.database.connect("demo") as connection:
        connection.execute(TABLE)
    with Tensile(running.database.dsn("demo")) as tensile:
        yield tensile


@pytest.fixture(scope="module")
def filed(client: Tensile) -> str:
    """The name of a trained model, which no test changes."""
    trained(client, "filed", "y", {"type": "mlp", "hidden": [16]})
    return "filed"


def trained(client: Tensile, model: str, target: str, architecture: Any, **options: Any) -> None:
    others = [name for name in ("y", "amount", "id") if name != target]
    settings: dict[str, Any] = {"exclude": others, "preprocess": PREPROCESS} | options
    if not (isinstance(architecture, str) and architecture in ESTIMATORS):
        settings.setdefault("hyperparams", {"epochs": 1, "batch_size": 128})
    client.train(model, "every_kind", target=target, architecture=architecture, **settings).wait(400)


def check_equal(client: Tensile, running: Service, model: str, path: Path, table: str = "every_kind") -> None:
    """Compare 1,000 predictions of a file with those of the database."""
    own = Model.load(client.export_model(model, path))
    answers = own.predict(own_rows(running, table=table))
    shares = own.task != "regression"
    expected = sorted(client.predict_rows(model, table, keys=["id"], probabilities=shares), key=by_id)
    assert len(answers) == len(expected) == 1000
    if own.task == "regression":
        values = np.array([row.value for row in answers])
        assert values == pytest.approx(np.array([row.value for row in expected]), rel=1e-5, abs=1e-5)
        return
    assert [row.label for row in answers] == [row.label for row in expected]
    for row, known in zip(answers, expected, strict=True):
        assert row.probabilities == pytest.approx(known.probabilities, abs=1e-6)


def by_id(row: Any) -> int:
    return int(row.key["id"])


def test_a_file_predicts_as_the_database_for_every_kind_of_column(
    client: Tensile, filed: str, running: Service, tmp_path: Path
) -> None:
    check_equal(client, running, filed, tmp_path / "filed.safetensors")
    own = Model.load(tmp_path / "filed.safetensors")
    assert (own.name, own.version, own.task, own.target) == ("filed", 1, "classification", "y")
    assert own.labels == ('it\'s "high"', "low")
    assert own.metrics["accuracy"] > 0.4
    with running.database.connect("demo") as connection:
        cursor = connection.execute("select * from every_kind order by id limit 50")
        assert cursor.description is not None
        frame = pandas.DataFrame(cursor.fetchall(), columns=[column.name for column in cursor.description])
    known = [row.label for row in own.predict(frame.to_dict("records"))]
    assert own.predict(frame, probabilities=True)["prediction"].tolist() == known
    assert own.predict_proba(frame).shape == (50, 2)


@pytest.mark.nightly
def test_a_process_without_a_database_predicts_from_a_file(
    client: Tensile, filed: str, running: Service, tmp_path: Path
) -> None:
    path = client.export_model(filed, tmp_path / "taken.safetensors")
    known = [row.label for row in Model.load(path).predict(own_rows(running, 50))]
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "TENSILE"))}
    command = [sys.executable, "-c", FRESH_PROCESS, str(path)]
    rows = json.dumps(own_rows(running, 50))
    alone = subprocess.run(command, input=rows, env=outside, capture_output=True, text=True, check=True)
    assert json.loads(alone.stdout) == {"psycopg": False, "labels": known}


FRESH_PROCESS = """
import json, sys
from indb_tensile.client import Model
model = Model.load(sys.argv[1])
labels = [row.label for row in model.predict(json.load(sys.stdin))]
print(json.dumps({"psycopg": "psycopg" in sys.modules, "labels": labels}))
"""


def own_rows(running: Service, count: int = 1000, table: str = "every_kind") -> list[dict[str, Any]]:
    """Return the first rows of a table as PostgreSQL's JSON."""
    statement = f"select to_jsonb(e) from {table} as e order by id limit %s"
    with running.database.connect("demo") as connection:
        return [row for (row,) in connection.execute(statement.encode(), (count,)).fetchall()]


def command_line(running: Service, *arguments: str) -> Done:
    """Run the command as role demo, in this process, which has imported torch already."""
    return CommandLine({"TENSILE_DSN": running.database.dsn("demo")}).run_in_process(*arguments)


def test_only_the_owner_and_who_has_the_weights_export(
    client: Tensile, filed: str, running: Service, tmp_path: Path
) -> None:
    path = tmp_path / "filed.safetensors"
    with Tensile(running.database.dsn("bob")) as bob:
        with pytest.raises(MissingError, match='there is no model "filed"'):
            bob.export_model(filed, path)
        client.grant(filed, "bob")
        with pytest.raises(PrivilegeError, match="has not granted its weights") as refused:
            bob.export_model(filed, path)
        assert "tensile_grant_model" in refused.value.hint
        assert not path.exists()
        client.grant(filed, "bob", privilege="weights")
        assert Model.load(Model.export(filed, path, database=bob)).target == "y"
        client.revoke(filed, "bob")
        with pytest.raises(MissingError):
            bob.export_model(filed, path)
    assert list(tmp_path.iterdir()) == [path]
    target = (str(tmp_path / "again.safetensors"), "--json")
    done = command_line(running, "models", "export", filed, *target)
    assert (done.code, json.loads(done.out)["size_bytes"]) == (0, path.stat().st_size)
    assert (tmp_path / "again.safetensors").read_bytes() == path.read_bytes()
    done = command_line(running, "models", "export", "nothing", *target)
    assert (done.code, done.err) == (
        2,
        'tensile: there is no model "nothing"\n  hint: See your models: select * from tensile.model_list;\n',
    )
    with pytest.raises(MissingError, match='model "filed" has no version 9'):
        client.export_model(filed, path, version=9)
    with pytest.raises(RequestError, match=r'has the suffix "\.pkl"'):
        client.export_model(filed, tmp_path / "filed.pkl")


@pytest.mark.nightly
def test_the_network_alone_is_exported_for_torch(client: Tensile, running: Service, tmp_path: Path) -> None:
    import torch

    trained(client, "networked", "y", {"type": "mlp", "hidden": [8]})
    own = Model.load(client.export_model("networked", tmp_path / "n.safetensors"))
    client.export_model("networked", tmp_path / "n.pt2")
    program = torch.export.load(tmp_path / "n.pt2")
    encoded = own.encode(own_rows(running))
    with torch.no_grad():
        assert (program.module()(torch.from_numpy(encoded)).numpy() == own.outputs(encoded)).all()
    with pytest.raises(UnsupportedError, match=r"only \.safetensors files are loaded"):
        Model.load(tmp_path / "n.pt2")
    trained(client, "leafy", "y", "linear", hyperparams={})
    with pytest.raises(UnsupportedError, match="a linear model is no network"):
        client.export_model("leafy", tmp_path / "l.pt2")
    check_equal(client, running, "leafy", tmp_path / "l.safetensors")


def test_an_imported_file_predicts_as_the_model_that_it_was_exported_from(
    client: Tensile, filed: str, running: Service, tmp_path: Path
) -> None:
    path = client.export_model(filed, tmp_path / "o.safetensors")
    done = command_line(running, "model", "import", str(path), "--name", "copied", "--json")
    assert (done.code, json.loads(done.out), done.err) == (0, {"model": "copied", "version": 1}, "")
    check_same_predictions(client, filed, "copied", tmp_path)
    assert client.import_model(path, "copied") == 2
    assert [(own["version"], own["deployed"]) for own in client.versions("copied")] == [(2, False), (1, True)]
    refused = pytest.raises(PrivilegeError, match='model "copied" belongs to another role')
    with Tensile(running.database.dsn("bob")) as bob, refused:
        bob.import_model(path, "copied")
    (tmp_path / "o.pt2").write_bytes(path.read_bytes())
    with pytest.raises(UnsupportedError, match=r"only \.safetensors files are loaded"):
        client.import_model(tmp_path / "o.pt2", "copied")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(RequestError, match="is no model of indb-tensile: its tensors have"):
        client.import_model(path, "copied")
    assert len(client.versions("copied")) == 2


@pytest.mark.nightly
def test_an_imported_version_is_deployed_when_asked_and_others_import_under_their_own_names(
    client: Tensile, filed: str, running: Service, tmp_path: Path
) -> None:
    path = client.export_model(filed, tmp_path / "o.safetensors")
    assert [client.import_model(path, "asked", deploy=deploy) for deploy in (False, True)] == [1, 2]
    assert [(own["version"], own["deployed"]) for own in client.versions("asked")] == [(2, True), (1, False)]
    check_same_predictions(client, filed, "asked", tmp_path)
    with Tensile(running.database.dsn("bob")) as bob:
        assert bob.import_model(path, "of bob") == 1


def check_same_predictions(
    client: Tensile, model: str, other: str, directory: Path, table: str = "every_kind"
) -> None:
    """Check that two models have the same weights and preprocessing to the last bit, and the same 1,000 predictions.

    Numbers may differ in the last digits, since the time decides how many rows are computed together.
    """
    expected, got = (sorted(client.predict_rows(name, table, keys=["id"]), key=by_id) for name in (model, other))
    assert len(got) == 1000
    assert [row.label for row in got] == [row.label for row in expected]
    if expected[0].value is not None:
        assert [row.value for row in got] == pytest.approx([row.value for row in expected], rel=1e-6, abs=1e-6)
    first, second = (
        read_model_file(client.export_model(name, directory / f"{place}.safetensors"))
        for place, name in enumerate((model, other))
    )
    assert second.weights == first.weights
    assert second.recipe | {"model": model, "number": 1, "transform": None} == first.recipe | {
        "number": 1,
        "transform": None,
    }


# What each architecture of the registry is trained on: a table and its features, or why there is no file.
NO_FILE = dict.fromkeys(FORECAST_ARCHITECTURES, "which has no file") | {
    "autoencoder": "which has no file",
    "two_towers": "which has no file",
    "pretrained": "needs a registered network",
    "timm": "needs timm, which the environment of the suite lacks",
}
OF_IMAGES: dict[str, Any] = {
    "cnn": {"type": "cnn", "channels": [4]},
    "resnet": {"type": "resnet", "stages": [1], "width": 4},
    "vit": {"type": "vit"},
    "layers": {"type": "layers", "layers": [{"type": "flatten"}, {"type": "relu"}, {"type": "linear"}]},
}
OF_TABLES = tuple(kind for kind in ARCHITECTURES if kind not in NO_FILE and kind not in OF_IMAGES)
IMAGES = """
create table pictures as
  select i as id, (select array_agg(row_of) from (
             select array_agg(((i * 7 + r * 3 + c) % 11)::real) as row_of
               from generate_series(1, 8) as r, generate_series(1, 8) as c group by r order by r) as t) as picture,
         case when i % 11 > 5 then 'high' else 'low' end as y, (i % 11) * 2.5 as amount
    from generate_series(1, 1000) as i;
grant select on pictures to tensile_reader"""


@pytest.mark.nightly
@pytest.mark.parametrize("target", ["y", "amount"])
@pytest.mark.parametrize("kind", [*OF_TABLES, *OF_IMAGES])
def test_every_architecture_predicts_the_same_from_files_of_every_format(
    client: Tensile, running: Service, tmp_path: Path, kind: str, target: str
) -> None:
    import torch
    from onnx.reference import ReferenceEvaluator

    model, table = f"{kind} of {target}", "every_kind"
    if kind in OF_IMAGES:
        table = "pictures"
        with running.database.connect("demo") as demo:
            demo.execute("drop table if exists pictures")
            demo.execute(IMAGES)
        hyperparams = {"epochs": 1, "batch_size": 128}
        chosen = {"features": ["picture"], "architecture": OF_IMAGES[kind], "hyperparams": hyperparams}
        client.train(model, table, target=target, **chosen).wait(400)
    else:
        trained(client, model, target, kind)
    check_equal(client, running, model, tmp_path / "m.safetensors", table)
    importer = "admin" if kind in ESTIMATORS else "demo"
    with Tensile(running.database.dsn(importer)) as other:
        if kind in ESTIMATORS:
            with pytest.raises(PrivilegeError, match="only members of tensile_admin may import"):
                client.import_model(tmp_path / "m.safetensors", f"copy of {model}")
        assert other.import_model(tmp_path / "m.safetensors", f"copy of {model}") == 1
        if importer != "demo":
            other.grant(f"copy of {model}", "demo")
            other.grant(f"copy of {model}", "demo", privilege="weights")
    check_same_predictions(client, model, f"copy of {model}", tmp_path, table)
    if kind in ESTIMATORS:
        return
    own = Model.load(tmp_path / "m.safetensors")
    client.export_model(model, tmp_path / "m.pt2")
    encoded = own.encode(own_rows(running, table=table))
    with torch.no_grad():
        again = torch.export.load(tmp_path / "m.pt2").module()(torch.from_numpy(encoded)).numpy()
    assert (again == own.outputs(encoded)).all()
    client.export_model(model, tmp_path / "m.onnx")
    # The format's own evaluator, which follows the definition of each operator; it needs no runtime.
    session = ReferenceEvaluator(str(tmp_path / "m.onnx"))
    outputs = session.run(None, {session.input_names[0]: encoded})[0]
    assert outputs == pytest.approx(own.outputs(encoded), abs=1e-5)
