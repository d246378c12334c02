"""Check which trainings several devices may do together."""

import pytest

from indb_tensile.errors import RequestError
from indb_tensile.request.hyperparam_rules import HYPERPARAMS, check_hyperparams
from indb_tensile.request.rank_rules import EXACT, check_devices


def request(*, architecture: object = None, **hyperparams: int | str) -> dict[str, object]:
    return {"architecture": architecture or {"type": "mlp"}, "hyperparams": hyperparams}


def test_several_devices_train_a_network_whose_batches_have_a_part_for_each() -> None:
    assert [check_devices(devices, request()) for devices in (None, 1, 2, 64)] == [1, 1, 2, 64]
    assert check_devices(4, request(batch_size=8)) == 4
    assert check_devices(3, request(batch_size=96, micro_batch_size=32)) == 3
    assert check_devices(3, request(batch_size=3, micro_batch_size=1)) == 3
    assert check_devices(2, request(architecture={"type": "cnn", "batch_norm": False})) == 2
    assert check_devices(1, request(architecture={"type": "resnet"})) == 1


@pytest.mark.parametrize("devices", [0, -1, 65, 1.5, True, "2"])
def test_a_number_of_devices_is_a_small_whole_number(devices: object) -> None:
    with pytest.raises(RequestError, match="devices is ") as caught:
        check_devices(devices, request())
    assert caught.value.hint == "Give a number from 1 to 64: each device computes a part of every batch."


@pytest.mark.parametrize(
    ("devices", "hyperparams", "message"),
    [
        (4, {"batch_size": 7}, "devices is 4, and a batch of 7 rows has fewer parts: 3"),
        (2, {"batch_size": 1}, "devices is 2, and a batch of 1 rows has fewer parts: 1"),
        (
            4,
            {"batch_size": 96, "micro_batch_size": 32},
            "devices is 4, and a batch of 96 rows has fewer parts with micro_batch_size 32: 3",
        ),
    ],
)
def test_a_batch_with_fewer_parts_than_devices_is_refused(
    devices: int, hyperparams: dict[str, int], message: str
) -> None:
    with pytest.raises(RequestError) as caught:
        check_devices(devices, request(**hyperparams))
    assert caught.value.message == message


@pytest.mark.parametrize(
    "architecture",
    [
        {"type": "cnn"},
        {"type": "mlp", "batch_norm": True},
        {"type": "resnet"},
        {"type": "layers", "layers": [{"type": "linear", "out": 8}, {"type": "batch_norm1d"}]},
    ],
)
def test_batch_normalisation_of_single_rows_is_refused_on_several_devices(architecture: object) -> None:
    assert check_devices(2, request(architecture=architecture, batch_size=4)) == 2
    with pytest.raises(RequestError) as caught:
        check_devices(4, request(architecture=architecture, batch_size=4))
    assert caught.value.message == "devices is 4, and each would normalise one row of a batch of 4 rows"
    assert caught.value.hint == "Give a batch_size of 8 or more, or use fewer devices."
    assert check_devices(4, request(architecture={"type": "mlp"}, batch_size=4)) == 4


def test_a_model_of_scikit_learn_is_refused_on_several_devices() -> None:
    with pytest.raises(RequestError, match='devices is 2, and "boosting" trains on the processors of one machine'):
        check_devices(2, request(architecture={"type": "boosting"}))


def test_only_several_devices_add_up_gradients_fast() -> None:
    assert [check_devices(devices, request(reduce="exact")) for devices in (None, 1, 2)] == [1, 1, 2]
    assert check_devices(2, request(reduce="fast")) == 2
    assert HYPERPARAMS["reduce"]["default"] == EXACT
    for devices in (None, 1):
        with pytest.raises(RequestError) as caught:
            check_devices(devices, request(reduce="fast"))
        assert caught.value.message == 'hyperparams: "reduce" is fast, and one device trains'
        assert caught.value.hint == 'Leave "reduce" out, or give devices => 2 or more.'


def test_only_several_devices_divide_the_optimizers_state() -> None:
    assert [check_devices(devices, request(zero_stage=0)) for devices in (None, 1, 2)] == [1, 1, 2]
    assert check_devices(2, request(zero_stage=1)) == 2
    with pytest.raises(RequestError, match='hyperparams: "zero_stage" is 1, and one device trains') as caught:
        check_devices(None, request(zero_stage=1))
    assert caught.value.hint == 'Leave "zero_stage" out, or give devices => 2 or more.'
    with pytest.raises(RequestError, match='"zero_stage" is 1, and sgd without a momentum keeps no state'):
        check_hyperparams({"optimizer": "sgd", "momentum": 0, "zero_stage": 1})


def test_an_unknown_way_to_add_up_gradients_is_refused_with_those_that_exist() -> None:
    with pytest.raises(RequestError, match="reduce") as caught:
        check_hyperparams({"reduce": "slow"})
    assert caught.value.hint is not None
    assert "exact" in caught.value.hint
    assert "fast" in caught.value.hint
