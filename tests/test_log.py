"""Check that text named by a user cannot forge a line of a process's log."""

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
def test_control_characters_are_escaped(text: str, shown: str) -> None:
    assert escaped(text) == shown
    record = logging.LogRecord("x", logging.INFO, "x.py", 1, "job of %s", (text,), None)
    assert LineFormatter("%(levelname)s %(message)s").format(record) == f"INFO job of {shown}"


def test_traceback_lines_are_indented() -> None:
    """A record begins in column 1, so no line of an exception's text looks like a record."""
    source = (
        "import logging\n"
        "from indb_tensile.log import start_log\n"
        "start_log('test')\n"
        "try:\n    raise ValueError('a\\n2026-01-01 controller[1] INFO forged')\n"
        "except ValueError:\n    logging.exception('no')\n"
    )
    process = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    record, *traceback_lines = process.stderr.splitlines()
    assert record.endswith(" ERROR no")
    assert traceback_lines
    assert all(line.startswith("    ") for line in traceback_lines)
