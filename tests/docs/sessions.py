"""Run the SQL of a page with psql, one psql for each block or typed statement, and check the errors that it shows.

- A block ```` ```sql ```` runs as the ordinary role `demo`. `as=superuser` or `as=admin` selects another role.
- A block ```` ```psql ```` is a typed session: its statements follow the prompt `demo=>`. If the page shows an
  `ERROR:` below a statement, the statement must fail with this message and this hint.
- A block marked `apart` is not run, because statements of later pages would fail after it.
"""

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

from tests.conftest import Database
from tests.docs.pages import Block, Page

_USERS = {"superuser": "postgres", "admin": "admin"}
_PROMPT = re.compile(r"^demo=[>#] ?")
_CONTINUED = re.compile(r"^demo[-('\"$][>#] ?")
_ANSWER = re.compile(r"^(ERROR|DETAIL|HINT):  (.*)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Statements for one psql, the line number of the first, and the expected error, if any."""

    user: str
    line: int
    text: str
    error: tuple[str, ...] = ()


def pieces(page: Page) -> Iterator[Piece]:
    """Return the statements of the page's blocks, in their order."""
    for block in page.blocks:
        language, *attributes = block.info.split() or [""]
        if "apart" in attributes:
            continue
        if language == "sql":
            roles = [name.removeprefix("as=") for name in attributes if name.startswith("as=")]
            yield Piece(user=_USERS[roles[0]] if roles else "demo", line=block.line, text=block.text)
        elif language == "psql":
            yield from typed(block)


def run(page: Page, database: Database) -> None:
    """Run the page. An AssertionError names the line at which psql stopped."""
    for piece in pieces(page):
        done = subprocess.run(
            ["psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", database.dsn(piece.user), "-f", "-"],
            input=piece.text,
            capture_output=True,
            text=True,
            check=False,
        )
        place = f"{page.name}:{piece.line}"
        if not piece.error:
            assert done.returncode == 0, f"{place}: {done.stderr}\n{piece.text}"
            continue
        assert done.returncode == 3, f"{place}: this statement should fail:\n{piece.text}\n{done.stdout}"
        for expected in piece.error:
            assert expected in done.stderr, f"{place}: psql printed:\n{done.stderr}"


def typed(block: Block) -> Iterator[Piece]:
    """Return the statements of a session, each with the error that the page shows below it."""
    line = 0
    statement: list[str] = []
    error: list[str] = []
    for number, text in enumerate([*block.text.splitlines(), "demo=> "], start=block.line):
        if _PROMPT.match(text):
            if line:
                yield Piece(user="demo", line=line, text="\n".join(statement), error=tuple(error))
            line, statement, error = number, [_PROMPT.sub("", text)], []
        elif _CONTINUED.match(text):
            statement.append(_CONTINUED.sub("", text))
        elif match := _ANSWER.match(text):
            error.append(f"{match[1]}:  {match[2]}")
