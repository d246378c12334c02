"""The settings of the embedded controller: from options, then variables, then the settings file.

An option of `tensile up` overrides the variable of the same setting, and is stored in the settings file. A variable
overrides the file while it is set. The settings of a running controller are stored beside its process id, so that a
later `tensile up` can name the differences.
"""

import hashlib
import json
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from indb_tensile import config
from indb_tensile.catalog import install
from indb_tensile.config import Settings
from indb_tensile.settings_loader import unknown_variables

# The embedded controller has its own values of these: the database, the service's socket, the state directory.
OWN = ("dsn", "reader_dsn", "service_directory", "state_dir")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The settings with which to start a controller, and the environment variables that it gets.

    `own_variables` are those that only this controller of several gets: its device.
    """

    settings: Settings
    variables: Mapping[str, str]
    own_variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """All settings except `OWN`, as TOML."""
        values = {f.name: getattr(self.settings, f.name) for f in fields(Settings) if f.name not in OWN}
        return "".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items())

    @property
    def digest(self) -> str:
        """The digest of the settings and the version."""
        return hashlib.sha256(f"{install.VERSION}\n{self.text}".encode()).hexdigest()[:16]

    def differences(self, running: Path) -> list[str]:
        """Return the differences to the settings in the file `running`, in words; empty if there is no such file."""
        try:
            before = tomllib.loads(running.read_text())
        except (FileNotFoundError, tomllib.TOMLDecodeError):
            return []
        now = tomllib.loads(self.text)
        return [
            f"{name} is {now[name]}{self._source(name)} and was {before.get(name)}"
            for name in now
            if now[name] != before.get(name)
        ]

    @property
    def from_variables(self) -> bool:
        """Whether an environment variable sets one of the settings."""
        return any(config.variable(f.name) in self.variables for f in fields(Settings) if f.name not in OWN)

    def _source(self, name: str) -> str:
        variable = config.variable(name)
        return f" ({variable})" if variable in self.variables else ""


def launches(settings: Settings, environ: Mapping[str, str], devices: Sequence[str]) -> tuple[Launch, ...]:
    """Return the launch of the controller of each device; the settings say how many there are."""
    if settings.devices == 1:
        return (Launch(settings=settings, variables=environ),)
    count = len(devices)
    return tuple(
        Launch(
            settings=replace(settings, device=device, devices=count),
            variables=environ,
            own_variables={config.variable("device"): device, config.variable("devices"): str(count)},
        )
        for device in devices
    )


def variables(environ: Mapping[str, str], options: Collection[str]) -> dict[str, str]:
    """Return the environment without the variables of settings that an option sets."""
    overridden = {config.variable(name) for name in options}
    return {name: value for name, value in environ.items() if name not in overridden}


def unused_variable_notices(environ: Mapping[str, str], settings_file: Path) -> list[str]:
    """Return a notice for each variable that is set and has no effect on `tensile up`."""
    own = [config.variable(name) for name in OWN if name != "state_dir"]
    notices = [f"{name} is not used: the embedded database has its own" for name in own if environ.get(name)]
    config_file = environ.get(config.CONFIG_VARIABLE, "")
    if config_file and Path(config_file) != settings_file:
        notices.append(
            f"{config.CONFIG_VARIABLE} is not used, except for its state_dir: the settings of the embedded "
            f"controller are in {settings_file}"
        )
    return [*notices, *unknown_variables(environ)]
