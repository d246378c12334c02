"""The settings file of the embedded controller, in which `tensile up` stores its options for the next start.

A stored option changes one line: comments, order and units of the file stay as they were written (tomlkit). Settings
that describe one device are not kept for another device. A budget of a few hundred megabytes on the emulated device
would be very small on a GPU, and the rates of an emulated link are not those of a GPU.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from indb_tensile import config, settings_loader
from indb_tensile.cli.launch_settings import OWN
from indb_tensile.cli.output import warn
from indb_tensile.device.backend import CPU, is_emulated
from indb_tensile.errors import RequestError
from indb_tensile.state_directory import STATE_VARIABLE, StateDirectory

_IMITATING = {"emulate": "--emulate", "link_out_bytes_per_s": "--link-out", "link_in_bytes_per_s": "--link-in"}
_OF_ONE_DEVICE = ("capacity_bytes", "budget_bytes", "region_bytes", "host_pool_bytes", *_IMITATING, "mps")


class SettingsDocument:
    """The settings file's contents: its settings, and its text with the user's comments."""

    def __init__(self, text: str) -> None:
        """Parse the text. Raises ValueError if it is not TOML."""
        import tomlkit  # only `tensile up` needs it

        self._document = tomlkit.parse(text)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings by name, as they are written: a size with a unit is text."""
        return dict(self._document.unwrap())

    @property
    def text(self) -> str:
        """The settings as TOML."""
        return self._document.as_string()

    def store(self, options: Mapping[str, Any]) -> None:
        """Set these settings. Settings that the file has keep their lines, and others get lines at its end."""
        for name, value in sorted(options.items()):
            self._document[name] = value

    def remove(self, names: list[str]) -> None:
        """Remove the lines of these settings."""
        for name in names:
            self._document.remove(name)


def document_of(path: Path) -> SettingsDocument:
    """Read the settings file; a missing file has no settings.

    Raises RequestError if the file is not TOML, or sets what the embedded controller sets itself.
    """
    try:
        document = SettingsDocument(path.read_text(encoding="utf-8") if path.exists() else "")
    except ValueError as error:  # TOML's errors and those of its encoding
        raise RequestError(
            f"the settings file {path} is not TOML: {error}", hint="correct it, or remove it to get the defaults"
        ) from error
    own = next((name for name in OWN if name in document.settings), None)
    if own is not None:
        elsewhere = f"name the directory with {STATE_VARIABLE}" if own == "state_dir" else "use tensile controller"
        raise RequestError(
            f"the settings file {path} sets {own}, but the embedded controller has its own {own}",
            hint=f"remove this line, or {elsewhere}",
        )
    return document


def store_options(document: SettingsDocument, options: Mapping[str, Any]) -> None:
    """Store the options, and remove the settings of another device."""
    stored = document.settings
    before, now = stored.get("device", "auto"), options.get("device", stored.get("device", "auto"))
    removed = [] if now == before else [n for n in _OF_ONE_DEVICE if n in stored and n not in options]
    if removed:
        listed = ", ".join(f"{name} = {stored[name]}" for name in removed)
        warn(f"the device was {before} and is {now}: these settings of {before} are removed: {listed}")
    document.remove(removed)
    document.store(options)


def with_named_device(options: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the options; with sizes for a device that only a variable names, the device is an option too.

    Otherwise the next start without the variable would use the stored sizes for another device, such as a GPU.
    """
    variable = config.variable("device")
    device = environ.get(variable)
    sized = [name for name in _OF_ONE_DEVICE if name in options]
    if "device" in options or not device or not sized:
        return dict(options)
    warn(f"the device {device} of {variable} is stored too, because these settings are for it: {', '.join(sized)}")
    return {**options, "device": device}


def check_device_of_sizes(
    document: SettingsDocument, settings: config.Settings, path: Path, environ: Mapping[str, str]
) -> None:
    """Raise RequestError if a variable names another device than the emulated one that the file's sizes are for."""
    stored = document.settings
    if not is_emulated(str(stored.get("device", ""))) or is_emulated(settings.device):
        return
    sizes = [name for name in _OF_ONE_DEVICE if name in stored and config.variable(name) not in environ]
    if sizes:
        listed = ", ".join(f"{name} = {stored[name]}" for name in sizes)
        raise RequestError(
            f"{config.variable('device')} is {settings.device}, and {path} has settings of the device"
            f" {stored['device']}: {listed}",
            hint=f"Change the device with tensile up --device {settings.device}, which removes these settings.",
        )


def check_settings(text: str, path: Path, environ: Mapping[str, str]) -> config.Settings:
    """Load the settings as the controller will load them from a file of this text.

    Raises RequestError for settings that it would refuse.
    """
    return settings_loader.load({**environ, config.CONFIG_VARIABLE: str(path)}, file_text=text)


def remove_imitation(document: SettingsDocument, settings: config.Settings, options: Mapping[str, Any]) -> None:
    """Remove the settings of the emulated device if the device is another one, because they have no effect then."""
    idle = [name for name in _IMITATING if name in document.settings]
    if not idle or is_emulated(settings.device):
        return
    if any(name in options for name in idle):
        listed = ", ".join(_IMITATING[name] for name in idle if name in options)
        warn(
            f"{listed}: only for the emulated device, and the device is {settings.device}; "
            "add --device emulated to use it"
        )
    document.remove(idle)


def warn_of_old_sizes(
    place: StateDirectory, device: Mapping[str, Any], stored: Mapping[str, Any], options: Mapping[str, Any]
) -> None:
    """Warn if a GPU that `auto` has chosen gets sizes that were stored before, perhaps for another device."""
    sizes = [name for name in ("capacity_bytes", "budget_bytes") if name in stored and name not in options]
    if sizes and str(device["device"]).startswith("cuda:"):
        listed = ", ".join(f"{name} = {stored[name]}" for name in sizes)
        warn(
            f"jobs on {device['device']} have a budget of {device['budget_bytes']} bytes, because {place.settings} "
            f"has {listed} from an earlier start; remove these lines to use all memory of the GPU"
        )


def check_mps(settings: config.Settings) -> None:
    """Raise RequestError if MPS is requested on a device that is not a GPU."""
    if settings.mps and (settings.device == CPU or is_emulated(settings.device)):
        raise RequestError(
            f"--mps is for a GPU, and the device is {settings.device}",
            hint="Give --device auto or --device cuda with it, or --no-mps.",
        )
