"""Run modules in processes that have the shim preloaded and torch imported.

Importing torch takes three seconds of a processor, so one process imports it and each module runs in a fork of this
process (fork_process.py).
"""

import atexit
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from indb_tensile.device.allocator_shim import ArenaServing, preload_environment

Answers = dict[str, Any]


def ask(module: str, *arguments: str) -> Answers:
    """Return what `answer` printed in a process that ran `module` with these arguments."""
    done = run(module, *arguments)
    assert done.returncode == 0, done.stderr
    answers: Answers = json.loads(done.stdout.splitlines()[-1])
    return answers | {"stderr": done.stderr}


def run(
    module: str, *arguments: str, environment: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run `module` as the main module of a new process with these arguments and further variables.

    Returns its output and exit code.
    """
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    with tempfile.TemporaryDirectory() as directory:
        server.stdin.write(json.dumps([module, arguments, dict(environment or {}), directory]) + "\n")
        server.stdin.flush()
        code = server.stdout.readline()
        assert code, "the process that forks has ended"
        out, err = (Path(directory, name).read_text() for name in ("stdout", "stderr"))
    return subprocess.CompletedProcess((module, *arguments), int(code), out, err)


@cache
def _server() -> "subprocess.Popen[str]":
    """Return the process from which modules are forked. It ends when this process closes its input."""
    server = subprocess.Popen(
        (sys.executable, "-W", "error", "-m", "tests.device.fork_process"),
        # A fork copies one thread only, so the process must not have others.
        env=preload_environment(os.environ) | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(_end, server)
    return server


def _end(server: "subprocess.Popen[str]") -> None:
    server.communicate()


def private() -> ArenaServing:
    """Return the serving of a private arena, in such a process."""
    serving = ArenaServing.private()
    assert serving is not None
    return serving


def answer(module: ModuleType) -> None:
    """Call every public function that the module defines, and print what each returns."""
    functions: dict[str, Callable[[], Any]] = {
        name: item
        for name, item in vars(module).items()
        if callable(item) and getattr(item, "__module__", "") == "__main__" and not name.startswith("_")
    }
    answers = {name: function() for name, function in functions.items()}
    print(json.dumps(answers), flush=True)  # noqa: T201 - read by `ask`
