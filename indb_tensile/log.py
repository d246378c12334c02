"""How our processes write their log to standard error: one record a line, whatever text a record quotes."""

import logging
import re
import sys
from types import TracebackType

_Fault = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]

# Names of models and tables come from users: with a line feed, an escape sequence or a mark of text direction in a
# name, a user could write lines of the log, or commands to the terminal that shows it.
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


class LineFormatter(logging.Formatter):
    """Shows control characters as Python writes them in a string, and indents every line of a traceback."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - its name there
        """The record's line."""
        return escaped(super().formatMessage(record))

    def formatException(self, ei: _Fault) -> str:  # noqa: N802 - its name there
        """The traceback; text after a line feed in an exception's message looks like no record either."""
        return "\n".join("    " + escaped(line) for line in super().formatException(ei).split("\n"))


def start_log(program: str, level: int | str = logging.INFO, *, force: bool = False) -> None:
    """Write records of this level and above to standard error, each with the program's name and process id."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(f"%(asctime)s {program}[%(process)d] %(levelname)s %(message)s"))
    logging.basicConfig(handlers=[handler], level=level, force=force)


def escaped(text: str) -> str:
    """The text on one line."""
    return _UNPRINTABLE.sub(lambda found: ascii(found[0])[1:-1], text)
