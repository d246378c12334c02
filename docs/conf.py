"""The configuration of Sphinx; `sh docs/build.sh` builds the manual."""

import tomllib
from pathlib import Path

project = "indb-tensile"
author = "the authors of indb-tensile"
release = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"][
    "version"
]

extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns: list[str] = []
nitpicky = True
# Pygments knows no crontab and no `do $$` block; such text is shown without colours.
suppress_warnings = ["misc.highlighting_failure"]

myst_heading_anchors = 3  # links may name a heading: page.md#a-heading
myst_links_external_new_tab = False

html_theme = "furo"
html_title = f"indb-tensile {release}"
html_show_copyright = False
html_show_sourcelink = False
