"""The settings file of the embedded controller: what `tensile up` keeps for the next time, and for which device.

What describes one device is not kept for another: a few hundred megabytes of a stand-in are next to nothing of a GPU,
and the rates of an imitated link are no GPU's.
"""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from indb_tensile import config
from indb_tensile.cli.output import warn
from indb_tensile.cli.place import Place
from indb_tensile.errors import RequestError
from indb_tensile.executor.backend import CPU, EMULATED

_IMITATING = {"emulate": "--emulate", "link_out_bytes_per_s": "--link-out", "link_in_bytes_per_s": "--link-in"}
_OF_ONE_DEVICE = ("capacity_bytes", "budget_bytes", "region_bytes", "host_pool_bytes", *_IMITATING, "mps")


def kept_settings(path: Path, given: dict[str, Any]) -> dict[str, Any]:
    """The settings to keep: those of the file, overruled by what was given, without those of another device."""
    try:
        kept = tomllib.loads(path.read_text()) if path.exists() else {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RequestError(
            f"the settings file {path} is not TOML: {error}", hint="correct it, or remove it to have the defaults"
        ) from error
    before, now = kept.get("device", "auto"), given.get("device", kept.get("device", "auto"))
    others = [] if now == before else [n for n in _OF_ONE_DEVICE if n in kept and n not in given]
    if others:
        shown = ", ".join(f"{name} = {kept[name]}" for name in others)
        warn(f"the device was {before} and is {now}: not kept for it: {shown}")
    return {name: value for name, value in (kept | given).items() if name not in others}


def text_of(settings: Mapping[str, Any]) -> str:
    """As TOML, in which a string, a number and a truth value are written as in JSON."""
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in sorted(settings.items()))


def check_settings(text: str, path: Path, environ: Mapping[str, str]) -> config.Settings:
    """The settings as the controller will read them. Raises RequestError for what it would refuse."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    try:
        return config.load({**environ, config.CONFIG_VARIABLE: str(fresh)})
    finally:
        fresh.unlink()


def without_imitation(kept: dict[str, Any], settings: config.Settings, options: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of the emulated device do nothing on another, and are not kept for it."""
    idle = [name for name in _IMITATING if name in kept]
    if not idle or settings.device == EMULATED:
        return kept
    if any(name in options for name in idle):
        shown = ", ".join(_IMITATING[name] for name in idle if name in options)
        warn(f"{shown}: for the emulated device alone, and the device is {settings.device}; --device emulated has it")
    return {name: value for name, value in kept.items() if name not in idle}


def warn_of_old_sizes(
    place: Place, device: Mapping[str, Any], kept: Mapping[str, Any], options: Mapping[str, Any]
) -> None:
    """A GPU that `auto` finds later gets the sizes that were kept before it was there: say so."""
    sizes = [name for name in ("capacity_bytes", "budget_bytes") if name in kept and name not in options]
    if sizes and str(device["device"]).startswith("cuda:"):
        shown = ", ".join(f"{name} = {kept[name]}" for name in sizes)
        warn(
            f"jobs on {device['device']} have a budget of {device['budget_bytes']} bytes: {place.settings} keeps "
            f"{shown} from before; remove these lines for what the GPU has"
        )


def check_mps(settings: config.Settings) -> None:
    """Raise RequestError where MPS is asked for on a device that has none."""
    if settings.mps and settings.device in (EMULATED, CPU):
        raise RequestError(
            f"--mps is for a GPU, and the device is {settings.device}",
            hint="Give --device auto or --device cuda with it, or --no-mps.",
        )
