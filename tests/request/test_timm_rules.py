"""A request names a network of timm by a name of timm's own list, and by nothing that would be loaded."""

import pytest

from indb_tensile.errors import RequestError
from indb_tensile.request.network_rules import check_architecture, weights_misfit


def test_names_and_rates_are_accepted() -> None:
    declared = {"type": "timm", "name": "vit_tiny_patch16_224", "drop_rate": 0.1, "drop_path_rate": 0.05}
    assert check_architecture(declared) == declared
    assert check_architecture({"type": "timm", "name": "resnet18", "library_version": "1.0.31"})


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("resnet18.a1_in1k", 'Give "resnet18": a tag behind a dot stands for weights'),
        ("hf-hub:timm/resnet18", "and no address"),
        ("hf_hub:someone/network", "and no address"),
        ("local-dir:/tmp/network", "and no address"),
        ("../resnet18", "and no address"),
        ("ResNet18", "in lower case"),
        ("", 'such as "resnet18"'),
        ("resnet18\n", "and no address"),
        ("a" * 101, "and no address"),
    ],
)
def test_addresses_tags_and_other_spellings_are_refused(name: str, hint: str) -> None:
    with pytest.raises(RequestError, match='architecture timm: "name" is ') as refused:
        check_architecture({"type": "timm", "name": name})
    assert hint in refused.value.hint


def test_a_missing_name_a_wrong_rate_and_a_wrong_version_are_refused() -> None:
    for own, message in (
        ({}, 'parameter "name" is missing'),
        ({"name": "resnet18", "drop_rate": 1}, '"drop_rate" is 1'),
        ({"name": "resnet18", "pretrained": True}, 'unknown parameter "pretrained"'),
        ({"name": "resnet18", "library_version": "latest"}, '"library_version" is "latest"'),
    ):
        with pytest.raises(RequestError, match=message):
            check_architecture({"type": "timm", **own})


def test_weights_of_a_network_of_another_name_do_not_fit() -> None:
    def network(name: str) -> dict[str, str]:
        return {"type": "timm", "name": name}

    assert weights_misfit(network("resnet18"), network("resnet18")) == ""
    assert weights_misfit(network("resnet18"), network("resnet34")) == '"name" is "resnet18", and not "resnet34"'
