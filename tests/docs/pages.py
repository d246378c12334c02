"""Parse the Markdown pages of the repository: headings, links, inline code and fenced blocks."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^( *)(`{3,})(.*)$")
_HEADING = re.compile(r"^#{1,6} +(.*?) *$")
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"(`+)(.+?)\1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block. `line` is the page's line number of its first line."""

    info: str
    line: int
    text: str


@dataclass(frozen=True)
class Page:
    """A Markdown file."""

    path: Path

    @property
    def name(self) -> str:
        """The path relative to the repository's root."""
        return str(self.path.relative_to(ROOT))

    @cached_property
    def _parts(self) -> tuple[list[Block], list[str]]:
        blocks: list[Block] = []
        prose: list[str] = []
        fence, info, indent, first = "", "", "", 0
        content: list[str] = []
        for number, line in enumerate(self.path.read_text(encoding="utf-8").splitlines(), start=1):
            match = _FENCE.match(line)
            if fence and line.strip() == fence:
                blocks.append(Block(info=info, line=first, text="\n".join(content)))
                fence = ""
            elif fence:
                content.append(line.removeprefix(indent))
            elif match:
                indent, fence, info, content, first = match[1], match[2], match[3].strip(), [], number + 1
            else:
                prose.append(line)
        return blocks, prose

    @property
    def blocks(self) -> list[Block]:
        """The fenced blocks, in their order."""
        return self._parts[0]

    @cached_property
    def anchors(self) -> set[str]:
        """The anchors of this page's headings."""
        return {_anchor(match[1]) for line in self._parts[1] if (match := _HEADING.match(line))}

    @cached_property
    def links(self) -> list[str]:
        """The targets of the links, without links to other sites."""
        text = _CODE.sub("", "\n".join(self._parts[1]))
        return [target for target in _LINK.findall(text) if not re.match(r"[a-z]+:", target)]

    @cached_property
    def code(self) -> list[str]:
        """The texts in backticks outside fenced blocks."""
        return [" ".join(match[1].split()) for match in _CODE.findall("\n".join(self._parts[1]))]


def _anchor(heading: str) -> str:
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def all_pages() -> Iterator[Page]:
    """Return the pages of the manual, and README, CONTRIBUTING and CHANGELOG."""
    paths = [
        *sorted(ROOT.glob("docs/**/*.md")),
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    ]
    return (Page(path) for path in paths if path.exists())
