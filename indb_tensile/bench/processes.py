"""Processes of benchmarks: one for each network, and one whose tensors can be served from the device's memory."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence

from indb_tensile.bench.ending import CUT_OFF
from indb_tensile.bench.networks import find
from indb_tensile.errors import DeviceError, RequestError
from indb_tensile.executor.serving import LIBRARY, Serving, preloading

_AGAIN = "TENSILE_BENCH_PRELOADED"  # set in the process that was started with the shim


def alone(models: Sequence[str], option: str = "--models", known: Callable[[str], object] = find) -> None:
    """Several networks run in a process each, so that none has what another left; ends with the worst of their codes.

    Where there is no device for one, it was interrupted, or nobody reads what it prints any more, the others are left
    out; a side that only it does not take leaves them theirs.
    """
    for name in models:
        known(name)
    if len(models) < 2:
        return
    worst = 0
    for name in models:
        code = subprocess.run([*_this_command(), option, name], check=False).returncode
        worst = max(worst, code if code >= 0 else CUT_OFF - code)
        if worst > RequestError.exit_code:
            break
    sys.exit(worst)


def preload() -> None:
    """Go on as a process whose tensors can be served from the arena: this command, started again with the shim.

    Who asks for none of it keeps torch's allocator, at the cost of one relaxed load for each allocation.
    """
    if _AGAIN not in os.environ:
        sys.stdout.flush()
        os.execve(sys.executable, _this_command(), preloading(os.environ) | {_AGAIN: "1"})  # noqa: S606 - ourselves
    if Serving.private() is None:
        raise DeviceError(f"{LIBRARY} is not preloaded", hint="Build the package with its native library.")


def _this_command() -> list[str]:
    """Whatever started this process, by name of a module or as `tensile bench`."""
    return [sys.executable, *sys.orig_argv[1:]]
