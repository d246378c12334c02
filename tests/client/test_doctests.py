"""The examples in docstrings of the client run as they are written."""

import doctest
from importlib import import_module
from pkgutil import iter_modules

import pytest

import indb_tensile.client as package

MODULES = [f"{package.__name__}.{module.name}" for module in iter_modules(package.__path__)]


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_docstrings_run(name: str) -> None:
    assert doctest.testmod(import_module(name)).failed == 0


def test_every_public_name_is_importable_and_documented() -> None:
    for name in package.__all__:
        assert getattr(package, name).__doc__
    assert dir(package) == sorted(package.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        package.Nothing  # noqa: B018
