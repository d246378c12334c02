"""Train in the database, and log the training to MLflow: parameters, losses and metrics by epoch, and the model.

    pip install mlflow
    python examples/mlflow_logging.py MODEL TABLE TARGET

MLflow is your own installation; indb-tensile does not need it. The logged file needs no database:
`indb_tensile.client.Model.load(path).predict(rows)`.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

from indb_tensile.client import Tensile

_LONGEST_PARAMETER = 500  # characters that every store of MLflow takes


def log_training(mlflow: Any, tensile: Any, model: str, relation: object, **options: Any) -> int:
    """Train a version of the model within a run of MLflow, and return its number.

    If the training fails, its error is raised and MLflow marks the run as failed.
    """
    with mlflow.start_run(run_name=model):
        mlflow.log_params({name: _parameter(value) for name, value in options.items()})
        job = tensile.train(model, relation, **options).wait()
        version = next(row for row in tensile.versions(model) if row["version"] == job.version)
        mlflow.log_params({f"used.{name}": _parameter(value) for name, value in version["hyperparams"].items()})
        for epoch in job.history():
            figures = {name: value for name, value in epoch.items() if name != "epoch" and value is not None}
            mlflow.log_metrics(figures, step=epoch["epoch"])
        if version["metric"] is not None:
            mlflow.log_metric(f"test.{version['metric_name']}", version["metric"])
        mlflow.set_tags({"tensile.model": model, "tensile.version": job.version, "tensile.job": job.number})
        with tempfile.TemporaryDirectory() as directory:
            path = tensile.export_model(model, Path(directory) / "model.safetensors", version=job.version)
            mlflow.log_artifact(str(path), "model")
    return int(job.version)


def _parameter(value: object) -> str:
    text = str(value)
    return text if len(text) <= _LONGEST_PARAMETER else f"{text[: _LONGEST_PARAMETER - 1]}…"


def main(arguments: list[str]) -> None:
    """Log the training that the command line names."""
    if len(arguments) != 3:
        sys.exit("usage: python examples/mlflow_logging.py MODEL TABLE TARGET")
    try:
        import mlflow
    except ImportError:
        sys.exit("MLflow is not installed here: pip install mlflow")
    model, table, target = arguments
    with Tensile() as tensile:
        version = log_training(mlflow, tensile, model, table, target=target)
    print(f"version {version} of {model} is logged")


if __name__ == "__main__":
    main(sys.argv[1:])
