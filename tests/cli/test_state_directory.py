"""Check where the state directory is: below the checkout, or in a fallback directory, and never another user's."""

import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from indb_tensile import state_directory as module
from indb_tensile.errors import DatabaseError
from indb_tensile.state_directory import StateDirectory, fallback_directory, find_state_directory
from tests.cli.conftest import Tensile, as_root

# Finds the state directory of another checkout with that checkout's copy of the package.
PROGRAM = """
import os, sys
# An editable installation adds a finder of its own, which must not find the package.
sys.meta_path = [finder for finder in sys.meta_path if isinstance(finder, type)]
sys.path.insert(0, sys.argv[1])
from indb_tensile.state_directory import find_state_directory
state = find_state_directory(os.environ)
print(state.directory, state.reason, sep="\\n")
"""


@pytest.fixture
def checkout(open_directory: Path) -> Iterator[Path]:
    """Another checkout: copies of the package's Python files, and a pyproject.toml."""
    top = open_directory / "checkout"
    package = Path(module.__file__).parent
    for name in ("cli", "catalog", "request"):
        shutil.copytree(package / name, top / "indb_tensile" / name, ignore=shutil.ignore_patterns("__pycache__"))
    for source in package.glob("*.py"):
        shutil.copy(source, top / "indb_tensile")
    (top / "pyproject.toml").touch()
    (top / "indb_tensile" / "__init__.py").touch()
    yield top
    shutil.rmtree(fallback_directory(top / ".tensile"), ignore_errors=True)


def find_in_checkout(checkout: Path, **variables: str) -> tuple[Path, str]:
    """Return the state directory that the checkout's own package finds, and its reason."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "TENSILE_", "XDG_"))}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(checkout)],
        env=inherited | variables, capture_output=True, text=True, check=True, cwd="/",
    )  # fmt: skip
    directory, reason = done.stdout.removesuffix("\n").split("\n")
    return Path(directory), reason


def test_default_state_directory_is_below_the_checkout(checkout: Path) -> None:
    assert find_in_checkout(checkout) == (checkout / ".tensile", "")


def test_a_settings_file_names_the_directory_from_wherever_a_command_runs(checkout: Path, tmp_path: Path) -> None:
    path = tmp_path / "tensile.toml"
    path.write_text(f'state_dir = "{tmp_path}/state"\n')
    assert find_in_checkout(checkout, TENSILE_CONFIG=str(path)) == (
        tmp_path / "state",
        f"state_dir in {path} says so",
    )
    both = find_in_checkout(checkout, TENSILE_CONFIG=str(path), TENSILE_STATE_DIR=str(tmp_path))
    assert both == (tmp_path, "TENSILE_STATE_DIR says so")


@pytest.mark.nightly
@as_root
def test_checkout_closed_to_the_databases_user_has_a_fallback_directory(checkout: Path) -> None:
    checkout.parent.chmod(0o700)
    directory, reason = find_in_checkout(checkout)
    assert (directory, directory.parent) == (fallback_directory(checkout / ".tensile"), Path("/var/lib"))
    assert reason == f"the system user postgres, who runs PostgreSQL, cannot enter {checkout}"
    assert find_in_checkout(checkout) == (directory, reason)  # the same directory each time

    # A fallback directory with models stays in use when the checkout becomes accessible.
    (directory / "data").mkdir(parents=True)
    checkout.parent.chmod(0o755)
    assert find_in_checkout(checkout) == (directory, "it was created there when .tensile was unsuitable")
    (checkout / ".tensile" / "data").mkdir(parents=True)
    assert find_in_checkout(checkout) == (checkout / ".tensile", "")


@as_root
def test_folder_open_only_to_roots_group_is_closed_to_the_databases_user(checkout: Path) -> None:
    """PostgreSQL is started without root's groups, so the check must not use them either."""
    checkout.parent.chmod(0o710)
    assert find_in_checkout(checkout)[0].parent == Path("/var/lib")


def test_checkout_with_a_long_path_has_a_fallback_directory(checkout: Path) -> None:
    deep = checkout.parent / ("d" * 60) / ("e" * 40)
    deep.parent.mkdir()
    checkout.rename(deep)
    directory, reason = find_in_checkout(deep)
    assert directory == fallback_directory(deep / ".tensile")
    assert reason == f"the path of a socket below {deep}/.tensile would have more than 107 bytes"


def test_directory_of_the_variable_is_used(checkout: Path, open_directory: Path) -> None:
    directory, reason = find_in_checkout(checkout, TENSILE_STATE_DIR=f"{open_directory}/x/../mine")
    assert (directory, reason) == (open_directory / "mine", "TENSILE_STATE_DIR says so")


@as_root
def test_unsuitable_directory_of_the_variable_is_refused(open_directory: Path, tensile: Tensile) -> None:
    (open_directory / "closed").mkdir(mode=0o700)
    done = tensile.with_variables(TENSILE_STATE_DIR=str(open_directory / "closed" / "state")).run_in_process("up")
    assert done.code == 4
    assert f"the system user postgres, who runs PostgreSQL, cannot enter {open_directory}/closed/state" in done.err
    assert "name another directory with TENSILE_STATE_DIR" in done.err
    done = tensile.with_variables(TENSILE_STATE_DIR=str(open_directory / ("d" * 100))).run_in_process("up")
    assert done.code == 4
    assert "would have more than 107 bytes" in done.err


def test_directory_is_open_to_other_users_whatever_the_umask(open_directory: Path) -> None:
    state_directory = StateDirectory(directory=open_directory / "state")
    before = os.umask(0o077)
    try:
        state_directory.make()
        state_directory.make()
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o777 for path in (state_directory.directory, state_directory.service)] == [
        0o755,
        0o755,
    ]
    assert not state_directory.has_cluster()


@as_root
@pytest.mark.parametrize("arguments", [["up"], ["down"], ["down", "--purge"], ["jobs"], ["psql"], ["init"]])
def test_directory_of_another_system_user_is_refused_and_not_changed(
    open_directory: Path, tensile: Tensile, arguments: list[str]
) -> None:
    nobody = pwd.getpwnam("nobody")
    foreign_directory = open_directory / "theirs"
    (foreign_directory / "data").mkdir(parents=True)
    os.chown(foreign_directory, nobody.pw_uid, nobody.pw_gid)
    done = tensile.with_variables(TENSILE_STATE_DIR=str(foreign_directory)).run_in_process(*arguments)
    assert done.code == 3
    assert done.err.startswith(
        f"tensile: the state directory {foreign_directory} belongs to the system user nobody\n  hint: "
    )
    assert [path.name for path in foreign_directory.iterdir()] == ["data"]


def test_symbolic_link_to_an_own_directory_is_accepted(open_directory: Path) -> None:
    (open_directory / "real").mkdir()
    (open_directory / "link").symlink_to(open_directory / "real")
    StateDirectory(directory=open_directory / "link").make()
    assert (open_directory / "real" / "service").is_dir()


def test_file_instead_of_the_directory_is_refused(open_directory: Path, tensile: Tensile) -> None:
    (open_directory / "state").touch()
    done = tensile.run_in_process("up")
    assert done.code in {4, 71}
    assert str(open_directory / "state") in done.err


@pytest.mark.nightly
def test_purge_is_refused_with_foreign_files_in_the_directory(open_directory: Path, tensile: Tensile) -> None:
    state = open_directory / "state"
    StateDirectory(directory=state).make()
    (state / "thesis.tex").touch()
    done = tensile("down", "--purge")
    assert done.code == 2
    assert f"the state directory {state} contains a file that tensile did not create: thesis.tex" in done.err
    (state / "thesis.tex").unlink()
    done = tensile("down", "--purge")
    assert (done.code, done.err) == (0, f"nothing was running\nremoved {state}\n")
    assert not state.exists()
    assert tensile("down", "--purge", "--json").out == '{"stopped": false, "removed": null}\n'


def test_error_names_the_variable_if_no_directory_is_suitable(
    monkeypatch: pytest.MonkeyPatch, open_directory: Path
) -> None:
    monkeypatch.setattr(module, "_OF_ROOT", str(open_directory / ("d" * 100)))
    monkeypatch.setattr(module, "_OF_OTHERS", str(open_directory / ("d" * 100)))
    monkeypatch.setattr(module, "_FOLDER", "x" * 100)
    with pytest.raises(DatabaseError, match="there is no suitable directory for the embedded cluster") as caught:
        find_state_directory({})
    assert "TENSILE_STATE_DIR" in caught.value.hint


def test_fallback_directories_of_two_checkouts_differ() -> None:
    assert fallback_directory(Path("/a/.tensile")) != fallback_directory(Path("/b/.tensile"))
