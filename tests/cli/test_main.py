"""Check the command `tensile` itself: its imports, its help, and its messages and exit codes for errors."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import psycopg
import pytest

from indb_tensile import error_report, errors
from indb_tensile.cli import main
from tests.cli.conftest import Tensile


@pytest.fixture(autouse=True)
def _pipes_as_before() -> Iterator[None]:
    """Restore the handler of SIGPIPE, which `main` sets for its own process."""
    before = signal.getsignal(signal.SIGPIPE)
    yield
    signal.signal(signal.SIGPIPE, before)


MODULES = sorted({command.target.partition(":")[0] for command in main.COMMANDS.values()})
HEAVY = {"torch", "sqlalchemy", "sklearn", "scipy", "pandas"}


def test_no_command_imports_a_slow_library() -> None:
    """One process imports all commands, so it names the first one that imports a library."""
    program = (
        "import importlib, json, sys\n"
        f"for module in {['main', *MODULES]!r}:\n"
        "    importlib.import_module(f'indb_tensile.cli.{module}')\n"
        f"    print(json.dumps([module, sorted({HEAVY!r} & sys.modules.keys())]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd="/")
    imported = dict(json.loads(line) for line in done.stdout.splitlines())
    assert imported == {module: [] for module in ("main", *MODULES)}


@pytest.mark.parametrize(("option", "first_words"), [("--help", "Usage: tensile "), ("--version", "tensile 0.")])
def test_help_and_version_import_neither_a_driver_nor_the_commands(option: str, first_words: str) -> None:
    program = (
        "import sys\nfrom indb_tensile.cli.main import tensile\n"
        f"tensile.main(['{option}'], 'tensile', standalone_mode=False)\nprint('modules:', *sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd="/")
    assert done.stdout.startswith(first_words)
    modules = set(done.stdout.rpartition("modules:")[2].split())
    assert not {"psycopg", *HEAVY} & {name.partition(".")[0] for name in modules}
    commands = {f"indb_tensile.cli.{module}" for module in MODULES}
    assert not commands & modules


@pytest.mark.parametrize("width", [60, 80, 100])
def test_help_lists_commands_as_click_does(width: int) -> None:
    context = click.Context(main.tensile)
    ours, of_click = (click.HelpFormatter(width=width) for _ in range(2))
    main.tensile.format_commands(context, ours)
    click.Group.format_commands(main.tensile, context, of_click)
    assert ours.getvalue() == of_click.getvalue()


def test_missing_library_is_named() -> None:
    program = "import sys; sys.modules['psycopg'] = None; from indb_tensile.cli.main import main; main(['doctor'])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd="/")
    assert done.returncode == 2
    assert done.stderr.startswith("tensile: this command needs psycopg, which is not installed\n  hint: ")


@pytest.mark.parametrize("name", sorted(main.COMMANDS))
def test_every_command_exists_and_has_a_help_text(name: str) -> None:
    command = main.tensile.get_command(click.Context(main.tensile), name)
    assert command is not None
    assert command.name == name
    assert main.COMMANDS[name].short_help == command.get_short_help_str(1000)
    for subcommand in (command, *(command.commands.values() if isinstance(command, click.Group) else ())):
        assert len(subcommand.get_short_help_str(200)) > 20
        for parameter in subcommand.params:
            assert isinstance(parameter, click.Argument) or (isinstance(parameter, click.Option) and parameter.help)


# `bench` and `graph` pass their arguments on; the others print a document, lines of a log, or the name of a file.
# `controller`, `service`, `psql`, `top` and `web` keep running.
_TEXT_AND_GROUPS = ("bench", "graph", "logs", "model", "reference", "report", "trace")


@pytest.mark.parametrize(
    "name", sorted(set(main.COMMANDS) - {*_TEXT_AND_GROUPS, "controller", "service", "psql", "top", "web"})
)
def test_every_command_that_prints_rows_can_print_json(name: str) -> None:
    command = main.tensile.get_command(click.Context(main.tensile), name)
    assert command is not None
    assert "as_json" in {parameter.name for parameter in command.params}


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["wait"], ["wait", "seven"], ["jobs", "--state", "odd"], ["up", "--capacity", "much"]]
)
def test_invalid_command_line_ends_with_code_2(tensile: Tensile, arguments: list[str]) -> None:
    done = tensile(*arguments)
    assert (done.code, done.out) == (2, "")
    assert "Error: " in done.err


def test_missing_database_is_refused_with_both_remedies(tensile: Tensile) -> None:
    for command in (["jobs"], ["watch"], ["psql"], ["init"], ["controller"], ["predict", "m", "{}"]):
        done = tensile(*command)
        assert done.code == errors.DatabaseError.exit_code
        assert done.err == (
            "tensile: no database is named, and there is no embedded one yet\n"
            "  hint: run tensile up for an embedded one, or name yours with --dsn or libpq's PGHOST, PGDATABASE, "
            "...\n"
        )


def test_unreachable_server_ends_with_a_message_and_code_4(tensile: Tensile) -> None:
    done = tensile("jobs", "--dsn", "host=/nonexistent dbname=x")
    assert done.code == 4
    assert done.err.startswith('tensile: no connection to PostgreSQL at host "/nonexistent"')
    assert "\n  hint: " in done.err


def test_invalid_connection_string_ends_with_code_2(tensile: Tensile) -> None:
    done = tensile("jobs", "--dsn", "quatsch=1")
    assert done.code == 2
    assert 'invalid connection option "quatsch"' in done.err


@pytest.mark.parametrize(
    ("sqlstate", "code"),
    [
        ("22023", 2), ("22000", 2), ("42704", 2), ("42P01", 2), ("0A000", 2), ("53200", 2), ("55000", 2),
        ("54000", 2), ("42501", 3), ("58000", 4), ("08006", 4), ("57P01", 4), ("53300", 4), ("53100", 4),
        ("XX000", 4), (None, 4), ("57P03", 6), ("57014", 7),
    ],
)  # fmt: skip
def test_sqlstates_have_exit_codes(sqlstate: str | None, code: int) -> None:
    assert error_report.exit_code(sqlstate) == code


def test_errors_of_the_package_have_the_exit_code_of_their_sqlstate() -> None:
    kinds = (errors.RequestError, errors.DataError, errors.MissingError, errors.PrivilegeError,
             errors.MemoryLimitError, errors.UnavailableError, errors.DatabaseError)  # fmt: skip
    assert [error_report.exit_code(kind.sqlstate) for kind in kinds] == [kind.exit_code for kind in kinds]


def test_errors_of_the_operating_system_are_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    exit_codes: dict[str, int] = {}
    for error in (
        PermissionError(13, "Permission denied", "/some/file"),
        OSError(28, "No space left on device", "/f"),
    ):
        monkeypatch.setattr(main, "tensile", _failing(error))
        with pytest.raises(SystemExit) as caught:
            main.main([])
        exit_codes[capsys.readouterr().err] = caught.value.code  # type: ignore[assignment]
    assert exit_codes == {
        "tensile: /some/file: Permission denied\n": 3,
        "tensile: /f: No space left on device\n": 71,
    }


def test_lost_connection_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def act() -> None:
        raise psycopg.OperationalError("server closed the connection unexpectedly\n\tThis probably means …")

    monkeypatch.setattr(main, "tensile", click.Command("failing", callback=act))
    with pytest.raises(SystemExit) as caught:
        main.main([])
    assert caught.value.code == 4
    assert capsys.readouterr().err == "tensile: server closed the connection unexpectedly\n"


def _failing(error: Exception) -> click.Command:
    def act() -> None:
        raise error

    return click.Command("failing", callback=act)


def test_bug_ends_with_one_sentence_a_traceback_in_a_private_file_and_code_70(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], open_directory: Path
) -> None:
    state = open_directory / "state"
    monkeypatch.setenv("TENSILE_STATE_DIR", str(state))
    for number in (1, 2):  # the second bug replaces the first one's traceback
        monkeypatch.setattr(main, "tensile", _failing(ValueError(f"odd\nnumber {number}")))
        with pytest.raises(SystemExit) as caught:
            main.main([])
        assert caught.value.code == 70
        assert capsys.readouterr().err == (
            "tensile: the command failed because of a bug in tensile, "
            f"ValueError: odd\\nnumber {number}; the traceback is in {state}/traceback.txt\n"
            "  hint: report the bug with the traceback, which can quote values of your data\n"
        )
        text = (state / "traceback.txt").read_text()
        assert "Traceback (most recent call last)" in text
        assert text.endswith(f"ValueError: odd\nnumber {number}\n")
        assert text.count("ValueError") == 1
    assert (state / "traceback.txt").stat().st_mode & 0o777 == 0o600


def test_bug_prints_its_traceback_if_no_file_can_hold_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], open_directory: Path
) -> None:
    (open_directory / "file").touch()
    monkeypatch.setenv("TENSILE_STATE_DIR", str(open_directory / "file" / "state"))
    monkeypatch.setattr(main, "tensile", _failing(ZeroDivisionError()))
    with pytest.raises(SystemExit) as caught:
        main.main([])
    assert caught.value.code == 70
    err = capsys.readouterr().err
    assert err.startswith("Traceback (most recent call last)")
    assert (
        "\ntensile: the command failed because of a bug in tensile, ZeroDivisionError; the traceback is above\n"
        in err
    )
    assert "\n  detail: the traceback could not be written to the state directory: " in err


def test_closed_pipe_ends_the_command_silently(tensile: Tensile) -> None:
    reader, writer = os.pipe()
    os.close(reader)  # before the command starts, so that it cannot write first
    with os.fdopen(writer), tensile.start("--help", stdout=writer) as process:
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert process.returncode == -signal.SIGPIPE


def test_interrupt_ends_with_a_message_and_code_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def act() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(main, "tensile", click.Command("failing", callback=act))
    with pytest.raises(SystemExit) as caught:
        main.main([])
    assert caught.value.code == 130
    assert capsys.readouterr().err.strip() == "tensile: interrupted"
