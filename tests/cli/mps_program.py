"""Install a double of MPS's control program for tests."""

import os
from pathlib import Path

from indb_tensile.controller.mps import PROGRAM

# The daemon runs while a file is in its pipe directory. The program logs the commands that it gets.
DAEMON = """#!/bin/sh
running="$CUDA_MPS_PIPE_DIRECTORY/control"
if [ "$1" = -d ]; then
    [ -d "$CUDA_MPS_LOG_DIRECTORY" ] || exit 3
    echo -d >>"{log}"
    {starts}
    exit 0
fi
[ -e "$running" ] || exit 1
read command
echo "$command" >>"{log}"
case "$command" in
    quit*) rm "$running" ;;
esac
"""


def install_control_program(directory: Path, starts: str = ': >"$running"') -> dict[str, str]:
    program = directory / PROGRAM
    program.write_text(DAEMON.format(log=directory / "log", starts=starts))
    program.chmod(0o755)
    return {"PATH": f"{directory}:{os.environ['PATH']}"}
