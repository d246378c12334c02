"""Check with a real controller that a version gets its baseline after it was published."""

import pytest

from tests.e2e.conftest import Service
from tests.e2e.trainings import load, train

pytestmark = pytest.mark.postgres

INFO = "select baseline, baseline_metrics, metric_name from tensile_training_info(%s)"
FIGURE = """
select figure from tensile.version_figures join tensile.model_versions using (version_id)
 where job_id = %s and name = 'baseline'"""


@pytest.mark.nightly
def test_a_published_version_gets_the_metrics_of_boosting(service: Service) -> None:
    service.settings["TENSILE_BASELINE"] = "true"
    service.start()
    with service.database.connect("demo") as demo:
        load(demo, "diabetes")
        network = train(demo, "network", "diabetes", architecture="mlp")
        off = train(demo, "off", "diabetes", architecture="mlp", baseline=False)
        assert service.until_ended(network, off) == ["succeeded"] * 2
        baseline, metrics, name = service.until(
            lambda: (row := demo.execute(INFO, ("network",)).fetchone()) and row[0] is not None and row,
            "the baseline to be computed",
        )
        assert (baseline, baseline > 0.2) == (metrics[name], True)
        listed = "select baseline from tensile.model_list where model = 'network'"
        assert demo.execute(listed.encode()).fetchone() == (baseline,)
        assert demo.execute(INFO, ("off",)).fetchone() == (None, None, "r2")
        reason = {"reason": "the hyper-parameter baseline is false"}
        assert demo.execute(FIGURE.encode(), (off,)).fetchone() == (reason,)
    assert list((service.directory / "baselines").glob("*/*")) == []
