"""What the embedded controller is started with: settings from options, variables and the kept file, in this order.

An option of `tensile up` goes before the variable of the same setting, and is kept in the settings file. A variable
goes before the file, and holds for as long as it is set. What a running controller was started with is written beside
its process id, so that a later `tensile up` can name what differs.
"""

import hashlib
import json
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from indb_tensile import config
from indb_tensile.catalog import install
from indb_tensile.config import Settings

# Where the embedded service has its own: the database, the service's socket, the state directory.
OWN = ("dsn", "reader_dsn", "service_directory", "state_dir")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The settings of a controller that is to run, and the variables that it gets beside its own."""

    settings: Settings
    variables: Mapping[str, str]

    @property
    def text(self) -> str:
        """All settings but `OWN`, as TOML."""
        given = {f.name: getattr(self.settings, f.name) for f in fields(Settings) if f.name not in OWN}
        return "".join(f"{name} = {json.dumps(value)}\n" for name, value in given.items())

    @property
    def digest(self) -> str:
        """Equal for equal settings of the same version."""
        return hashlib.sha256(f"{install.VERSION}\n{self.text}".encode()).hexdigest()[:16]

    def differences(self, running: Path) -> list[str]:
        """What differs from the settings in that file, each in words; nothing where there is no such file."""
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
        """Whether a variable sets any of them."""
        return any(config.variable(f.name) in self.variables for f in fields(Settings) if f.name not in OWN)

    def _source(self, name: str) -> str:
        variable = config.variable(name)
        return f" ({variable})" if variable in self.variables else ""


def variables(environ: Mapping[str, str], options: Collection[str]) -> dict[str, str]:
    """The environment without the variables of settings that an option gives."""
    overruled = {config.variable(name) for name in options}
    return {name: value for name, value in environ.items() if name not in overruled}


def unused(environ: Mapping[str, str], settings_file: Path) -> list[str]:
    """The variables that are set and that `tensile up` does not use, each with the reason."""
    own = [config.variable(name) for name in OWN if name != "state_dir"]
    told = [f"{name} is not used: the embedded database has its own" for name in own if environ.get(name)]
    named = environ.get(config.CONFIG_VARIABLE, "")
    if named and Path(named) != settings_file:
        told.append(
            f"{config.CONFIG_VARIABLE} is not used: the settings of the embedded controller are in {settings_file}"
        )
    return told
