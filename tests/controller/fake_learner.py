"""A learner that ends with `FAKE_LEARNER_CODE`; where there is none, it starts a process, says which, and lasts."""

import os
import signal
import subprocess
from pathlib import Path


def main() -> int:
    code = os.environ.get("FAKE_LEARNER_CODE")
    if code is not None:
        return int(code)
    started = subprocess.Popen(["sleep", "60"])
    Path(os.environ["FAKE_LEARNER_OUT"]).write_text(str(started.pid))
    signal.pause()
    return 0
