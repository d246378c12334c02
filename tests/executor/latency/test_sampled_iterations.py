"""Operator latencies are computed from timed iterations, from timed graphs, and on a GPU shared with other jobs."""

from indb_tensile.executor.latency.sampled_iterations import SampledIterations, TimedIteration, summarise


def sample(*latency_ns: int, stall_ns: int = 0) -> TimedIteration:
    return TimedIteration(latency_ns, sum(latency_ns) + stall_ns, stall_ns)


def test_on_the_processor_the_mean_latencies_add_up_to_the_iteration() -> None:
    measurement = summarise([sample(10, 30), sample(30, 30, stall_ns=20)], (), 7, on_gpu=False)
    assert measurement == SampledIterations(
        latency_ns=(20, 30), iteration_ns=60, stall_ns=10, peak_bytes=7, samples=2
    )


def test_a_time_slice_of_another_job_lengthens_the_iteration_and_no_operator() -> None:
    measurement = summarise([sample(10, 30), sample(2010, 30), sample(10, 30)], (), 7, on_gpu=True)
    assert (measurement.latency_ns, measurement.iteration_ns) == ((10, 30), 707)


def test_the_iteration_takes_its_time_from_the_graphs_and_the_fastest_graph_scales_the_operators() -> None:
    measurement = summarise([sample(100, 250, stall_ns=50)] * 3, (200, 200, 500), 7, on_gpu=True)
    assert measurement == SampledIterations(
        latency_ns=(50, 125), iteration_ns=300, stall_ns=25, peak_bytes=7, samples=3, graph_share=0.5
    )


def test_in_a_round_the_operators_are_scaled_as_they_were_in_the_last_graph_and_gates_are_not() -> None:
    measurement = summarise([sample(100, 250, stall_ns=50)] * 3, (), 7, on_gpu=True, graph_share=0.5)
    assert measurement == SampledIterations(
        latency_ns=(50, 125), iteration_ns=400, stall_ns=50, peak_bytes=7, samples=3, graph_share=0.5
    )


def test_a_graph_that_waits_for_its_copies_does_not_scale_operators_up() -> None:
    assert summarise([sample(10, 20)], (60,), 7, on_gpu=True).latency_ns == (10, 20)


def test_a_pause_between_two_iterations_does_not_count() -> None:
    assert summarise([sample(10)] * 3, (), 7, on_gpu=False, between_ns=(4, 90_000, 6)).between_ns == 6
    assert summarise([sample(10)], (), 7, on_gpu=False).between_ns == 0


def test_latencies_of_zero_are_not_scaled() -> None:
    assert summarise([sample(0, 0)], (0,), 7, on_gpu=True).latency_ns == (0, 0)
