"""Check with a real controller that a model trains from a registered network, and predicts in every way alike."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from indb_tensile.bench.harness.networks.tiny_networks import tiny_network, write_directory
from tests.cli.conftest import Tensile
from tests.e2e.conftest import Service
from tests.e2e.test_texts import TABLE
from tests.e2e.trainings import check_killed_without_fault, child_pids, weights

pytestmark = pytest.mark.postgres

WORDS = (
    "the",
    "server",
    "has",
    "tables",
    "with",
    "an",
    "index",
    "a",
    "player",
    "for",
    "music",
    "codecs",
    "of",
    "sound",
)
PREPROCESS = '{"encode": {"body": "tokens", "title": "tokens"}, "length": {"title": 4}}'
TRAIN = "select tensile_train(%s, 'notes', 'section', architecture => %s, preprocess => %s, hyperparams => %s)"


def ask(
    demo: psycopg.Connection, model: str, architecture: dict[str, Any], epochs: int = 4, preprocess: str = PREPROCESS
) -> int:
    settings = {"epochs": epochs, "batch_size": 32, "learning_rate": 0.01}
    values = (model, json.dumps({"type": "pretrained"} | architecture), preprocess, json.dumps(settings))
    row = demo.execute(TRAIN, values).fetchone()
    assert row is not None
    return int(row[0])


@pytest.fixture(scope="module")
def tensile(running: Service) -> Tensile:
    """The command line as the superuser of the running controller's database."""
    return Tensile({"TENSILE_DSN": running.database.dsn()})


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_directory(tiny_network("bert", WORDS), tmp_path / "bert")


@pytest.fixture
def demo(running: Service, tensile: Tensile, directory: Path) -> Iterator[psycopg.Connection]:
    """The role demo, which may use the registered network `bert`."""
    with running.database.connect("demo") as connection:
        connection.execute(TABLE.encode())
        done = tensile("models", "import", "--hf", str(directory), "--name", "bert", "--grant", "demo", "--json")
        assert (done.code, json.loads(done.out)["network"]) == (0, "bert"), done.err
        yield connection


@pytest.mark.nightly
def test_a_model_from_a_registered_network_trains_and_predicts(
    running: Service, tensile: Tensile, demo: psycopg.Connection
) -> None:
    def rows(statement: str) -> list[tuple[Any, ...]]:
        return demo.execute(statement.encode()).fetchall()

    job = ask(demo, "read", {"from": "bert", "train": "lora", "lora": {"r": 2}}, epochs=3)
    assert running.until_ended(job) == ["succeeded"], running.log.read_text()
    architecture, parameters, metric = rows(
        "select architecture, parameters, metric from tensile_training_info('read')"
    )[0]
    network, size_bytes, all_parameters = rows("select digest, weights_bytes, parameters from tensile.network_list")[
        0
    ]
    assert (architecture["digest"], architecture["train"]) == (network, "lora")
    assert metric > 0.9
    assert parameters < all_parameters
    stored = running.value("select weights_bytes from tensile.model_versions where job_id = %s", job)
    assert stored < size_bytes

    whole = rows("select label from tensile_predict_table('read', 'notes') order by (key ->> 'id')::int")
    assert rows("select tensile_predict_label('read', n) from notes as n where id <= 40 order by id") == whole[:40]
    refused = tensile("models", "remove", "bert")
    assert refused.code != 0
    assert 'models need network "bert"' in refused.err


@pytest.mark.nightly
def test_a_model_is_continued_and_told_what_it_needs(
    running: Service, tensile: Tensile, demo: psycopg.Connection, directory: Path
) -> None:
    def rows(statement: str) -> list[tuple[Any, ...]]:
        return demo.execute(statement.encode()).fetchall()

    job = ask(demo, "read", {"from": "bert", "train": "lora"})
    assert running.until_ended(job) == ["succeeded"], running.log.read_text()
    whole = rows("select label from tensile_predict_table('read', 'notes') order by (key ->> 'id')::int")
    into, more = (
        rows(call)[0][0]
        for call in (
            "select tensile_predict_into('read', 'notes', 'was_read')",
            """select tensile_train('read', 'notes', init_from => 'read', hyperparams => '{"epochs": 1}')""",
        )
    )
    assert running.until_ended(into, more) == ["succeeded"] * 2, running.log.read_text()
    assert rows("select label from was_read order by id") == whole
    demo.execute("drop view was_read")

    assert tensile("models", "remove", "bert", "--force").code == 0
    late = ask_late(running, demo)
    assert 'there is no network "bert" that role "demo" may train from' in late
    retried = rows("select tensile_predict_table('read', 'notes') limit 1")
    assert retried  # the service has the version in memory
    removed = rows("select tensile_predict_into('read', 'notes', 'unread')")[0][0]
    assert running.until_ended(removed) == ["failed"]
    message = running.value("select error_message from tensile.jobs where job_id = %s", removed)
    assert 'of model "read" needs the registered network "bert" with digest' in message
    assert tensile("models", "import", "--hf", str(directory), "--name", "again").code == 0
    anew = rows("select tensile_predict_into('read', 'notes', 'read_again')")[0][0]
    assert running.until_ended(anew) == ["succeeded"], running.log.read_text()
    assert rows("select label from read_again order by id") == whole
    demo.execute("drop view read_again")
    assert tensile("models", "remove", "again", "--force").code == 0


def ask_late(running: Service, demo: psycopg.Connection) -> str:
    """Return the refusal of a training from a network that is gone."""
    with pytest.raises(psycopg.Error) as refused:
        ask(demo, "late", {"from": "bert"})
    assert refused.value.diag.message_hint is not None
    return str(refused.value.diag.message_primary)


def test_wrong_requests_are_refused_when_they_are_enqueued(demo: psycopg.Connection) -> None:
    def refusal(architecture: dict[str, Any], preprocess: str = PREPROCESS) -> str:
        with pytest.raises(psycopg.Error) as refused:
            ask(demo, "wrong", architecture, preprocess=preprocess)
        assert refused.value.diag.message_hint, refused.value
        return str(refused.value.diag.message_primary)

    assert 'parameter "from" is missing' in refusal({})
    assert '"train" is "some"' in refusal({"from": "bert", "train": "some"})
    assert '"lora" means nothing with train head' in refusal({"from": "bert", "lora": {}})
    assert 'lora: "r" is 0' in refusal({"from": "bert", "train": "lora", "lora": {"r": 0}})
    assert "no such layers" in refusal({"from": "bert", "train": "lora", "lora": {"targets": ["c_attn"]}})
    assert '"digest" is "x"' in refusal({"from": "bert", "digest": "x"})
    assert "it was replaced" in refusal({"from": "bert", "digest": "0" * 64})
    long = '{"encode": {"body": "tokens"}, "length": {"body": 100}}'
    assert '"length" of column "body" is 100, and network "bert" reads 40 tokens' in refusal({"from": "bert"}, long)
    words = '{"encode": {"body": "tokens"}, "vocabulary": 300}'
    assert '"vocabulary" means nothing with architecture pretrained' in refusal({"from": "bert"}, words)


@pytest.mark.nightly
def test_a_training_is_explained_from_the_sizes_of_the_network(demo: psycopg.Connection) -> None:
    explained = demo.execute(
        "select policy, peak_bytes"
        " from tensile_explain('e', 'notes', 'section', architecture => %s, preprocess => %s)",
        (json.dumps({"type": "pretrained", "from": "bert", "train": "all"}), PREPROCESS),
    ).fetchall()
    assert len(explained) == 3
    assert all(peak_bytes > 0 for _, peak_bytes in explained)


@pytest.mark.nightly
@pytest.mark.parametrize("part", ["head", "lora", "all"])
def test_a_training_from_a_network_survives_a_kill_bit_for_bit(
    running: Service, demo: psycopg.Connection, part: str
) -> None:
    calm, killed = (ask(demo, f"{name}_{part}", {"from": "bert", "train": part}, 60) for name in ("calm", "killed"))
    phase = "select phase::text from tensile.jobs where job_id = %s"
    running.until(lambda: running.value(phase, killed) == "training", "the training to begin")
    for trainer in child_pids(running, "tensile trainer"):
        os.kill(trainer, signal.SIGKILL)
    assert running.until_ended(calm, killed) == ["succeeded"] * 2, running.log.read_text()
    check_killed_without_fault(running, killed)
    assert weights(running, calm) == weights(running, killed)
