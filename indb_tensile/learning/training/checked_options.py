"""The checked options of a training request: how rows are divided, encoded, weighed and compared."""

from dataclasses import dataclass

from indb_tensile.job import JobSpec, Task
from indb_tensile.learning.encoding.feature_options import FeatureOptions
from indb_tensile.learning.encoding.row_weights import WeightOptions
from indb_tensile.learning.evaluation.model_metrics import default_metric
from indb_tensile.learning.storage.splits import Split
from indb_tensile.request.early_stop_rules import check_early_stop
from indb_tensile.request.hyperparam_rules import check_hyperparams, check_schedule
from indb_tensile.request.loss_rules import check_loss
from indb_tensile.request.network_rules import PAIR_ARCHITECTURES, check_architecture
from indb_tensile.request.pair_rules import check_pair_encodings, check_pairs
from indb_tensile.request.task_rules import check_metric, check_named_targets
from indb_tensile.request.token_rules import check_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedOptions:
    """The options that the preparation of a training needs before it reads the table."""

    split: Split
    options: FeatureOptions
    weights: WeightOptions
    metric: str

    @classmethod
    def of(cls, spec: JobSpec) -> "CheckedOptions":
        """Check every option of the specification."""
        check_named_targets(spec.target, spec.targets)
        check_architecture(spec.architecture)
        check_tokens(spec.architecture, spec.preprocess)
        check_loss(check_hyperparams(spec.hyperparams), spec.task)
        if spec.task is Task.PAIRS or spec.architecture["type"] in PAIR_ARCHITECTURES:
            _check_pairs(spec)
        split = Split.parse(spec.split)
        check_schedule(spec.hyperparams, spec.split)
        if spec.early_stop is not None:
            check_early_stop(spec.early_stop, spec.task, spec.split)
        return cls(
            split=split,
            options=FeatureOptions.parse(spec.preprocess),
            weights=WeightOptions.parse(spec.hyperparams),
            metric=default_metric(spec.task) if spec.metric is None else check_metric(spec.task, spec.metric),
        )


def _check_pairs(spec: JobSpec) -> None:
    own = {"architecture": spec.architecture, "task": spec.task, "hyperparams": spec.hyperparams}
    check_pairs({"init_from": spec.init_from, "transform": spec.transform}, own | {"devices": spec.devices})
    check_pair_encodings(spec.preprocess)
