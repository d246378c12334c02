"""Starts benchmark processes: one for each network, and one whose tensors the device's memory can serve."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence

from indb_tensile.bench.harness.networks.known_networks import find
from indb_tensile.bench.harness.processes.process_exit import SIGNAL_BASE
from indb_tensile.device.allocator_shim import LIBRARY, ArenaServing, preload_environment
from indb_tensile.errors import DeviceError, RequestError

_AGAIN = "TENSILE_BENCH_PRELOADED"  # set in the process that was restarted with the shim


def run_each_alone(models: Sequence[str], option: str = "--models", known: Callable[[str], object] = find) -> None:
    """Run several networks in a process each, so that none inherits another's state, and exit with the worst code.

    A code above RequestError's (no device, an interrupt, a closed output pipe) skips the remaining networks. A
    RequestError, such as a side that one network does not accept, does not. With one network, return at once.
    """
    for name in models:
        known(name)
    if len(models) < 2:
        return
    worst = 0
    for name in models:
        code = subprocess.run([*_this_command(), option, name], check=False).returncode
        worst = max(worst, code if code >= 0 else SIGNAL_BASE - code)
        if worst > RequestError.exit_code:
            break
    sys.exit(worst)


def preload() -> None:
    """Restart this command with the shim preloaded, a library through which the device's memory can serve tensors.

    Code that does not ask to be served keeps torch's allocator, at the cost of one relaxed load per allocation.
    """
    if _AGAIN not in os.environ:
        sys.stdout.flush()
        os.execve(sys.executable, _this_command(), preload_environment(os.environ) | {_AGAIN: "1"})  # noqa: S606 - same command
    if ArenaServing.private() is None:
        raise DeviceError(f"{LIBRARY} is not preloaded", hint="Build the package with its native library.")


def preload_children() -> None:
    """Have processes that are started from now on preload the shim, which takes itself out of the environment."""
    os.environ.update(preload_environment(os.environ))


def _this_command() -> list[str]:
    """Return the command that started this process, by a module's name or as `tensile bench`."""
    return [sys.executable, *sys.orig_argv[1:]]
