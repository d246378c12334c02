"""A fake learner. It ends with the exit code `FAKE_LEARNER_CODE`; without that variable it starts a child process,
writes the child's id to the file `FAKE_LEARNER_OUT`, and runs until it is killed.
"""

import os
import signal
import subprocess
from pathlib import Path


def main() -> int:
    code = os.environ.get("FAKE_LEARNER_CODE")
    if code is not None:
        return int(code)
    child = subprocess.Popen(["sleep", "60"])
    Path(os.environ["FAKE_LEARNER_OUT"]).write_text(str(child.pid))
    signal.pause()
    return 0
