"""The devices of this machine that `tensile up` starts controllers for: one controller for each device."""

from collections.abc import Callable

from indb_tensile.config import Settings
from indb_tensile.device.backend import CPU, Chosen, is_emulated
from indb_tensile.device.cuda import Gpu, Gpus, NoGpu
from indb_tensile.errors import DeviceError, RequestError

_AUTOMATIC = ("auto", "cuda")


def device_names(
    settings: Settings, gpus: Callable[[], Gpus | NoGpu], choose: Callable[[str], Chosen]
) -> tuple[str, ...]:
    """Return the setting `device` of each controller of this machine.

    `gpus` returns the GPUs of this machine, and `choose` the device that a controller would choose. They are called
    only if GPUs are counted.

    One device is named as the setting names it. Raises RequestError if there are not as many devices as the setting
    `devices` says, DeviceError if the device has to be a GPU and none can be used.
    """
    if settings.devices == 1:
        return (settings.device,)
    if settings.device in _AUTOMATIC:
        return _gpu_names(settings, gpus(), choose)
    if settings.device == "emulated":
        if settings.devices == 0:
            raise _refusal("all", "any number of devices can be emulated", "Say how many: --devices 2.")
        return tuple(f"emulated:{number}" for number in range(settings.devices))
    if settings.devices == 0:
        return (settings.device,)
    if settings.device == CPU:
        raise _refusal(
            str(settings.devices),
            "the device is cpu, and the processor with the machine's memory is one device, which many jobs share",
            "Use --devices 1, or --device emulated for a trial of several devices.",
        )
    raise _refusal(
        str(settings.devices),
        f"the device is {settings.device}, which is one device",
        f"Use --device {'emulated' if is_emulated(settings.device) else 'cuda'} with --devices.",
    )


def check_named_gpu(device: str, choose: Callable[[str], Chosen]) -> None:
    """Raise DeviceError if this setting `device` names a GPU that cannot be used.

    `tensile up` checks a device that its options name, before it stores them and stops a controller that works.
    """
    if device.startswith("cuda"):
        choose(device)


def _gpu_names(settings: Settings, gpus: Gpus | NoGpu, choose: Callable[[str], Chosen]) -> tuple[str, ...]:
    present = () if isinstance(gpus, NoGpu) else gpus.devices
    usable = tuple(name for gpu in present if _is_usable(name := f"cuda:{gpu.ordinal}", choose))
    if settings.devices == 0:
        return usable or (settings.device,)  # the processor, or an error that says why no GPU can be used
    if settings.devices > len(usable):
        chosen = choose(settings.device)
        reason = "" if isinstance(chosen, Gpu) else f": {chosen.reason}"
        raise _refusal(
            str(settings.devices),
            f"this machine has {len(usable)} GPU{'s' * (len(usable) != 1)} that can be used{reason}",
            "Use --devices all for those that there are, or --device emulated for a trial of several devices.",
        )
    return usable[: settings.devices]


def _is_usable(name: str, choose: Callable[[str], Chosen]) -> bool:
    try:
        return isinstance(choose(name), Gpu)
    except DeviceError:
        return False


def _refusal(devices: str, why: str, hint: str) -> RequestError:
    return RequestError(f"--devices {devices}: {why}", hint=hint)
