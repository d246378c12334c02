"""Each setting has its rule, and a trainer's descriptors have their variables."""

from dataclasses import fields

import pytest

from indb_tensile import config
from indb_tensile.config import InheritedDescriptors, Settings, inherited_descriptors
from indb_tensile.errors import RequestError


def test_every_field_has_a_kind() -> None:
    assert list(config._KINDS) == [f.name for f in fields(Settings)]


def test_a_trainer_reads_the_descriptors_it_inherited() -> None:
    given_fds = InheritedDescriptors(link_fd=5, device_fd=6)
    assert inherited_descriptors(given_fds.environment()) == given_fds
    on_gpu = InheritedDescriptors(link_fd=5, device_fd=6, regions_fd=7)
    assert inherited_descriptors(on_gpu.environment()) == on_gpu
    assert on_gpu.descriptors == given_fds.descriptors | {"TENSILE_REGIONS_FD": 7}


def test_a_trainer_started_by_hand_says_so() -> None:
    with pytest.raises(RequestError) as raised:
        inherited_descriptors({})
    assert raised.value.message == "TENSILE_LINK_FD is '': the number of an open file descriptor is needed"
    assert "started by a controller" in raised.value.hint
