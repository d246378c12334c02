"""Random steps are equal for equal seeds, small, and cover every kind of operator that training a network needs."""

from itertools import islice

import pytest

from indb_tensile.executor.latency.calibrate import kernels
from indb_tensile.executor.latency.drawn_operators import draw_steps
from indb_tensile.executor.latency.survey import survey
from indb_tensile.scheduler.graph import Stage

_STEPS = 10


@pytest.mark.nightly
def test_equal_seeds_draw_equal_steps_and_different_seeds_different_steps() -> None:
    first, again, other = ([s.graph.signature for s in islice(draw_steps(seed), 2)] for seed in (3, 3, 4))
    assert first == again
    assert set(first).isdisjoint(other)


@pytest.mark.nightly
def test_drawn_steps_cover_every_family_and_stage_and_are_small() -> None:
    steps = list(islice(draw_steps(0), _STEPS))
    operators = [operator for step in steps for operator in step.graph.operators]
    names = {operator.name for operator in operators}
    assert {operator.stage for operator in operators} == set(Stage)
    assert {
        "upload",
        "aten.mm.default",
        "aten.addmm.default",
        "aten.convolution.default",
        "aten.convolution_backward.default",
        "aten.native_batch_norm_backward.default",
        "aten.native_layer_norm_backward.default",
        "aten._log_softmax_backward_data.default",
        "aten._fused_adam_.default",
    } <= names
    assert max(operator.flops for operator in operators) <= 4_000_000_000
    assert max(tensor.size_bytes for step in steps for tensor in step.graph.tensors) <= 128 * 1024 * 1024


def test_every_operator_of_a_step_is_described_under_its_signature() -> None:
    for step in islice(draw_steps(1), 2):
        described = step.descriptions
        assert set(described) == {operator.signature for operator in step.graph.operators}
        assert [(described[o.signature].name, described[o.signature].flops) for o in step.graph.operators] == [
            (o.name, o.flops) for o in step.graph.operators
        ]


@pytest.mark.nightly
def test_a_survey_measures_each_drawn_operator_once_and_stops_on_request() -> None:
    first = next(draw_steps(5))
    descriptions = [call.description for _, call in kernels([first]).values()]
    calls = 0

    def stopped() -> bool:
        nonlocal calls
        calls += 1
        return calls > len(descriptions)

    samples = list(survey(5, neighbours=0, least_share=0, stopped=stopped))
    assert [sample.description for sample in samples] == descriptions
    assert {sample.utilisation for sample in samples} == {0.0}
    assert min(sample.latency_ns for sample in samples) > 0


def test_a_survey_ends_when_its_time_is_used() -> None:
    assert len(list(survey(5, device_s=1e-9, neighbours=0, least_share=0))) == 1


@pytest.mark.nightly
def test_every_fourth_network_is_measured_beside_busy_neighbours() -> None:
    *first, fourth = islice(draw_steps(5), 4)
    alone, crowded = len(kernels(first)), len(kernels([fourth]))
    samples = islice(survey(5, neighbours=1, least_share=0), alone + crowded)
    assert [sample.utilisation for sample in samples] == [0.0] * alone + [1.0] * crowded


@pytest.mark.nightly
def test_an_operator_with_too_little_processor_time_is_left_out_of_the_survey() -> None:
    operators = len(kernels([next(draw_steps(5))]))
    calls = 0

    def stopped() -> bool:
        nonlocal calls
        calls += 1
        return calls > operators

    # One thread runs, so nothing uses more than one processor.
    assert list(survey(5, neighbours=0, least_share=1e6, stopped=stopped)) == []
