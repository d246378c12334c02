"""The modules that a machine with a GPU runs import without psycopg, SQLAlchemy and msgspec, which it may lack."""

import subprocess
import sys

_IMPORT_ALL = """
import importlib, pkgutil, sys

for absent in ("psycopg", "sqlalchemy", "msgspec", "tenacity", "tomlkit"):
    sys.modules[absent] = None  # importing it fails
names = ["indb_tensile._native", "indb_tensile._planner", "indb_tensile.settings_loader"]
for folder in ("device", "executor", "scheduler"):
        package = importlib.import_module(f"indb_tensile.{folder}")
        names += [module.name for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
names += [f"indb_tensile.bench.commands.{name}" for name in ("step", "exact", "forecast")]
names += ["indb_tensile.cli.main", "indb_tensile.cli.bench"]
suite = ["conftest", "kinds", "machine", "pace_process", "parts", "steps", "test_gpu", "test_whole"]
suite.append("trainer_process")
names += [f"tests.gpu.{name}" for name in suite]
for name in names:
    importlib.import_module(name)
print(len(names))
"""


def test_executor_scheduler_benchmarks_of_steps_and_the_gpu_suite_import_without_a_database() -> None:
    done = subprocess.run([sys.executable, "-c", _IMPORT_ALL], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr  # stderr itself may contain warnings from torch
    assert int(done.stdout) > 50
