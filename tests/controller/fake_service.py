"""A service that writes its worker's id to the file `FAKE_SERVICE_OUT`; where there is none, it ends with 3.

It says that it answers, then runs until it is killed; where there is `FAKE_SERVICE_MUTE`, it never answers.
"""

import os
import signal
from pathlib import Path

from indb_tensile.controller.service_process import ANSWERING_VARIABLE


def main() -> int:
    path = os.environ.get("FAKE_SERVICE_OUT")
    if path is None:
        return 3
    if "FAKE_SERVICE_MUTE" not in os.environ:
        os.write(int(os.environ[ANSWERING_VARIABLE]), b"1")
    with Path(path).open("a") as out:
        out.write(os.environ["TENSILE_WORKER_ID"] + "\n")
    signal.pause()
    return 0
