"""What a process writes to its log: nothing that a user names can forge a line of it."""

import logging
import subprocess
import sys

import pytest

from indb_tensile.log import LineFormatter, escaped


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('model "m\\n2026-01-01 controller[1] INFO forged"', 'model "m\\n2026-01-01 controller[1] INFO forged"'),
        ("m\n2026-01-01 controller[1] INFO forged", r"m\n2026-01-01 controller[1] INFO forged"),
        ("\x1b[2Jgone\r", r"\x1b[2Jgone\r"),
        ("a\u202eb\u2028c\x85", r"a\u202eb\u2028c\x85"),
        ("as it is: é, 日本\t.", "as it is: é, 日本\t."),
    ],
)
def test_control_characters_are_shown_and_not_obeyed(text: str, shown: str) -> None:
    assert escaped(text) == shown
    record = logging.LogRecord("x", logging.INFO, "x.py", 1, "job of %s", (text,), None)
    assert LineFormatter("%(levelname)s %(message)s").format(record) == f"INFO job of {shown}"


def test_a_traceback_is_indented_so_that_no_line_of_it_looks_like_a_record() -> None:
    source = (
        "import logging\n"
        "from indb_tensile.log import start_log\n"
        "start_log('test')\n"
        "try:\n    raise ValueError('a\\n2026-01-01 controller[1] INFO forged')\n"
        "except ValueError:\n    logging.exception('no')\n"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    first, *others = done.stderr.splitlines()
    assert first.endswith(" ERROR no")
    assert others
    assert all(line.startswith("    ") for line in others)
