"""Every command, option and variable that the manual names exists."""

import re
import shlex
from collections.abc import Iterator

import click
import pytest

from indb_tensile.cli.main import tensile
from indb_tensile.config import setting_rules
from tests.docs.pages import Page, all_pages

# docs/results/ records commands in the form in which they ran.
PAGES = [pytest.param(page, id=page.name) for page in all_pages() if not page.name.startswith("docs/results/")]
SHELLS = ("sh", "console")
# Variables of the scripts, and the variables that locate the settings.
OTHERS = {"TENSILE_CONFIG", "TENSILE_PYTHON", "TENSILE_TORCH"}


@pytest.mark.parametrize("page", PAGES)
def test_commands_and_their_options_exist(page: Page) -> None:
    assert [fault for line in _commands(page) if (fault := _fault(line))] == []


@pytest.mark.parametrize("page", PAGES)
def test_variables_belong_to_settings(page: Page) -> None:
    known = OTHERS | {f"TENSILE_{rule.name.upper()}" for rule in setting_rules()}
    assert set(re.findall(r"\bTENSILE_[A-Z_]*[A-Z]\b", page.path.read_text(encoding="utf-8"))) - known == set()


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("tensile up --device cpu --json", None),
        (".venv/bin/tensile plan --graph a.json --policy tensile+", None),
        ("tensile bench step --models vgg16", None),
        ("tensile upp", "tensile upp: there is no command upp"),
        ("tensile up --gpu cpu", "tensile up --gpu cpu: there is no option --gpu"),
        ("tensile bench walk", "tensile bench walk: there is no command walk"),
    ],
)
def test_the_first_unknown_word_of_a_command_is_reported(line: str, fault: str | None) -> None:
    assert _fault(line) == fault


def _commands(page: Page) -> Iterator[str]:
    """Return the lines that call `tensile` in shell blocks and in backticks."""
    lines = [line for block in page.blocks if block.info in SHELLS for line in block.text.splitlines()]
    for line in [*(line.removeprefix("$ ") for line in lines), *page.code]:
        if re.match(r"(\S*/)?tensile [a-z]", line):
            yield line


def _fault(line: str) -> str | None:
    """Return the first unknown word of a line. Placeholders (`JOB_ID`, `…`) and psql's options are skipped.

    If an argument in quotes continues in the next lines, only the words before the argument are checked.
    """
    whole = line.replace("…", "")
    words = shlex.split(whole if whole.count('"') % 2 == 0 else whole.rpartition('"')[0], comments=True)[1:]
    command: click.Command = tensile
    context = click.Context(command)
    while words and isinstance(command, click.Group):
        word = words.pop(0)
        if not word.isidentifier() or word.isupper():
            return None
        inner = command.get_command(context, word)
        if inner is None:
            return f"{line}: there is no command {word}"
        command = inner
    if command.context_settings.get("ignore_unknown_options"):
        return None  # another program's options
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    unknown = [word for word in words if word.startswith("--") and word.partition("=")[0] not in {*known, "--help"}]
    return f"{line}: there is no option {unknown[0]}" if unknown else None
