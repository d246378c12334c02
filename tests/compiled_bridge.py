"""Let the sessions of a test server take over the bridge's compiled modules instead of compiling them again.

Each session compiles the bridge's modules when it first needs them, which takes a twentieth of a second of a
processor, and the suite opens more than a thousand sessions. So a test process compiles the modules once, and its
server's Python starts with a module `sitecustomize` that answers `compile` from these. Any other source is compiled
as ever, and so is everything if the server's Python reads other bytecode.
"""

import ast
import marshal
from importlib.util import MAGIC_NUMBER
from pathlib import Path

from indb_tensile.catalog.bridge_sources import bridge_digest, bridge_sources

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
    return {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
