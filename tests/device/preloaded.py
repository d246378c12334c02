"""Run the functions of a module in a process that was started with the shim preloaded."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from indb_tensile.device.allocator_shim import LIBRARY, ArenaServing

Answers = dict[str, Any]


def ask(module: str, *arguments: str, preload: bool = True) -> Answers:
    """Return what `answer` printed in a process that ran `module` with these arguments."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"} | ({"LD_PRELOAD": str(LIBRARY)} if preload else {})
    done = subprocess.run(
        (sys.executable, "-W", "error", "-m", module, *arguments),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers: Answers = json.loads(done.stdout.splitlines()[-1])
    return answers | {"stderr": done.stderr}


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
