"""A process that tests whether the driver shares GPU memory: it maps regions of another process and writes to them.

Run as `python -m indb_tensile.worker.probe_sharing ORDINAL DESCRIPTOR`; the descriptor is a socket to the broker.
Prints the reason of a failure. Exit codes are those of the controller.
"""

import sys

from indb_tensile.controller.parent_death import die_with_parent
from indb_tensile.device.cuda import CudaRegions
from indb_tensile.errors import TensileError


def main() -> int:
    """Map the regions and write to them. Returns the exit code."""
    die_with_parent()
    ordinal, descriptor = map(int, sys.argv[1:])
    try:
        CudaRegions(ordinal, descriptor).touch()
    except TensileError as error:
        print(error.message)  # noqa: T201 - the controller reads this output
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
