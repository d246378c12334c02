"""The committed reference pages equal the output of their command."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from indb_tensile.catalog.connection import connect
from indb_tensile.cli.reference import command_page, reference
from indb_tensile.config import setting_rules
from indb_tensile.errors import InvariantError
from indb_tensile.reference import meanings, setting_meanings
from indb_tensile.reference.catalog_pages import catalog_pages
from indb_tensile.reference.option_pages import COMMAND, catalog_settings, page, pages, takes
from indb_tensile.request.early_stop_rules import EARLY_STOP
from indb_tensile.request.hyperparam_rules import HYPERPARAMS
from indb_tensile.request.job_rules import DEPLOY
from indb_tensile.request.network_rules import ARCHITECTURES, LAYERS
from indb_tensile.request.preprocess_rules import PREPROCESS
from indb_tensile.request.split_rules import SPLIT
from indb_tensile.request.task_rules import METRICS
from tests.conftest import Database

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


@pytest.mark.parametrize("name", pages())
def test_a_page_of_options_equals_the_output_of_its_command(name: str) -> None:
    assert (REFERENCE / name).read_text(encoding="utf-8") == pages()[name], f"make it again: {COMMAND}"


def test_the_page_of_the_command_line_equals_the_output_of_its_command() -> None:
    assert (REFERENCE / "cli.md").read_text(encoding="utf-8") == command_page(), f"make it again: {COMMAND}"


@pytest.mark.postgres
def test_the_pages_of_functions_and_views_equal_the_output_of_their_command(database: Database) -> None:
    with connect(database.dsn(), application_name="test") as connection:
        made = catalog_pages(connection)
    assert {name: (REFERENCE / name).read_text(encoding="utf-8") for name in made} == made, (
        f"make it again: {COMMAND}"
    )


def test_the_command_line_prints_the_page() -> None:
    assert CliRunner().invoke(reference).output == page() + "\n"


def test_every_name_is_on_the_page() -> None:
    names = {*HYPERPARAMS, *ARCHITECTURES, *LAYERS, *PREPROCESS, *SPLIT}
    names |= {
        *EARLY_STOP,
        *DEPLOY,
        *(name for of_task in METRICS.values() for name in of_task),
    }
    names |= {rule.name for rule in setting_rules()}
    text = page()
    assert [name for name in sorted(names) if f"`{name}`" not in text] == []


WORDS = {name: words for own in (meanings, setting_meanings) for name, words in vars(own).items() if name.isupper()}


@pytest.mark.parametrize("words", WORDS)
def test_a_meaning_is_a_sentence(words: str) -> None:
    assert [text for text in WORDS[words].values() if not text.endswith(".") or "\n" in text] == []


def test_a_parameter_without_a_meaning_is_reported_with_the_file_to_edit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(HYPERPARAMS, "sharpness", {"type": "number", "default": 1.0})
    with pytest.raises(
        InvariantError, match=r"hyperparams: sharpness have no meaning: .*reference/meanings\.py"
    ) as caught:
        page()
    assert COMMAND in caught.value.message


def test_a_meaning_without_a_parameter_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(meanings.SPLIT, "colour", "A colour.")
    with pytest.raises(InvariantError, match="split: colour are in no table"):
        page()


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ({"type": "integer", "minimum": 1, "maximum": 5, "default": 3}, "integer from 1 to 5"),
        ({"type": "number", "above": 0, "below": 0.5}, "number above 0 below 0.5"),
        ({"type": "numbers", "length": [2, 2]}, "list of numbers, 2 of them"),
        ({"type": "choice", "values": ["a", "b"]}, "`a`, `b`"),
        ({"type": "rule", "values": ["mean"], "kinds": ["text"]}, "number or `mean`; for columns of kind text"),
        ({"type": "text", "pattern": "a+"}, "text; pattern: `a+`"),
    ],
)
def test_the_description_of_a_rule_is_complete(rule: dict[str, Any], text: str) -> None:
    assert takes(rule) == text


@pytest.mark.postgres
def test_the_page_of_the_databases_settings_equals_its_known_settings(database: Database) -> None:
    with database.connect() as admin:
        known = admin.execute(
            "select name, kind, default_value, description from tensile.known_settings()"
        ).fetchall()
    assert catalog_settings() == known
