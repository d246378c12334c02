"""The memory of training parts of a registered network is that of its plan to the byte, and plans change no bit."""

import pytest

from indb_tensile.bench.commands.pretrained import measure, measure_part, subject_of
from indb_tensile.bench.harness.networks.tiny_networks import tiny_network
from indb_tensile.bench.harness.tables.debian_descriptions import section_table
from indb_tensile.bench.harness.trainings.few_labels import fine_tune, tfidf, untrained
from indb_tensile.bench.harness.trainings.text_pretraining import pretrain

WORDS = tuple(f"word{number}" for number in range(60))


@pytest.mark.nightly
def test_tight_plan_of_lora_takes_what_it_says_and_changes_no_bit() -> None:
    network = tiny_network("bert", WORDS)
    own = measure_part(subject_of(network, "lora", 4, 8), "lora", 0.2)
    assert own.exact
    assert own.measured_bytes == own.planned_bytes < own.peak_bytes
    assert own.state_bytes == 8 * own.learned + 4
    assert own.learned < own.parameters / 4


@pytest.mark.nightly
def test_parts_take_less_memory_than_the_whole() -> None:
    measured = {own.train: own for own in measure(tiny_network("bert", WORDS, width=32), 4, 16, 0.2)}
    assert list(measured) == ["all", "lora", "head"]
    assert all(own.exact and own.measured_bytes == own.planned_bytes for own in measured.values())
    assert measured["head"].peak_bytes < measured["lora"].peak_bytes < measured["all"].peak_bytes


@pytest.mark.nightly
def test_network_that_is_pretrained_here_is_registered_and_fine_tuned() -> None:
    texts = [f"{name} {word} of the {name}" for word in WORDS for name in ("server", "music", "player")]
    table = section_table((text, text.split()[0]) for text in texts)
    pretrained = pretrain(texts, steps=20)
    assert pretrained.last_loss < pretrained.first_loss
    for part in ("head", "lora"):
        accuracy, job = fine_tune(table, 60, 0, pretrained.network, part, {"epochs": 40, "batch_size": 16})
        assert accuracy > 0.5
        assert job.architecture["digest"] == pretrained.network.digest != untrained(pretrained.network).digest
    assert tfidf(table, 60, 0) > 0.5
