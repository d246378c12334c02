"""The HTML of the pages: one frame for all, which a script of each page fills.

No value of a user enters the HTML. The scripts fetch all values as JSON and set them as texts.
"""

from dataclasses import dataclass
from html import escape
from pathlib import Path

STATIC = Path(__file__).with_name("static")


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One page: its title, its script, and the heading that screen readers announce first."""

    path: str
    title: str
    script: str
    in_menu: bool = False


PAGES = (
    Page(path="/", title="Device", script="device_page.js", in_menu=True),
    Page(path="/jobs", title="Jobs", script="jobs_page.js", in_menu=True),
    Page(path="/jobs/{number:int}", title="Job", script="job_page.js"),
    Page(path="/queue", title="Queue", script="queue_page.js", in_menu=True),
    Page(path="/models", title="Models", script="models_page.js", in_menu=True),
    Page(path="/models/{name:path}", title="Model", script="model_page.js"),
    Page(path="/usage", title="Usage", script="usage_page.js", in_menu=True),
)


def frame(page: Page, *, role: str, database: str, form_token: str) -> str:
    """Return the HTML of a page for this viewer."""
    menu = "".join(
        f'<a href="{entry.path}"{_current(entry, page)}>{entry.title}</a>' for entry in PAGES if entry.in_menu
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="form-token" content="{escape(form_token)}">
<title>{page.title} · tensile</title>
<link rel="icon" href="/static/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="/static/uPlot.min.css">
<link rel="stylesheet" href="/static/style.css">
<script src="/static/uPlot.iife.min.js" defer></script>
<script type="module" src="/static/{page.script}"></script>
</head>
<body>
<a class="skip" href="#main">Skip to the content</a>
<header>
<span class="brand">tensile</span>
<nav aria-label="Pages">{menu}</nav>
<span class="who">role <strong>{escape(role)}</strong> on <strong>{escape(database)}</strong></span>
<button id="theme" type="button">Dark or light</button>
<button id="leave" type="button">Log out</button>
</header>
<main id="main" tabindex="-1">
<h1 id="title">{page.title}</h1>
<p id="trouble" role="alert" hidden></p>
<div id="content"><p class="waiting">Reading from the database …</p></div>
</main>
<div id="said" role="status" aria-live="polite"></div>
<noscript><p>This page needs JavaScript, which it loads from this address only.</p></noscript>
</body>
</html>
"""


def login_page(*, by_password: bool, trouble: str = "") -> str:
    """Return the HTML of the page for a browser that is not logged in."""
    alert = f'<p role="alert" class="trouble">{escape(trouble)}</p>' if trouble else ""
    if by_password:
        content = """<form method="post" action="/login" class="login">
<label>Database role <input name="role" autocomplete="username" required maxlength="63" autofocus></label>
<label>Password
<input name="password" type="password" autocomplete="current-password" required maxlength="1000"></label>
<button type="submit">Log in</button>
</form>
<p>The database server checks the password. This page does not keep it.</p>"""
    else:
        content = """<p>This browser is not logged in. Open the link that <code>tensile web</code> has printed in its
terminal. Each link lets one browser in, and then the next link is printed.</p>"""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Log in · tensile</title>
<link rel="icon" href="/static/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="/static/style.css">
</head>
<body>
<header><span class="brand">tensile</span></header>
<main id="main">
<h1>Log in</h1>
{alert}
{content}
</main>
</body>
</html>
"""


def _current(entry: Page, page: Page) -> str:
    section = entry.path == page.path or (entry.path != "/" and page.path.startswith(entry.path + "/"))
    return ' aria-current="page"' if section else ""
