"""The settings file of the embedded controller, in which `tensile up` stores its options for the next start.

Settings that describe one device are not kept for another device. A budget of a few hundred megabytes on the emulated
device would be very small on a GPU, and the rates of an emulated link are not those of a GPU.
"""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from indb_tensile import config
from indb_tensile.cli.output import warn
from indb_tensile.cli.state_directory import StateDirectory
from indb_tensile.device.backend import CPU, EMULATED
from indb_tensile.errors import RequestError

_IMITATING = {"emulate": "--emulate", "link_out_bytes_per_s": "--link-out", "link_in_bytes_per_s": "--link-in"}
_OF_ONE_DEVICE = ("capacity_bytes", "budget_bytes", "region_bytes", "host_pool_bytes", *_IMITATING, "mps")


def kept_settings(path: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Return the settings to store: those of the file, overridden by `options`, without those of another device."""
    try:
        stored = tomllib.loads(path.read_text()) if path.exists() else {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RequestError(
            f"the settings file {path} is not TOML: {error}", hint="correct it, or remove it to get the defaults"
        ) from error
    before, now = stored.get("device", "auto"), options.get("device", stored.get("device", "auto"))
    removed = [] if now == before else [n for n in _OF_ONE_DEVICE if n in stored and n not in options]
    if removed:
        listed = ", ".join(f"{name} = {stored[name]}" for name in removed)
        warn(f"the device was {before} and is {now}: these settings of {before} are removed: {listed}")
    return {name: value for name, value in (stored | options).items() if name not in removed}


def text_of(settings: Mapping[str, Any]) -> str:
    """Write settings as TOML. TOML writes strings, numbers and truth values in the same way as JSON."""
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in sorted(settings.items()))


def check_settings(text: str, path: Path, environ: Mapping[str, str]) -> config.Settings:
    """Load the settings as the controller will load them. Raises RequestError for settings that it would refuse."""
    new_file = path.with_suffix(".new")
    new_file.write_text(text)
    try:
        return config.load({**environ, config.CONFIG_VARIABLE: str(new_file)})
    finally:
        new_file.unlink()


def without_imitation(
    stored: dict[str, Any], settings: config.Settings, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Remove the settings of the emulated device if the device is another one, because they have no effect then."""
    idle = [name for name in _IMITATING if name in stored]
    if not idle or settings.device == EMULATED:
        return stored
    if any(name in options for name in idle):
        listed = ", ".join(_IMITATING[name] for name in idle if name in options)
        warn(
            f"{listed}: only for the emulated device, and the device is {settings.device}; "
            "add --device emulated to use it"
        )
    return {name: value for name, value in stored.items() if name not in idle}


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
    if settings.mps and settings.device in (EMULATED, CPU):
        raise RequestError(
            f"--mps is for a GPU, and the device is {settings.device}",
            hint="Give --device auto or --device cuda with it, or --no-mps.",
        )
