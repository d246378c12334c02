"""Say which modules of tests run in the same test process, one after another, because they share what is expensive.

`--dist loadfile` gives all tests of a module to one process. The modules of a scope below share fixtures of the
session, or a process that has imported torch.
"""

from xdist.scheduler import LoadFileScheduling

# Scopes that take longest come first, so that no process is left alone with a long one at the end.
TOGETHER = {
    "e2e, one controller": (
        "tests/e2e/test_training.py",
        "tests/e2e/test_parking.py",
        "tests/e2e/test_closing.py",
        "tests/e2e/test_report.py",
        "tests/e2e/test_traces.py",
        "tests/e2e/test_foreign_tables.py",
        "tests/e2e/test_deployment.py",
        "tests/e2e/test_init_from.py",
        "tests/e2e/test_transform.py",
        "tests/e2e/test_understanding.py",
        "tests/e2e/test_predict_into.py",
        "tests/e2e/test_searches.py",
        "tests/e2e/test_images.py",
        "tests/e2e/test_estimators.py",
        "tests/e2e/test_client.py",
        "tests/e2e/test_model_files.py",
        "tests/e2e/test_sklearn_estimators.py",
        "tests/e2e/test_python_page.py",
        "tests/e2e/test_targets.py",
        "tests/e2e/test_texts.py",
        "tests/e2e/test_pretrained.py",
        "tests/e2e/test_examples.py",
        "tests/e2e/test_forecasts.py",
        "tests/e2e/test_embeddings.py",
        "tests/e2e/test_anomalies.py",
        "tests/e2e/test_pairs.py",
    ),
    "services of one fork server": (
        "tests/service/readings/test_shared_readings.py",
        "tests/service/readings/test_reading_ends.py",
        "tests/service/test_service.py",
        "tests/service/test_table_predictions.py",
        "tests/service/test_types.py",
        "tests/service/test_changed_columns.py",
        "tests/service/test_counts.py",
        "tests/service/test_session_settings.py",
        "tests/service/test_remote_service.py",
        "tests/service/test_prepared_transactions.py",
    ),
    "models captured once, and forks with the shim preloaded": (
        "tests/executor/run/test_runner.py",
        "tests/executor/run/test_sampling.py",
        "tests/executor/run/test_rewritten.py",
        "tests/executor/capture/test_capture.py",
        "tests/executor/capture/test_stored_capture.py",
        "tests/executor/capture/test_step_numbers.py",
        "tests/executor/latency/test_calibrate.py",
        "tests/executor/test_without_database.py",
        "tests/device/test_memory.py",
        "tests/executor/run/test_parking.py",
        "tests/executor/run/test_rounds.py",
        "tests/executor/run/test_graph_cache.py",
        "tests/executor/run/test_placer.py",
        "tests/executor/run/test_strict.py",
        "tests/executor/run/test_workspace_correction.py",
        "tests/executor/run/test_next_batch.py",
        "tests/executor/capture/test_allocation_script.py",
        "tests/device/test_allocator_shim.py",
        "tests/learning/test_requirements.py",
        "tests/training/test_learner.py",
        "tests/training/test_capture_files.py",
    ),
    "the library transformers, whose import takes two seconds": (
        "tests/learning/test_pretrained.py",
        "tests/learning/test_network_directory.py",
    ),
}
_SCOPES = {module: scope for scope, modules in TOGETHER.items() for module in modules}


class ScopeScheduling(LoadFileScheduling):  # type: ignore[misc]  # xdist ships no types
    """Gives all tests of a scope to one process, and all tests of any other module."""

    def _split_scope(self, nodeid: str) -> str:
        module: str = super()._split_scope(nodeid)
        return _SCOPES.get(module, module)


def place_of(module: str) -> int:
    """Return a key that sorts modules of scopes first, in the order of their scopes."""
    return list(_SCOPES).index(module) if module in _SCOPES else len(_SCOPES)
