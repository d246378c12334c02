"""Check the body of the bridge function, which contains the packages `sql_api` and `request` as literals."""

import ast
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from indb_tensile import sql_api
from indb_tensile.catalog import install
from indb_tensile.catalog.bridge_sources import bridge_digest, carried_paths
from tests.sql.fakes import FakeService, result
from tests.sql_api.fakes import DEPLOYED, FakePlpy, address_of, plpy_with

Bridge = Callable[..., Any]
FOLDER = Path(sql_api.__file__).parent
PACKAGE = FOLDER.parent
PREFIX = "tensile_bridge_"
CARRIED = sorted(carried_paths())
SLOW = {
    "dataclasses",
    "inspect",
    "pathlib",
}  # every new session would need ten milliseconds for them in its first call


def bridge_body() -> str:
    """Return the body as PL/Python makes a function of it: each line is indented, and the arguments are globals."""
    text = install.script(extension=False).split("$bridge$")[1]
    return "def procedure():" + text.replace("\n", "\n\t")


def bridge(session: dict[str, Any], plpy: FakePlpy, text: str) -> Bridge:
    """Return the function in a session whose GD is `session`."""
    names: dict[str, Any] = {"SD": {}, "GD": session, "plpy": plpy}
    exec(text, names)

    def call(verb: str, request: str, rows: list[str] | None = None) -> Any:
        names.update(verb=verb, request=request, rows=rows)
        return json.loads(names["procedure"]())

    return call


@pytest.fixture(autouse=True)
def _leave_no_package() -> Iterator[None]:
    yield
    for name in [name for name in sys.modules if name.startswith(PREFIX)]:
        del sys.modules[name]


@pytest.mark.parametrize("path", CARRIED, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_module_imports_only_what_the_bridge_carries_and_the_standard_library(path: Path) -> None:
    allowed = sys.stdlib_module_names - SLOW
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            assert {alias.name.partition(".")[0] for alias in node.names} <= allowed
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            assert (node.module or "").partition(".")[0] in allowed
        elif isinstance(node, ast.ImportFrom):
            folder = path.parents[node.level - 1]
            for name in [node.module] if node.module else [alias.name for alias in node.names]:
                assert folder.joinpath(*name.split(".")).with_suffix(".py") in CARRIED


def test_interpreter_without_packages_runs_the_bridge() -> None:
    names = "SD, GD, plpy, verb, request, rows = {}, {}, None, 'nothing', None, None"
    program = f"{bridge_body()}\n{names}\nprint(procedure())"

    # -I -S: no environment, no current directory, no site-packages. The program is read from stdin, because an
    # argument has at most 128 kB.
    command = [sys.executable, "-I", "-S", "-"]
    completed = subprocess.run(command, input=program, capture_output=True, text=True, check=True)

    assert json.loads(completed.stdout)["error"]["message"] == "the bridge has no such verb"


def test_bridge_behaves_like_the_package() -> None:
    direct_plpy, bridge_plpy = plpy_with(), plpy_with()
    request = {"model": "m", "relation": 5, "hyperparams": {"epochs": 2}}

    answer = bridge({}, bridge_plpy, bridge_body())("train", json.dumps(request))

    assert answer == sql_api.handle(direct_plpy, "train", request) == {"ok": True, "result": {"job": 7}}
    assert bridge_plpy.executed == direct_plpy.executed
    assert bridge_plpy.notices == direct_plpy.notices


def test_session_compiles_each_module_once_when_it_is_needed_and_adds_no_finder() -> None:
    session: dict[str, Any] = {}
    finders = list(sys.meta_path)
    bridge(session, plpy_with(), bridge_body())("nothing", "{}")
    ((name, package),) = _packages(session).items()

    bridge(session, plpy_with(), bridge_body())("nothing", "{}")  # the function was created again unchanged

    assert _packages(session) == {name: package}
    assert sys.modules[f"{name}.sql_api"] is package
    assert sys.meta_path == finders
    assert _imported(name) == {
        *("", ".errors", ".request", ".request.json_text", ".sql_api", ".sql_api.refusals", ".sql_api.spi")
    }
    for verb in sql_api.VERBS:
        bridge(session, plpy_with(), bridge_body())(verb, "{}")
    paths = (path.relative_to(PACKAGE).with_suffix("") for path in CARRIED)
    modules = {"", *("." + str(path).replace("/", ".").removesuffix(".__init__") for path in paths)}
    of_other_encodings = {".sql_api.ascii_statements", ".sql_api.invalid_texts", ".request.invalid_text_hint"}
    assert _imported(name) == modules - of_other_encodings  # which a database in UTF-8 needs not
    assert sys.meta_path == finders


def test_a_session_that_only_predicts_compiles_no_module_of_trainings_or_of_computed_features() -> None:
    session: dict[str, Any] = {}
    bridge(session, plpy_with(), bridge_body())("predict", "{}")
    trainings = {".sql_api.training_request", ".request.network_rules"}
    computed_features = {".sql_api.feature_computation", ".request.transform_rules"}
    assert not _imported(next(iter(_packages(session)))) & (trainings | computed_features)


def _packages(session: dict[str, Any]) -> dict[str, Any]:
    """Return the packages by their names. The session also has the package in use, for tensile.prediction_pages."""
    return {name: package for name, package in session.items() if name.startswith(PREFIX)}


def _imported(package: str) -> set[str]:
    """Return the modules of the package that the session has imported, without the package's name."""
    return {module.removeprefix(package) for module in sys.modules if module.startswith(package)}


def test_two_versions_in_one_session_are_independent() -> None:
    session: dict[str, Any] = {}
    old = bridge(session, plpy_with(), bridge_body())
    old("nothing", "{}")
    body = (
        bridge_body().replace("not a list of column names", "not names").replace(bridge_digest(), "0123456789abcdef")
    )
    new = bridge(session, plpy_with(), body)
    request = json.dumps({"model": "m", "relation": 5, "features": 7})

    messages = [call("train", request)["error"]["message"] for call in (old, new, old)]

    before = "features is 7, not a list of column names"
    assert messages == [before, "features is 7, not names", before]
    assert len(_packages(session)) == 2


def test_fault_shows_source_lines_of_its_traceback() -> None:
    fake = FakeService(lambda _: result({}))
    session: dict[str, Any] = {}
    try:
        call = bridge(session, plpy_with(services=[address_of(fake)], version=[DEPLOYED]), bridge_body())
        error = call("predict", '{"model": "m"}', ["1"])["error"]
    finally:
        fake.close()
        for package in session.values():
            package.service_connection._connection.close()

    (name,) = _packages(session)
    source = (FOLDER / "predictions.py").read_text(encoding="utf-8").splitlines()
    line = next(number for number, text in enumerate(source, start=1) if 'answer["values"]' in text)
    frame = f'File "{name}/sql_api/predictions.py", line {line}, in predict\n    {source[line - 1].strip()}'
    assert frame in error["detail"]
    assert (error["sqlstate"], error["message"]) == ("XX000", "the bridge failed: KeyError: 'values'")
