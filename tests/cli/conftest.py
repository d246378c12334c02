"""The command as a process of its own, in an environment that names no database, and directories to run it in."""

import contextlib
import io
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from indb_tensile.cli.main import main
from indb_tensile.cluster import Cluster, find_programs, system_user
from tests.conftest import Database

DEADLINE_S = 180.0
COMMAND = (sys.executable, "-c", "from indb_tensile.cli.main import main; main()")
_ONLY_ASK = {"jobs", "job", "train", "wait", "cancel", "models", "predict", "plan", "version", "init", "vacuum"}
_ONLY_ASK |= {"queue", "events", "workers", "devices"}
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to act for other system users")


@dataclass(frozen=True, slots=True)
class Done:
    """How a command ended, and what it wrote."""

    code: int
    out: str
    err: str


@dataclass(frozen=True, slots=True)
class Tensile:
    """Runs the command with a clean environment and these variables."""

    variables: dict[str, str]

    def __call__(self, *arguments: str) -> Done:
        """Run it in a process of its own, unless it only asks the database: here that takes a tenth of the time."""
        return self.here(*arguments) if arguments[0] in _ONLY_ASK else self.apart(*arguments)

    def here(self, *arguments: str) -> Done:
        """Run it in this process, and leave everything as it was."""
        out, err = io.StringIO(), io.StringIO()
        kept, pipe = dict(os.environ), signal.getsignal(signal.SIGPIPE)
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
            os.environ |= kept
            signal.signal(signal.SIGPIPE, pipe)
        assert isinstance(code, int)
        return Done(code, out.getvalue(), err.getvalue())

    def apart(self, *arguments: str) -> Done:
        """Run it as a user does."""
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

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """The running command, its output in pipes."""
        return subprocess.Popen(
            [*COMMAND, *arguments],
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd="/",
            start_new_session=True,
            preexec_fn=_heed_interrupts,
        )

    def environment(self) -> dict[str, str]:
        """What the command sees: nothing of the caller's databases and settings."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "TENSILE_"))}
        return kept | {"PYTHONDONTWRITEBYTECODE": "1", "TENSILE_SURVEY_S": "0"} | self.variables

    def but(self, **variables: str) -> "Tensile":
        """The same with further variables."""
        return Tensile(self.variables | variables)


def _heed_interrupts() -> None:
    """Whoever runs the suite in a shell's background has it ignore interrupts, and children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture
def tensile(place: Path) -> Tensile:
    """The command with a state directory that does not exist yet."""
    return Tensile({"TENSILE_STATE_DIR": str(place / "state")})


@pytest.fixture
def demo(database: Database) -> Tensile:
    """The command as the ordinary role `demo` of a fresh database."""
    return Tensile({"TENSILE_DSN": database.dsn("demo")})


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that every system user may enter; pytest's own are closed to others, and deep."""
    directory = Path(tempfile.mkdtemp(prefix="tensile-cli-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def private_cluster(place: Path) -> Iterator[Cluster]:
    """A cluster of the test's own, not created yet, surely stopped afterwards. Blanks in its path do no harm."""
    cluster = Cluster(directory=place / "a b; c", programs=find_programs(), system_user=system_user())
    yield cluster
    cluster.stop(mode="immediate")


def until(condition: Callable[[], object], what: str) -> None:
    """Poll until the condition holds; fail after the deadline."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited for {what}"
        time.sleep(0.02)


def ended(pid: int) -> bool:
    """Whether the process is gone, or dead and waited for by nobody."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True
