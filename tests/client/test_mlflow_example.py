"""The example that logs a training to MLflow logs everything, with a small stand-in for MLflow and for the client."""

import runpy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from indb_tensile.errors import RequestError

EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "mlflow_logging.py"))
LONG = {"columns": ["x" * 300, "y" * 300]}


class Log:
    """Records the calls of MLflow's functions, and how each run ended."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *values, **named: self.calls.append((name, *values, *named.values()))

    @contextmanager
    def start_run(self, run_name: str) -> Iterator[None]:
        self.calls.append(("start_run", run_name))
        try:
            yield
        except Exception:
            self.calls.append(("failed",))
            raise

    def log_artifact(self, path: str, folder: str) -> None:
        self.calls.append(("log_artifact", Path(path).name, Path(path).read_text(), folder))


class Client:
    """A client whose one training has two epochs, or fails."""

    number, version = 7, 3

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    def train(self, model: str, relation: str, **options: object) -> "Client":
        assert (model, relation, options["target"]) == ("churn", "customers", "left")
        return self

    def wait(self) -> "Client":
        if self.error is not None:
            raise self.error
        return self

    def history(self) -> list[dict[str, Any]]:
        return [{"epoch": 1, "loss": 0.5, "roc_auc": None}, {"epoch": 2, "loss": 0.25, "roc_auc": 0.75}]

    def versions(self, model: str) -> list[dict[str, Any]]:
        used = {"epochs": 2, "optimizer": "adam"}
        return [{"version": 3, "hyperparams": used, "metric_name": "accuracy", "metric": 0.9}, {"version": 2}]

    def export_model(self, model: str, path: Path, *, version: int) -> Path:
        path.write_text(f"{model} {version}")
        return path


def test_a_run_has_parameters_epochs_the_metric_and_the_model_file() -> None:
    log = Log()
    assert EXAMPLE["log_training"](log, Client(), "churn", "customers", target="left", preprocess=LONG) == 3
    named, first, *rest = log.calls
    assert named == ("start_run", "churn")
    assert {name: len(value) for name, value in first[1].items()} == {"target": 4, "preprocess": 500}
    assert rest == [
        ("log_params", {"used.epochs": "2", "used.optimizer": "adam"}),
        ("log_metrics", {"loss": 0.5}, 1),
        ("log_metrics", {"loss": 0.25, "roc_auc": 0.75}, 2),
        ("log_metric", "test.accuracy", 0.9),
        ("set_tags", {"tensile.model": "churn", "tensile.version": 3, "tensile.job": 7}),
        ("log_artifact", "model.safetensors", "churn 3", "model"),
    ]


def test_a_failed_training_fails_the_run() -> None:
    log = Log()
    with pytest.raises(RequestError, match="no rows"):
        EXAMPLE["log_training"](log, Client(RequestError("no rows")), "churn", "customers", target="left")
    assert log.calls[-1] == ("failed",)


def test_wrong_arguments_are_refused_with_the_usage() -> None:
    with pytest.raises(SystemExit, match="usage"):
        EXAMPLE["main"](["churn"])
