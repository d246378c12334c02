"""Check the access sequences of tensors, on graphs small enough to read them off."""

from indb_tensile.scheduler.graph import OpIndex, Role, TensorId
from indb_tensile.scheduler.tensile.sequence import AccessSequence, sequences
from tests.scheduler.access_rows import graph_from_rows


def test_tensor_is_generated_once_and_then_used() -> None:
    assert sequences(graph_from_rows((1, Role.ACTIVATION, ".w.r.r"))) == (_sequence(0, 1, 3, 5),)


def test_tensor_accessed_once_has_no_sequence() -> None:
    assert sequences(graph_from_rows((1, Role.ACTIVATION, "w."))) == ()


def test_rewritten_tensor_starts_a_new_sequence() -> None:
    graph = graph_from_rows((1, Role.ACTIVATION, "w.r.u.r"))
    assert sequences(graph) == (_sequence(0, 0, 2, 4), _sequence(0, 4, 6))


def test_updated_parameter_is_next_used_in_the_following_iteration() -> None:
    """Algorithm 2, lines 8-9."""
    graph = graph_from_rows((1, Role.PARAMETER, ".r.r.u."))
    assert sequences(graph) == (_sequence(0, 1, 3, 5), _sequence(0, 5, 8, updated=True))


def test_optimizer_state_accessed_once_is_idle_around_the_iteration() -> None:
    assert sequences(graph_from_rows((1, Role.OPTIMIZER_STATE, "..u.."))) == (_sequence(0, 2, 7, updated=True),)


def test_parameter_updated_before_its_last_use_leaves_after_that_use() -> None:
    graph = graph_from_rows((1, Role.PARAMETER, "r.u.r."))
    assert sequences(graph) == (_sequence(0, 0, 2), _sequence(0, 2, 4), _sequence(0, 4, 6, updated=True))


def test_frozen_parameter_stays_between_iterations() -> None:
    assert sequences(graph_from_rows((1, Role.PARAMETER, "r..r."))) == (_sequence(0, 0, 3),)


def test_persistent_tensor_without_accesses_has_an_empty_sequence() -> None:
    graph = graph_from_rows((1, Role.OPTIMIZER_STATE, ".."), (1, Role.ACTIVATION, "wr"))
    assert sequences(graph) == (_sequence(0), _sequence(1, 0, 1))


def _sequence(tensor: int, *accesses: int, updated: bool = False) -> AccessSequence:
    return AccessSequence(tensor=TensorId(tensor), accesses=tuple(OpIndex(k) for k in accesses), updated=updated)
