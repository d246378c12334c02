"""Check that the package ships its type information. Type checkers of users read the types where `py.typed` is
installed.
"""

from importlib.resources import files


def test_py_typed_marker_is_installed() -> None:
    assert files("indb_tensile").joinpath("py.typed").is_file()
