"""The learner trains a predictor if there is none, and again when jobs have measured many more operators."""

import zlib
from collections.abc import Iterator
from dataclasses import replace

import pytest

from indb_tensile.catalog import plans, predictors
from indb_tensile.catalog.connection import Connection, Session
from indb_tensile.catalog.plans import OpMeasurement
from indb_tensile.catalog.predictors import StoredPredictor
from indb_tensile.config import Settings
from indb_tensile.device.hardware import emulated_kind
from indb_tensile.errors import DataError
from indb_tensile.executor.latency.latency_predictor import MeasuredOperator, Predictor, read_samples
from indb_tensile.scheduler.timing.operator_features import write_description
from tests.conftest import Database
from tests.device.preloaded import run
from tests.scheduler.descriptions import dense, elementwise
from worker.learner import learn

pytestmark = pytest.mark.postgres

KIND = "a device"
SAMPLES = [
    MeasuredOperator(description=elementwise(k * k * 1000, "aten.relu.default"), latency_ns=k * 5_000)
    for k in range(1, 61)
]


class Survey:
    """Returns the same operators every time, and counts its calls."""

    def __init__(self, samples: list[MeasuredOperator] | None = None) -> None:
        self.samples = SAMPLES if samples is None else samples
        self.calls = 0

    def __call__(self) -> Iterator[MeasuredOperator]:
        self.calls += 1
        return iter(self.samples)


def _stored(session: Session) -> StoredPredictor:
    predictor = session.run(lambda c: predictors.load_predictor(c, KIND))
    assert predictor is not None
    return predictor


def _jobs_measure(session: Session, count: int, kind: str = KIND) -> None:
    """Record this number of matrix products as a job's measurements of 3 ms each."""
    described = {f"mm {k}": write_description(dense(k + 1, 64, 64)) for k in range(count)}
    rows = [OpMeasurement(signature=s, name="mm", latency_ns=3_000_000, workspace_bytes=0) for s in described]

    def remember(connection: Connection) -> None:
        predictors.describe(connection, described)
        plans.record_latencies(connection, kind, rows)

    session.run(remember)


def test_the_first_call_surveys_the_device_and_the_next_has_nothing_to_do(session: Session) -> None:
    survey = Survey()
    assert learn(session, KIND, survey)
    stored = _stored(session)
    assert (stored.samples, stored.history) == (60, 0)
    assert Predictor.from_bytes(stored.model).kinds == ("aten.relu.default",)
    assert not learn(session, KIND, survey)
    assert survey.calls == 1
    assert learn(session, "another device", survey)


def test_many_new_measurements_of_jobs_are_learned_without_another_survey(session: Session) -> None:
    survey = Survey()
    learn(session, KIND, survey)
    _jobs_measure(session, 199)
    assert not learn(session, KIND, survey)
    _jobs_measure(session, 200)
    assert learn(session, KIND, survey)
    assert survey.calls == 1
    stored = _stored(session)
    assert (stored.samples, stored.history) == (260, 200)
    predicted_ns = Predictor.from_bytes(stored.model).predict([dense(80, 64, 64)])
    assert 1_500_000 < predicted_ns[0] < 6_000_000
    assert not learn(session, KIND, survey)


@pytest.mark.parametrize("damaged", [{"model": b"garbage"}, {"survey": b"garbage"}])
def test_an_unreadable_predictor_or_survey_is_replaced(session: Session, damaged: dict[str, bytes]) -> None:
    learn(session, KIND, Survey())
    whole = _stored(session)
    session.run(lambda c: predictors.save_predictor(c, KIND, replace(whole, **damaged)))  # type: ignore[arg-type]
    survey = Survey()
    assert learn(session, KIND, survey)
    assert survey.calls == 1
    assert _stored(session) == whole


def test_descriptions_of_another_version_are_ignored(session: Session) -> None:
    session.run(lambda c: predictors.describe(c, {"old": '{"shape": [1]}'}))
    row = OpMeasurement(signature="old", name="old", latency_ns=1, workspace_bytes=0)
    session.run(lambda c: plans.record_latencies(c, KIND, [row]))
    learn(session, KIND, Survey())
    assert (_stored(session).samples, _stored(session).history) == (60, 1)


def test_a_device_without_measured_operators_gets_no_predictor(session: Session) -> None:
    with pytest.raises(DataError, match="0 measured operators are too few"):
        learn(session, KIND, Survey([]))
    assert session.run(lambda c: predictors.load_predictor(c, KIND)) is None


# The real program, without the low priority with which it would wait until the machine is idle.
LEARNER = "tests.training.learner_process"


@pytest.mark.nightly
def test_the_learners_process_learns_from_a_survey_and_from_jobs_on_this_machine(
    session: Session, database: Database
) -> None:
    _jobs_measure(session, 60, emulated_kind(1))
    settings = Settings(dsn=database.dsn("tensile_worker"), survey_s=0.05)
    done = run(LEARNER, environment=settings.environment())
    assert done.returncode == 0, done.stderr
    stored = session.run(lambda c: predictors.load_predictor(c, emulated_kind(1)))
    assert stored is not None
    surveyed = read_samples(zlib.decompress(stored.survey).decode())
    assert (stored.samples, stored.history) == (60 + len(surveyed), 60)
    assert Predictor.from_bytes(stored.model).samples == stored.samples


def test_the_learners_process_prints_its_error_and_ends(database: Database) -> None:
    settings = Settings(dsn=database.dsn("tensile_worker"), survey_s=1e-9)
    done = run(LEARNER, environment=settings.environment())
    assert done.returncode == DataError("").exit_code
    assert "no predictor was trained: " in done.stderr
    assert "measured operators are too few" in done.stderr
