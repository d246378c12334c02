"""Each setting has its rule, and a trainer's descriptors have their variables."""

from dataclasses import fields

import pytest

from indb_tensile import config
from indb_tensile.config import InheritedDescriptors, Settings, inherited_descriptors
from indb_tensile.errors import RequestError


def test_every_field_has_a_kind() -> None:
    assert list(config._KINDS) == [f.name for f in fields(Settings)]


def test_trainer_reads_its_inherited_descriptors() -> None:
    on_cpu = InheritedDescriptors(link_fd=5, device_fd=6)
    assert inherited_descriptors(on_cpu.environment()) == on_cpu
    on_gpu = InheritedDescriptors(link_fd=5, device_fd=6, regions_fd=7)
    assert inherited_descriptors(on_gpu.environment()) == on_gpu
    assert on_gpu.descriptors == on_cpu.descriptors | {"TENSILE_REGIONS_FD": 7}


def test_trainer_without_inherited_descriptors_is_refused() -> None:
    with pytest.raises(RequestError) as raised:
        inherited_descriptors({})
    assert raised.value.message == "TENSILE_LINK_FD is '': the number of an open file descriptor is needed"
    assert "started by a controller" in raised.value.hint


@pytest.mark.parametrize("address", ["8.8.8.8", "0.0.0.0", "::", "localhost", ""])
def test_address_of_ranks_is_of_this_machine_or_of_a_private_network(address: str) -> None:
    with pytest.raises(RequestError, match="rank_address"):
        Settings(rank_address=address)
    assert Settings(rank_address="10.0.0.7").rank_address == "10.0.0.7"
