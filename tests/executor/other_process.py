"""A process with a hash seed of its own and without the modules that a machine with a GPU may lack."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache

_IMPORT_ALL = """
import gc, importlib, json, pkgutil, sys

gc.disable()  # imports take a fifth less time
for absent in ("psycopg", "sqlalchemy", "msgspec", "safetensors", "sklearn", "tenacity", "tomlkit"):
    sys.modules[absent] = None  # importing it fails
suite = ["conftest", "kinds", "machine", "pace_process", "parts", "place", "steps", "test_gpu", "test_whole"]
suite += ["trainer_process", "round_process", "feed_process", "test_gpu_rounds"]
names = [f"tests.gpu.{name}" for name in suite]
names += [f"indb_tensile.bench.commands.{name}" for name in ("step", "exact", "forecast", "maxbatch")]
names += ["indb_tensile.bench.__main__", "worker.probe_sharing"]
for name in names:
    importlib.import_module(name)
del sys.modules["safetensors"]  # the predictor of latencies needs it, which the suite does not use
others = ["indb_tensile._native", "indb_tensile._planner", "indb_tensile.settings_loader"]
for folder in ("device", "executor", "scheduler"):
        package = importlib.import_module(f"indb_tensile.{folder}")
        others += [module.name for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
others += ["indb_tensile.cli.main", "indb_tensile.cli.bench"]
for name in others:
    importlib.import_module(name)

del sys.modules["sklearn"]  # preprocessing needs it, which the models below import
from tests.executor.models import make_job

signatures = [" ".join([step.graph.signature, *sorted(step.signatures)]) for step in make_job("cnn").steps]
print(json.dumps([len(names) + len(others), signatures]))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherProcess:
    """What the process prints: how many modules it has imported, and the signatures of the model `cnn`."""

    imported: int
    signatures: list[str]


@cache
def other_process(hash_seed: str) -> OtherProcess:
    """Run such a process once in this process. It fails if one of the modules needs an absent module."""
    done = subprocess.run(
        [sys.executable, "-c", _IMPORT_ALL],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr  # stderr itself may contain warnings from torch
    imported, signatures = json.loads(done.stdout.splitlines()[-1])
    return OtherProcess(imported=imported, signatures=signatures)
