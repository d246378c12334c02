"""The recipes of examples/deploy agree with the package: settings, commands, roles, images and users."""

import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from indb_tensile.cli.main import tensile
from indb_tensile.config import OTHER_VARIABLES, PREFIX, setting_rules, variable
from tests.conftest import Database
from tests.controller.waiting import until

DEPLOY = Path(__file__).parent.parent / "examples" / "deploy"
RECIPES = sorted(path for path in DEPLOY.iterdir() if path.name != "Dockerfile.dockerignore")


def loaded(name: str) -> Any:
    return yaml.safe_load((DEPLOY / name).read_text())


def test_every_variable_of_a_recipe_is_a_setting() -> None:
    known = {variable(rule.name) for rule in setting_rules()} | OTHER_VARIABLES
    named = {(path.name, name) for path in RECIPES for name in re.findall(PREFIX + r"[A-Z0-9_]+", path.read_text())}
    assert named
    assert [each for each in sorted(named) if each[1] not in known] == []


def commands() -> dict[str, list[str]]:
    """Return the arguments of `tensile` in each recipe."""
    compose, (pod,) = loaded("compose.yaml"), loaded("kubernetes.yaml")["spec"]["template"]["spec"]["containers"]
    services = {name: own["command"] for name, own in compose["services"].items() if name != "database"}
    return {**services, "pod": pod["args"]}


def test_every_command_of_a_recipe_is_one_of_the_command_line() -> None:
    for name, (command, *arguments) in commands().items():
        context = click.Context(tensile)
        own = tensile.get_command(context, command)
        assert own is not None, name
        own.make_context(command, list(arguments), parent=context)  # parses the arguments, and runs nothing


def test_the_containers_share_sockets_and_users() -> None:
    compose = loaded("compose.yaml")
    services = compose["services"]
    volumes = {name: dict(reversed(text.split(":")) for text in own["volumes"]) for name, own in services.items()}
    assert {name for own in volumes.values() for name in own.values()} == set(compose["volumes"])
    for name in ("controller-0", "controller-1"):
        directory = services[name]["environment"]["TENSILE_SERVICE_DIRECTORY"]
        assert volumes[name][directory] == volumes["database"][directory] == "sockets"
        assert directory in services["init"]["command"]
        assert volumes[name]["/var/run/postgresql"] == volumes["database"]["/var/run/postgresql"]
    assert len({volumes[name]["/var/lib/tensile"] for name in ("controller-0", "controller-1")}) == 2
    image = (DEPLOY / "Dockerfile").read_text()
    assert {own["build"]["target"] for own in services.values()} <= set(re.findall(r" AS (\w+)", image))
    assert len(set(re.findall(r"useradd --uid (\d+)", image))) == 1, "the database looks up the controllers' user"


def test_only_controllers_get_in_as_the_roles_of_controllers() -> None:
    lines = [line.split() for line in (DEPLOY / "pg_hba.conf").read_text().splitlines() if not line.startswith("#")]
    of_workers = [line for line in lines if "tensile_worker" in line[2]]
    assert [line[-1] for line in of_workers] == ["map=controllers", "reject"]
    mapped = [line.split() for line in (DEPLOY / "pg_ident.conf").read_text().splitlines() if line[0] != "#"]
    assert [(line[1], line[2]) for line in mapped] == [("tensile", "tensile_worker"), ("tensile", "tensile_reader")]


@pytest.mark.skipif(shutil.which("docker-compose") is None, reason="docker-compose is not installed")
@pytest.mark.parametrize("files", [["compose.yaml"], ["compose.yaml", "compose.gpu.yaml"]])
def test_compose_accepts_its_files(files: list[str]) -> None:
    named = [argument for name in files for argument in ("-f", str(DEPLOY / name))]
    command = ["docker-compose", *named, "config", "--quiet"]
    done = subprocess.run(command, env={"POSTGRES_PASSWORD": "x"}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.nightly
@pytest.mark.postgres
def test_the_script_for_slurm_starts_a_controller_that_ends_when_it_is_told_to(
    database: Database, tmp_path: Path
) -> None:
    """A stand-in for srun runs its command once, as Slurm does on the node of a task."""
    stand_in = tmp_path / "bin" / "srun"
    stand_in.parent.mkdir()
    stand_in.write_text('#!/bin/sh\n[ "$1" = --kill-on-bad-exit=0 ] && shift\nexec "$@"\n')
    stand_in.chmod(0o755)
    environment = {
        "PATH": f"{stand_in.parent}:{Path(sys.executable).parent}:/usr/bin:/bin",
        "TMPDIR": str(tmp_path),
        "SLURM_JOB_ID": "7",
        "SLURM_PROCID": "0",
        "TENSILE_DSN": database.dsn("tensile_worker"),
        "TENSILE_DEVICE": "emulated",
        "TENSILE_CAPACITY_BYTES": "64MB",
        "TENSILE_SURVEY_S": "0",
    }
    process = subprocess.Popen(["/bin/sh", str(DEPLOY / "slurm.sh")], env=environment)
    try:
        with database.connect() as admin:
            running = "select exists (select from tensile.workers where pid = %s and stopped_at is null)"
            until(lambda: admin.execute(running, (process.pid,)).fetchone() == (True,))
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=120) == 0
            assert admin.execute(running, (process.pid,)).fetchone() == (False,)
    finally:
        process.kill()
        process.wait()
    assert (tmp_path / "tensile-7-0").is_dir()


def test_the_script_for_slurm_asks_for_the_database(tmp_path: Path) -> None:
    done = subprocess.run(
        ["/bin/sh", str(DEPLOY / "slurm.sh")],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "set it to the connection string of the database" in done.stderr
