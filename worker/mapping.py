"""A process that takes a few regions of a GPU from another and writes to them: whether the driver shares memory.

Run as `python -m indb_tensile.worker.mapping ORDINAL DESCRIPTOR`, the descriptor a socket to the broker. Prints why
not; exit codes as the controller's.
"""

import sys

from indb_tensile.errors import TensileError
from indb_tensile.executor.cuda import CudaRegions

from .serving.processes import die_with_parent


def main() -> int:
    """Map and write; return the exit code."""
    die_with_parent()
    ordinal, descriptor = map(int, sys.argv[1:])
    try:
        CudaRegions(ordinal, descriptor).touch()
    except TensileError as error:
        print(error.message)  # noqa: T201 - what the controller reads
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
