"""Check which devices of a machine get a controller, and how each controller is told its device."""

from dataclasses import replace

import pytest

from indb_tensile.cli.launch_settings import Launch, launches
from indb_tensile.cli.machine_devices import check_named_gpu, device_names
from indb_tensile.config import Settings
from indb_tensile.device.backend import Chosen, choose
from indb_tensile.device.cuda import Absence, Gpus, NoGpu
from indb_tensile.errors import DeviceError, RequestError
from tests.device.test_backend import A6000

NONE = NoGpu(why=Absence.NO_DRIVER, reason="libcuda.so.1 is not there", hint="install a driver")
THREE = Gpus(
    driver_version=13000,
    devices=(A6000, replace(A6000, ordinal=1, virtual_memory=False), replace(A6000, ordinal=2)),
)


def names(device: str, devices: int, gpus: Gpus | NoGpu = NONE) -> tuple[str, ...]:
    return device_names(
        Settings(device=device, devices=devices), lambda: gpus, lambda setting: choose(setting, gpus, "13.0")
    )


def test_one_device_is_named_as_it_is_set_and_no_driver_is_asked() -> None:
    def ask() -> Gpus | NoGpu:
        raise AssertionError

    def choose_device(_: str) -> Chosen:
        raise AssertionError

    for device in ("auto", "cpu", "emulated", "emulated:3", "cuda:1"):
        assert device_names(Settings(device=device), ask, choose_device) == (device,)


def test_a_named_gpu_that_cannot_be_used_is_refused() -> None:
    def choose_among(gpus: Gpus | NoGpu, device: str) -> None:
        check_named_gpu(device, lambda setting: choose(setting, gpus, "13.0"))

    for device in ("auto", "cpu", "emulated"):
        choose_among(NONE, device)
    choose_among(THREE, "cuda:2")
    with pytest.raises(DeviceError, match=r"libcuda\.so\.1 is not there"):
        choose_among(NONE, "cuda")
    with pytest.raises(DeviceError, match="'cuda:3'"):
        choose_among(THREE, "cuda:3")


def test_emulated_devices_are_as_many_as_are_asked_for() -> None:
    assert names("emulated", 3) == ("emulated:0", "emulated:1", "emulated:2")
    with pytest.raises(RequestError, match="--devices all: any number of devices can be emulated"):
        names("emulated", 0)


def test_gpus_that_cannot_be_used_are_left_out() -> None:
    assert names("auto", 0, THREE) == names("cuda", 2, THREE) == ("cuda:0", "cuda:2")
    assert names("auto", 1, THREE) == ("auto",)
    with pytest.raises(RequestError, match="--devices 3: this machine has 2 GPUs that can be used"):
        names("auto", 3, THREE)


def test_without_a_gpu_all_devices_are_the_processor_and_two_are_refused_with_the_reason() -> None:
    assert names("auto", 0) == ("auto",)
    assert names("cpu", 0) == ("cpu",)
    with pytest.raises(RequestError, match=r"--devices 2: this machine has 0 GPUs .*: libcuda\.so\.1 is not there"):
        names("auto", 2)
    with pytest.raises(DeviceError, match=r"libcuda\.so\.1 is not there"):
        names("cuda", 2)


@pytest.mark.parametrize("device", ["cpu", "cuda:1", "emulated:1"])
def test_several_controllers_of_one_device_are_refused(device: str) -> None:
    with pytest.raises(RequestError, match=f"--devices 2: the device is {device}, ") as refusal:
        names(device, 2)
    assert "--device" in refusal.value.hint


def test_each_controller_of_several_is_told_its_device_and_their_number() -> None:
    settings = Settings(device="cuda", devices=0)
    environ = {"TENSILE_MAX_JOBS": "3"}
    assert launches(settings, environ, ("cuda:0", "cuda:2")) == tuple(
        Launch(
            settings=replace(settings, device=device, devices=2),
            variables=environ,
            own_variables={"TENSILE_DEVICE": device, "TENSILE_DEVICES": "2"},
        )
        for device in ("cuda:0", "cuda:2")
    )
    only = Settings(device="cuda")
    assert launches(only, environ, ("cuda",)) == (Launch(settings=only, variables=environ),)
