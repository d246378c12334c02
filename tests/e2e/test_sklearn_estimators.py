"""Check the estimators for scikit-learn on a real controller."""

import pickle
from itertools import pairwise
from typing import Any

import numpy as np
import pandas
import psycopg
import pytest
from joblib import parallel_backend
from scipy.sparse import csr_matrix
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_iris
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import check_estimator
from sqlalchemy import create_engine

from indb_tensile.client import Tensile, TensileClassifier, TensileRegressor, engine_scope
from indb_tensile.errors import DataError, MissingError, RequestError
from tests.e2e.conftest import Service

pytestmark = pytest.mark.postgres

QUICK: dict[str, Any] = {"architecture": "linear"}
# The columns are standardised, and the part that tests is chosen, without regard to the weights of the rows.
EXPECTED = {
    "check_sample_weight_equivalence_on_dense_data": "a weighted row is encoded as one row, and not as several",
}
DAILY = (
    estimator_checks.check_estimators_unfitted,
    estimator_checks.check_estimator_sparse_array,
    estimator_checks.check_fit1d,
    estimator_checks.check_complex_data,
)


@pytest.fixture(autouse=True)
def _database(running: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSILE_DSN", running.database.dsn("demo"))


@pytest.mark.nightly
def test_a_classifier_fits_arrays_with_weights_and_predicts_its_own_labels(running: Service) -> None:
    x, y = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "it's %s"])[y]
    x[::7, 2] = np.nan
    estimator = TensileClassifier(**QUICK).fit(x, names, sample_weight=np.ones(len(x)))
    assert estimator.classes_.tolist() == ["it's %s", "setosa", "versicolor"]
    assert estimator.score(x, names) > 0.9
    shares = estimator.predict_proba(x)
    assert (estimator.predict(x) == estimator.classes_[shares.argmax(axis=1)]).all()
    assert shares.sum(axis=1) == pytest.approx(1)
    restored = pickle.loads(pickle.dumps(estimator.set_params(dsn=running.database.dsn("demo"))))
    assert (restored.predict(x) == estimator.predict(x)).all()
    estimator.drop_model()
    with pytest.raises(MissingError, match="there is no model"):
        estimator.predict(x)


@pytest.mark.nightly
def test_no_table_stays_after_a_fit_and_none_is_seen_by_others(running: Service) -> None:
    tables = "select count(*) from pg_class where relkind = 'r' and relnamespace = 'public'::regnamespace"
    before = running.value(tables)
    x, y = load_diabetes(return_X_y=True, as_frame=True)
    regressor = TensileRegressor(model="sugar", **QUICK).fit(x, y)
    assert regressor.feature_names_in_.tolist() == x.columns.tolist()
    assert regressor.score(x, y) > 0.4
    again = TensileRegressor(model="sugar", **QUICK).fit(x, y)
    assert (regressor.version_, again.version_) == (1, 2)
    figures = "select count(distinct v.metrics) from tensile.model_versions as v where v.job_id in (%s, %s)"
    assert running.value(figures, regressor.job_, again.job_) == 1
    # The service chooses how many rows it predicts at once by their time, which may change the last digit.
    np.testing.assert_allclose(again.predict(x), regressor.predict(x), rtol=1e-5)
    assert running.value(tables) == before
    snapshot = running.value("select table_name from tensile.snapshots where job_id = %s", again.job_)
    readers = "select has_table_privilege(%s, 'tensile_data.' || quote_ident(%s), 'select')"
    assert (running.value(readers, "bob", snapshot), running.value(readers, "tensile_reader", snapshot)) == (
        False,
        True,
    )


@pytest.mark.nightly
def test_columns_of_frames_may_be_texts_and_names_may_be_anything() -> None:
    frame = pandas.DataFrame(
        {"kind": ["a", "b", None, "c"] * 10, 'x "y" %s': np.arange(40.0), "flag": [True, False] * 20}
    )
    labels = frame["kind"].eq("a")
    estimator = TensileClassifier(**QUICK).fit(frame, labels)
    assert estimator.classes_.tolist() == [False, True]
    assert estimator.score(frame, labels) > 0.9
    with pytest.raises(ValueError, match="feature names"):
        estimator.predict(frame.rename(columns={"kind": "other"}))
    wide = np.random.default_rng(0).normal(size=(60, 900))
    assert TensileClassifier(**QUICK).fit(wide, wide[:, 0] > 0).predict(wide[:3]).shape == (3,)


@pytest.mark.nightly
def test_a_relation_is_fitted_where_it_is(running: Service) -> None:
    estimator = TensileClassifier(**QUICK).fit("breast_cancer", "target")
    assert estimator.classes_.tolist() == ["benign", "malignant"]
    assert (estimator.n_features_in_, len(estimator.feature_names_in_)) == (30, 30)
    assert estimator.score("breast_cancer", "target") > 0.9
    assert estimator.predict_proba("breast_cancer").shape == (569, 2)
    assert TensileRegressor(**QUICK).fit("diabetes", "target").score("diabetes", "target") > 0.3
    with pytest.raises(RequestError, match="X is a relation, and y is a ndarray"):
        TensileClassifier().fit("digits", np.zeros(3))


@pytest.mark.nightly
def test_labels_of_a_relation_may_be_numbers() -> None:
    assert TensileClassifier(**QUICK).fit("digits", "label").classes_.tolist() == list(range(10))


@pytest.mark.nightly
def test_a_grid_search_in_threads_trains_its_candidates_side_by_side(running: Service) -> None:
    x, y = load_iris(return_X_y=True)
    engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(running.database.dsn("demo")))
    estimator = TensileClassifier(model="grid", **QUICK)
    pipeline = make_pipeline(StandardScaler(), estimator)
    grid = GridSearchCV(
        pipeline,
        {"tensileclassifier__architecture": [{"type": "linear", "l2": l2} for l2 in (0.1, 1.0)]},
        cv=2,
        n_jobs=4,
        error_score="raise",
    )
    with engine_scope(engine), parallel_backend("threading"):
        grid.fit(x, y)
    engine.dispose()
    assert grid.best_score_ > 0.8
    with Tensile(running.database.dsn("demo")) as tensile:
        jobs = [row for row in tensile.jobs() if row["model"] == "grid"]
        deployed = [row["version"] for row in tensile.versions("grid") if row["deployed"]]
    assert len(jobs) == 5
    # The last job fits the best candidate again, when all others have ended.
    runs = sorted((row["started_at"], row["finished_at"]) for row in jobs)
    assert any(start < end for (_, end), (start, _) in pairwise(runs)), "no two candidates ran at the same time"
    assert deployed == [grid.best_estimator_[-1].version_]


def test_clones_and_pickles_hold_neither_engine_nor_password() -> None:
    engine = create_engine("postgresql+psycopg://user:hunter2@/x")
    estimator = TensileClassifier("host=db user=u password=hunter2").set_engine(engine)
    assert clone(estimator)._engine is engine
    for stored in (pickle.dumps(estimator), pickle.dumps(TensileClassifier("postgresql://u:hunter2@db/x"))):
        assert b"hunter2" not in stored
    assert pickle.loads(pickle.dumps(estimator)).dsn in ("host=db user=u", "user=u host=db")
    with pytest.raises(RequestError, match="dsn has a password"):
        TensileClassifier("postgresql://u:hunter2@db/x").fit([[1.0], [2.0]], [0, 1])


def test_faults_are_those_that_scikit_learn_expects() -> None:
    x, y = load_iris(return_X_y=True)
    with pytest.raises(NotFittedError):
        TensileClassifier().predict(x)
    with pytest.raises(TypeError, match="Sparse data was passed"):
        TensileClassifier().fit(csr_matrix(x), y)
    with pytest.raises(ValueError, match="y has one class"):
        TensileClassifier().fit(x, np.zeros(len(x)))
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        TensileRegressor().fit(x, y[:-1])
    with pytest.raises(ValueError, match="infinity"):
        TensileRegressor().fit(np.full((4, 1), np.inf), np.arange(4.0))
    with pytest.raises(ValueError, match="every feature has one value") as constant:
        TensileRegressor(**QUICK).fit(np.ones((20, 1)), np.arange(20.0))
    assert isinstance(constant.value, DataError)
    with pytest.raises(RequestError, match="architecture"):
        TensileClassifier(architecture="no_such").fit(x, y)


@pytest.mark.parametrize("check", DAILY, ids=lambda check: check.__name__)
def test_a_few_checks_of_scikit_learn_pass(check: Any) -> None:
    for kind in (TensileClassifier, TensileRegressor):
        check(kind.__name__, kind(**QUICK))


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", [TensileClassifier, TensileRegressor])
def test_all_checks_of_scikit_learn_pass(kind: Any) -> None:
    results = check_estimator(kind(**QUICK), on_fail=None, on_skip=None, expected_failed_checks=EXPECTED)
    failed = {result["check_name"]: repr(result["exception"]) for result in results if result["status"] == "failed"}
    assert failed == {}
    assert len(results) > 40
