"""A fake service. It appends its worker's id to the file `FAKE_SERVICE_OUT`; without that variable it ends with 3.

It reports that it answers requests, then runs until it is killed. With `FAKE_SERVICE_MUTE` it reports nothing.
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
