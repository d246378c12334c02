"""Writes the log of a process: each record's message is one line, and traceback lines are indented."""

import logging
import re
import sys
from types import TracebackType

_Fault = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]

# Users choose the names of models and tables. With a line feed, an escape sequence or a text direction mark in a
# name, a user could otherwise forge log lines, or send commands to the terminal that shows the log.
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


class LineFormatter(logging.Formatter):
    """Formats control characters as escape sequences of a Python string, and indents every line of a traceback."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name in logging.Formatter
        """Return the record as one line."""
        return escaped(super().formatMessage(record))

    def formatException(self, ei: _Fault) -> str:  # noqa: N802 - the name in logging.Formatter
        """Return the traceback with every line indented.

        An exception's message may contain line feeds; without the indent, the text after one would look like a
        record.
        """
        return "\n".join("    " + escaped(line) for line in super().formatException(ei).split("\n"))


def start_log(program: str, level: int | str = logging.INFO, *, force: bool = False) -> None:
    """Write records of this level and above to standard error, with the program's name and process id."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(f"%(asctime)s {program}[%(process)d] %(levelname)s %(message)s"))
    logging.basicConfig(handlers=[handler], level=level, force=force)


def escaped(text: str) -> str:
    """Return the text on one line, with unprintable characters as escape sequences."""
    return _UNPRINTABLE.sub(lambda match: ascii(match[0])[1:-1], text)
