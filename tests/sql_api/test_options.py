"""Check that the bridge's tables of options equal those of `learning`, which the bridge cannot import."""

from indb_tensile.job import Task
from indb_tensile.learning import (
    architectures,
    earlystop,
    feature_options,
    hyperparams,
    layers,
    model_metrics,
    splits,
)
from indb_tensile.sql_api import options


def test_options_equal_those_of_learning() -> None:
    assert options.HYPERPARAMS == hyperparams.HYPERPARAMS
    assert options.ARCHITECTURES == architectures.ARCHITECTURES
    assert options.MOST_PARAMETERS == architectures.MOST_PARAMETERS
    assert options.LAYERS == layers.LAYERS
    assert (options.MOST_LAYERS, options.DEEPEST_LAYERS) == (layers.MOST_LAYERS, layers.DEEPEST_LAYERS)
    assert options.ONLY_WITH == hyperparams.ONLY_WITH
    assert options.SPLIT == splits.SPLIT
    assert options.EARLY_STOP == earlystop.EARLY_STOP
    assert {Task(task): names for task, names in options.METRICS.items()} == model_metrics.METRICS
    assert options.PREPROCESS == feature_options.PREPROCESS
    assert options.RULES == feature_options.RULES
