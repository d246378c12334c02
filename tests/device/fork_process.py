"""A process that imports torch once, and runs each module whose name it reads in a fork of itself.

preloaded.py is the other end: it writes a line with the module, its arguments and variables, and the directory for
its output, and reads the exit code.
"""

import gc
import json
import os
import runpy
import sys
import traceback
from pathlib import Path

import indb_tensile.executor.run.runner  # noqa: F401 - every module needs it, and torch
import tests.executor.conftest
import tests.executor.rewinding  # noqa: F401


def main() -> None:
    gc.freeze()  # a collection in a fork would write to, and so copy, the pages of all imported objects
    for line in sys.stdin:
        module, arguments, environment, directory = json.loads(line)
        pid = os.fork()
        if not pid:
            os.environ |= environment
            _become(module, arguments, Path(directory))
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)  # noqa: T201 - read by preloaded.py


def _become(module: str, arguments: list[str], directory: Path) -> None:
    """Run the module as the main module of this process, and end with its exit code."""
    code = 1
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        os.dup2(os.open(directory / name, os.O_WRONLY | os.O_CREAT), descriptor)
    try:
        sys.argv = [module, *arguments]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except Exception:  # noqa: BLE001 - the one who asked reads the trace and the exit code
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
