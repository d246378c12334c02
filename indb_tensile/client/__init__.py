"""Trainings and predictions from Python: a client on SQLAlchemy, estimators for scikit-learn, and models in files.

Each name is imported when it is first used: the client needs no torch, and a model in a file needs no database.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from indb_tensile.client.async_client import AsyncTensile
    from indb_tensile.client.async_job import AsyncJob
    from indb_tensile.client.estimator_engine import engine_scope
    from indb_tensile.client.file_model import Model
    from indb_tensile.client.predicted_rows import PredictedRow, PredictedRows
    from indb_tensile.client.sklearn_estimators import TensileClassifier, TensileRegressor
    from indb_tensile.client.sync_client import Tensile
    from indb_tensile.client.sync_job import Job

__all__ = [
    "AsyncJob",
    "AsyncTensile",
    "Job",
    "Model",
    "PredictedRow",
    "PredictedRows",
    "Tensile",
    "TensileClassifier",
    "TensileRegressor",
    "engine_scope",
]

_MODULES = {
    "AsyncJob": "async_job",
    "AsyncTensile": "async_client",
    "Job": "sync_job",
    "Model": "file_model",
    "PredictedRow": "predicted_rows",
    "PredictedRows": "predicted_rows",
    "Tensile": "sync_client",
    "TensileClassifier": "sklearn_estimators",
    "TensileRegressor": "sklearn_estimators",
    "engine_scope": "estimator_engine",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__]
