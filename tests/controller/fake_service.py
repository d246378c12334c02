"""A service that writes its worker's id to the file `FAKE_SERVICE_OUT`; where there is none, it ends with 3."""

import os
import signal
from pathlib import Path


def main() -> int:
    path = os.environ.get("FAKE_SERVICE_OUT")
    if path is None:
        return 3
    with Path(path).open("a") as out:
        out.write(os.environ["TENSILE_WORKER_ID"] + "\n")
    signal.pause()
    return 0
