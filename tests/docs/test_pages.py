"""Pages are parsed as Markdown."""

from pathlib import Path

from tests.docs.pages import Block, Page

TEXT = """# A heading, with `code`

See [one](other.md#there), [two](https://example.org) and `tests/docs`.

1. An item:

   ```sql as=admin
   select 1;
     select 2;
   ```

```text
# no heading, [no](link.md), `no code`
```
"""


def test_a_page_is_parsed_into_headings_links_code_and_blocks(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(TEXT, encoding="utf-8")
    page = Page(path)
    assert page.blocks == [
        Block(info="sql as=admin", line=8, text="select 1;\n  select 2;"),
        Block(info="text", line=13, text="# no heading, [no](link.md), `no code`"),
    ]
    assert page.links == ["other.md#there"]
    assert page.code == ["code", "tests/docs"]
    assert page.anchors == {"a-heading-with-code"}
