"""Run the SQL of a page with psql, one psql until the role changes, and check the errors that the page shows.

- A block ```` ```sql ```` runs as the ordinary role `demo`. `as=superuser` or `as=admin` selects another role.
- A block ```` ```psql ```` is a typed session: its statements follow the prompt `demo=>`. If the page shows an
  `ERROR:` below a statement, the statement must fail with this message and this hint.
- A block marked `apart` is not run, because statements of later pages would fail after it.
"""

import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from tests.conftest import Database
from tests.docs.pages import Block, Page

_USERS = {"superuser": "postgres", "admin": "admin"}
_PROMPT = re.compile(r"^demo=[>#] ?")
_CONTINUED = re.compile(r"^demo[-('\"$][>#] ?")
_BEGIN = "== next statements of the page =="
_FAILED = re.compile(r"^psql:.*?\b(ERROR|FATAL|PANIC|error): ")
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
    """Run the page. An AssertionError names the line of the statements that psql could not run."""
    for user, session in groupby(pieces(page), key=lambda piece: piece.user):
        run_session(page.name, database.dsn(user), list(session))


def run_session(page: str, dsn: str, session: Sequence[Piece]) -> None:
    """Run pieces of one role in one psql, because a new session takes longer than most statements.

    A line that psql writes before each piece divides its messages. A typed statement that fails ends no transaction
    block of its own, so psql rolls back.
    """
    texts = [f"\\warn {_BEGIN}\n{piece.text}\n;\n" + "rollback;\n" * _leaves_transaction(piece) for piece in session]
    done = subprocess.run(
        ["psql", "-X", "-q", "-d", dsn, "-f", "-"], input="".join(texts), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{page}:{session[0].line}: {done.stderr}"
    for piece, messages in zip(session, done.stderr.split(_BEGIN + "\n")[1:], strict=True):
        place = f"{page}:{piece.line}"
        errors = [line for line in messages.splitlines() if _FAILED.match(line)]
        if piece.error:
            assert errors, f"{place}: this statement should fail:\n{piece.text}\n{messages}"
        else:
            assert not errors, f"{place}: {messages}\n{piece.text}"
        for expected in piece.error:
            assert expected in messages, f"{place}: psql printed:\n{messages}"


def _leaves_transaction(piece: Piece) -> bool:
    return bool(piece.error) and piece.text.startswith("begin;")


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
