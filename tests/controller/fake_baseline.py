"""A fake process of baselines: it takes the rows that wait and ends with the code in them, or runs until it is killed
if they have none.
"""

import os
import signal
from pathlib import Path

from indb_tensile.catalog.baseline_files import BaselineFiles


def main() -> int:
    files = BaselineFiles(Path(os.environ["FAKE_BASELINE_FILES"]))
    (version,) = files.waiting()
    if not (rows := files.take(version)):
        signal.pause()
    return int(rows or b"0")
