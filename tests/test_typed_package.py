"""The package has its types: type checkers of users read them where this file is installed."""

from importlib.resources import files


def test_the_marker_of_a_typed_package_is_installed() -> None:
    assert files("indb_tensile").joinpath("py.typed").is_file()
