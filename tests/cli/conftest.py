"""Fixtures: the command `tensile` in an environment that names no database, and directories to run it in."""

import contextlib
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from indb_tensile.cli.main import main
from indb_tensile.cluster import Cluster, find_programs, system_user
from tests.conftest import Database
from tests.open_directory import open_directory

DEADLINE_S = 180.0
COMMAND = (sys.executable, "-c", "from indb_tensile.cli.main import main; main()")
_QUICK = {"jobs", "job", "train", "wait", "cancel", "models", "predict", "plan", "version", "init", "vacuum"}
_QUICK |= {"queue", "events", "workers", "devices", "usage", "metrics", "logs", "deploy", "graph"}
_QUICK |= {"pause", "resume", "priority", "retry", "retrain", "doctor"}
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to act for other system users")


@dataclass(frozen=True, slots=True)
class Done:
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str


@dataclass(frozen=True, slots=True)
class Tensile:
    """The command, in an environment without the caller's settings but with these variables."""

    variables: dict[str, str]

    def __call__(self, *arguments: str) -> Done:
        """Run the command in a subprocess; a command that starts no process in this one, which takes a
        tenth of the time.
        """
        run = self.run_in_process if arguments[0] in _QUICK else self.run_in_subprocess
        return run(*arguments)

    def run_in_process(self, *arguments: str) -> Done:
        """Run the command in this process, and restore the environment and the signal handler."""
        out, err = io.StringIO(), io.StringIO()
        environment_before, pipe = dict(os.environ), signal.getsignal(signal.SIGPIPE)
        code: object = 0
        try:
            os.environ.clear()
            os.environ |= self.environment()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                main(arguments)
        except SystemExit as ending:
            code = ending.code or 0
        finally:
            os.environ.clear()
            os.environ |= environment_before
            signal.signal(signal.SIGPIPE, pipe)
        assert isinstance(code, int)
        return Done(code, out.getvalue(), err.getvalue())

    def run_in_subprocess(self, *arguments: str) -> Done:
        """Run the command in a subprocess, like a user does."""
        done = subprocess.run(
            [*COMMAND, *arguments],
            env=self.environment(),
            capture_output=True,
            text=True,
            cwd="/",
            timeout=DEADLINE_S,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return Done(done.returncode, done.stdout, done.stderr)

    def start(self, *arguments: str, stdout: int = subprocess.PIPE) -> subprocess.Popen[str]:
        """Start the command in a subprocess with its output in pipes, or `stdout` as its standard output."""
        return subprocess.Popen(
            [*COMMAND, *arguments],
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            cwd="/",
            start_new_session=True,
            preexec_fn=_enable_interrupts,
        )

    def environment(self) -> dict[str, str]:
        """Return the command's environment, without the caller's databases and settings."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "TENSILE_"))}
        return inherited | {"PYTHONDONTWRITEBYTECODE": "1", "TENSILE_SURVEY_S": "0"} | self.variables

    def with_variables(self, **variables: str) -> "Tensile":
        """Return the same command with further variables."""
        return Tensile(self.variables | variables)


def _enable_interrupts() -> None:
    """Restore the default handler. A suite in the background of a shell ignores SIGINT, and children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture
def tensile(open_directory: Path) -> Tensile:
    """The command with a state directory that does not exist yet."""
    return Tensile({"TENSILE_STATE_DIR": str(open_directory / "state")})


@pytest.fixture
def demo(database: Database) -> Tensile:
    """The command as the ordinary role `demo` of a fresh database."""
    return Tensile({"TENSILE_DSN": database.dsn("demo")})


@pytest.fixture(name="open_directory")
def _open_directory() -> Iterator[Path]:
    """A directory that every system user may enter. It is on a disk: `tensile doctor` warns of a state in memory."""
    with open_directory("suite-cli-", in_memory=False) as directory:
        yield directory


@pytest.fixture
def private_cluster() -> Iterator[Cluster]:
    """A cluster of the test's own, which is not created yet and is stopped afterwards. Its path contains blanks."""
    with open_directory("suite-own-") as directory:
        cluster = Cluster(directory=directory / "a b; c", programs=find_programs(), system_user=system_user())
        yield cluster
        cluster.stop(mode="immediate")


def until(condition: Callable[[], object], event: str) -> None:
    """Poll until the condition is true; fail after the deadline."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited for {event}"
        time.sleep(0.02)


def ended(pid: int) -> bool:
    """Return whether the process has ended, or is a zombie."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True
