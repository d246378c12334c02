"""Check what lies in the package for browsers: nothing from another host, and no way to run a text as code."""

import hashlib
import re
from pathlib import Path

import pytest

from indb_tensile.web.pages import PAGES, STATIC, frame, login_page

# uPlot 1.6.32, as published in the npm registry.
_DIGESTS = {
    "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
}
_OWN = sorted(path.name for path in STATIC.iterdir() if not path.name.startswith("uPlot"))


@pytest.mark.parametrize("name", sorted(_DIGESTS))
def test_the_library_is_the_published_one(name: str) -> None:
    assert hashlib.sha256((STATIC / name).read_bytes()).hexdigest() == _DIGESTS[name]


def test_the_library_has_its_licence() -> None:
    assert "MIT" in (STATIC / "uPlot.LICENSE").read_text()


@pytest.mark.parametrize("name", _OWN)
def test_no_file_names_another_host_or_turns_texts_into_code(name: str) -> None:
    text = (STATIC / name).read_text()
    hosts = set(re.findall(r"https?://[^\s\"'`)]+", text)) - {"http://www.w3.org/2000/svg"}
    dangers = re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc", text)

    assert (hosts, dangers) == (set(), [])


def test_every_page_has_its_script_and_escapes_names() -> None:
    for page in PAGES:
        html = frame(page, role="<b>", database="&\"'", form_token="t")
        assert (STATIC / page.script).is_file()
        assert "<b>" not in html.replace("<body>", "")
        assert "&lt;b&gt;" in html
        assert " style=" not in html
        assert " onclick" not in html
    assert "<i>" not in login_page(by_password=True, trouble="<i>")


@pytest.mark.parametrize("script", sorted(STATIC.glob("*_page.js")), ids=lambda path: path.name)
def test_no_script_declares_a_name_that_it_imports(script: Path) -> None:
    """Such a script is a syntax error, and its page would stay empty."""
    text = script.read_text()
    imported = {name.strip() for names in re.findall(r"^import \{([^}]*)\}", text, re.M) for name in names.split(",")}
    declared = re.findall(r"^(?:async )?(?:function|const|let|class) (\w+)", text, re.M)
    assert len(declared) == len(set(declared))
    assert imported.isdisjoint(declared)
