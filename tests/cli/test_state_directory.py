"""Where the state is kept: below the checkout, unless it cannot be, and never in what is another's."""

import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from indb_tensile.cli import state_directory as module
from indb_tensile.cli.state_directory import StateDirectory, fallback_directory, find_state_directory
from indb_tensile.errors import DatabaseError
from tests.cli.conftest import Tensile, as_root

# Finds the place of a checkout that is elsewhere, by a copy of the package there.
PROGRAM = """
import os, sys
sys.meta_path = [finder for finder in sys.meta_path if isinstance(finder, type)]  # without an editable installation's
sys.path.insert(0, sys.argv[1])
from indb_tensile.cli.state_directory import find_state_directory
found = find_state_directory(os.environ)
print(found.directory, found.reason, sep="\\n")
"""


@pytest.fixture
def checkout(place: Path) -> Iterator[Path]:
    """A checkout of its own: the package's Python files beside a pyproject.toml."""
    top = place / "checkout"
    package = Path(module.__file__).parents[1]
    for name in ("cli", "catalog"):
        shutil.copytree(package / name, top / "indb_tensile" / name, ignore=shutil.ignore_patterns("__pycache__"))
    for source in package.glob("*.py"):
        shutil.copy(source, top / "indb_tensile")
    (top / "pyproject.toml").touch()
    (top / "indb_tensile" / "__init__.py").touch()
    yield top
    shutil.rmtree(fallback_directory(top / ".tensile"), ignore_errors=True)


def found_by(checkout: Path, **variables: str) -> tuple[Path, str]:
    """The place that the checkout's own package finds, and the reason it gives."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "TENSILE_", "XDG_"))}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(checkout)],
        env=kept | variables, capture_output=True, text=True, check=True, cwd="/",
    )  # fmt: skip
    directory, reason = done.stdout.removesuffix("\n").split("\n")
    return Path(directory), reason


def test_the_ordinary_place_is_below_the_checkout(checkout: Path) -> None:
    assert found_by(checkout) == (checkout / ".tensile", "")


def test_a_settings_file_names_the_directory_from_wherever_a_command_runs(checkout: Path, tmp_path: Path) -> None:
    path = tmp_path / "tensile.toml"
    path.write_text(f'state_dir = "{tmp_path}/state"\n')
    assert found_by(checkout, TENSILE_CONFIG=str(path)) == (tmp_path / "state", f"state_dir in {path} says so")
    both = found_by(checkout, TENSILE_CONFIG=str(path), TENSILE_STATE_DIR=str(tmp_path))
    assert both == (tmp_path, "TENSILE_STATE_DIR says so")


@as_root
def test_a_checkout_that_the_databases_user_cannot_enter_has_one_directory_elsewhere(checkout: Path) -> None:
    checkout.parent.chmod(0o700)
    directory, reason = found_by(checkout)
    assert (directory, directory.parent) == (fallback_directory(checkout / ".tensile"), Path("/var/lib"))
    assert reason == f"the system user postgres, who runs PostgreSQL, cannot enter {checkout}"
    assert found_by(checkout) == (directory, reason)  # and always the same one

    # Models that are there stay in use when the checkout is opened later.
    (directory / "data").mkdir(parents=True)
    checkout.parent.chmod(0o755)
    assert found_by(checkout) == (directory, "it was created there when .tensile was unsuitable")
    (checkout / ".tensile" / "data").mkdir(parents=True)
    assert found_by(checkout) == (checkout / ".tensile", "")


@as_root
def test_a_folder_open_to_roots_group_alone_is_closed_to_the_databases_user(checkout: Path) -> None:
    """PostgreSQL is started without root's groups, so the look must be without them too."""
    checkout.parent.chmod(0o710)
    assert found_by(checkout)[0].parent == Path("/var/lib")


def test_a_deep_checkout_has_its_sockets_elsewhere(checkout: Path) -> None:
    deep = checkout.parent / ("d" * 60) / ("e" * 40)
    deep.parent.mkdir()
    checkout.rename(deep)
    directory, reason = found_by(deep)
    assert directory == fallback_directory(deep / ".tensile")
    assert reason == f"the path of a socket below {deep}/.tensile would have more than 107 bytes"


def test_a_named_directory_is_used_wherever_it_is(checkout: Path, place: Path) -> None:
    directory, reason = found_by(checkout, TENSILE_STATE_DIR=f"{place}/x/../mine")
    assert (directory, reason) == (place / "mine", "TENSILE_STATE_DIR says so")


@as_root
def test_a_named_directory_that_does_not_do_is_refused_in_a_sentence(place: Path, tensile: Tensile) -> None:
    (place / "closed").mkdir(mode=0o700)
    done = tensile.but(TENSILE_STATE_DIR=str(place / "closed" / "state"))("up")
    assert done.code == 4
    assert f"the system user postgres, who runs PostgreSQL, cannot enter {place}/closed/state" in done.err
    assert "name another directory with TENSILE_STATE_DIR" in done.err
    done = tensile.but(TENSILE_STATE_DIR=str(place / ("d" * 100)))("up")
    assert done.code == 4
    assert "would have more than 107 bytes" in done.err


def test_the_directory_is_open_to_others_whatever_the_umask(place: Path) -> None:
    made = StateDirectory(directory=place / "state")
    before = os.umask(0o077)
    try:
        made.make()
        made.make()
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o777 for path in (made.directory, made.service)] == [0o755, 0o755]
    assert not made.has_cluster()


@as_root
@pytest.mark.parametrize("arguments", [["up"], ["down"], ["down", "--purge"], ["jobs"], ["psql"], ["init"]])
def test_a_directory_of_another_system_user_is_not_touched(
    place: Path, tensile: Tensile, arguments: list[str]
) -> None:
    nobody = pwd.getpwnam("nobody")
    theirs = place / "theirs"
    (theirs / "data").mkdir(parents=True)
    os.chown(theirs, nobody.pw_uid, nobody.pw_gid)
    done = tensile.but(TENSILE_STATE_DIR=str(theirs))(*arguments)
    assert done.code == 3
    assert done.err.startswith(f"tensile: the state directory {theirs} belongs to the system user nobody\n  hint: ")
    assert [path.name for path in theirs.iterdir()] == ["data"]


def test_a_link_to_a_directory_of_ones_own_is_as_good_as_that(place: Path) -> None:
    (place / "real").mkdir()
    (place / "link").symlink_to(place / "real")
    StateDirectory(directory=place / "link").make()
    assert (place / "real" / "service").is_dir()


def test_a_file_in_the_directorys_place_is_a_sentence(place: Path, tensile: Tensile) -> None:
    (place / "state").touch()
    done = tensile("up")
    assert done.code in {4, 71}
    assert str(place / "state") in done.err


def test_purging_removes_only_what_is_ours(place: Path, tensile: Tensile) -> None:
    state = place / "state"
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


def test_no_place_at_all_names_the_variable(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    monkeypatch.setattr(module, "_OF_ROOT", str(place / ("d" * 100)))
    monkeypatch.setattr(module, "_OF_OTHERS", str(place / ("d" * 100)))
    monkeypatch.setattr(module, "_FOLDER", "x" * 100)
    with pytest.raises(DatabaseError, match="there is no suitable directory for the embedded cluster") as caught:
        find_state_directory({})
    assert "TENSILE_STATE_DIR" in caught.value.hint


def test_the_fallbacks_of_two_checkouts_differ() -> None:
    assert fallback_directory(Path("/a/.tensile")) != fallback_directory(Path("/b/.tensile"))
