"""Let the sessions of a test server begin with Python and with the bridge's modules compiled.

Each session that calls the bridge starts Python, imports what the bridge needs of the standard library, and compiles
the bridge's modules, which takes a tenth of a second of a processor, and the suite opens more than a thousand
sessions. So a test process compiles the modules once, and its server's Python starts with a module `sitecustomize`
that answers `compile` from these. Any other source is compiled as ever, and so is everything if the server's Python
reads other bytecode. Where that is possible, the server itself starts this Python (tests/native/started_python.c),
and its sessions, which it forks, inherit it.

With the variable SUITE_PLAIN_SESSIONS, which tests/nightly.sh sets, sessions are those of any other server.
"""

import ast
import marshal
import os
import shutil
import subprocess
from collections.abc import Iterator
from importlib.util import MAGIC_NUMBER
from pathlib import Path

from indb_tensile.catalog.bridge_sources import bridge_digest, bridge_sources
from indb_tensile.cluster import find_programs

PLAIN = "SUITE_PLAIN_SESSIONS"
_STARTED_PYTHON = Path(__file__).parent / "native" / "started_python.c"
_MAJORS = range(15, 18)  # the versions of PostgreSQL that started_python.c is written for

# The server's first process runs it. PL/Python adds its module `plpy` to the built-in modules of each session, whose
# names Python listed when it started.
_IMPORTS = """
import sys
sys.builtin_module_names += ("plpy",)
import importlib.machinery, {names}
"""

# It imports nothing that Python has not loaded by itself, because every session runs it.
_SITE = """
import builtins, marshal
from _frozen_importlib_external import MAGIC_NUMBER

def _take_over():
    with open(__file__.replace("sitecustomize.py", "bridge.marshal"), "rb") as file:
        magic, known = marshal.load(file)
    if magic != MAGIC_NUMBER:
        return
    compile_anew = builtins.compile

    def compile(source, filename, mode, *more, **named):
        if filename in known and mode == "exec" and not more and not named:
            text, code = known[filename]
            if text == source:
                return marshal.loads(code)
        return compile_anew(source, filename, mode, *more, **named)

    builtins.compile = compile

_take_over()
"""


def server_environment(directory: Path) -> dict[str, str]:
    """Write the compiled modules into a new folder of `directory`. Returns variables for the server."""
    if os.environ.get(PLAIN):
        return {}
    folder = directory / "compiled-bridge"
    folder.mkdir()
    folder.chmod(0o755)
    sources: dict[str, str] = ast.literal_eval(bridge_sources())
    package = f"tensile_bridge_{bridge_digest()}"  # as sql/40_bridge.sql says
    known = {}
    for name, source in sources.items():
        path = (package + name).replace(".", "/") + ".py"
        known[path] = (source, marshal.dumps(compile(source, path, "exec", dont_inherit=True)))
    (folder / "bridge.marshal").write_bytes(marshal.dumps((MAGIC_NUMBER, known)))
    (folder / "sitecustomize.py").write_text(_SITE)
    names = sorted({name for source in sources.values() for name in _imported(source)})
    (folder / "bridge_imports.py").write_text(_IMPORTS.format(names=", ".join(names)))
    return {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}


def server_settings(directory: Path) -> str:
    """Return settings with which the server starts Python before it forks its sessions, or "" where it cannot."""
    programs, compiler = find_programs(), shutil.which("cc")
    if os.environ.get(PLAIN) or compiler is None or programs.major not in _MAJORS:
        return ""
    library = directory / "started_python.so"
    options = (f"-DPG_MAJOR={programs.major}", "-shared", "-fPIC", "-O1")
    subprocess.run([compiler, *options, "-o", library, _STARTED_PYTHON], check=True)
    library.chmod(0o755)
    return (
        "jit = off\n"
        f"shared_preload_libraries = 'plpython3,{library}'\n"  # in this order: the second needs what the first loads
    )


def _imported(source: str) -> Iterator[str]:
    """Yield the names of the modules of the standard library that a module imports when it is imported itself."""
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.Import):
            yield from (alias.name for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom) and statement.level == 0 and statement.module:
            yield statement.module
