"""Check trainings that start from the weights of another version, after the job that trains it, end to end."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
import safetensors.torch
import torch

from tests.e2e.conftest import Service
from tests.e2e.trainings import WIDE, device_is_free, train, weights

pytestmark = pytest.mark.postgres

MORE_CLASSES = """
create table more as select id, pixels, case id when 9 then 10 else label end as label from digits;
grant select on more to tensile_reader"""
LITTLE = "4300kB"  # a twentieth more than the least that any plan of this training needs
OTHER_NETWORK = """
select tensile_train('narrower', 'digits', init_from => 'origin',
                     architecture => '{"type": "mlp", "hidden": [16]}')"""
FURTHER = """tensile_train(%s, 'digits', init_from => 'origin', memory_limit => %s, depends_on => %s,
  hyperparams => '{"epochs": 1, "batch_size": 128, "seed": 3, "freeze": ["1", "10.bias"]}')"""


@pytest.fixture
def demo(running: Service) -> Iterator[psycopg.Connection]:
    """A session of an ordinary user, with a free device."""
    running.until(lambda: device_is_free(running), "the device to be free")
    with running.database.connect("demo") as connection:
        yield connection


@pytest.mark.nightly
def test_a_training_from_other_weights_has_equal_bits_in_little_memory_and_must_fit(
    running: Service, demo: psycopg.Connection
) -> None:
    with demo.transaction():
        origin = train(demo, "origin", "digits", epochs=1)
        ample = enqueue(demo, "ample", None, [origin])
    assert running.until_ended(origin, ample) == ["succeeded"] * 2
    tight = enqueue(demo, "tight", LITTLE, [ample])
    assert running.until_ended(tight) == ["succeeded"]

    assert weights(running, tight) == weights(running, ample)
    before, after = tensors(running, origin), tensors(running, tight)
    assert [name for name in before if torch.equal(before[name], after[name])] == ["1.bias", "1.weight", "10.bias"]
    moved = "select sum(swaps + recomputed) > 0 from tensile.plans where job_id = %s"
    assert running.value(moved, tight) is True
    rows = demo.execute(
        "select version, architecture = %s::jsonb, settings -> 'init_from' from tensile_training_info('tight')",
        (WIDE,),
    ).fetchall()
    assert rows == [(1, True, {"model": "origin", "version": 1})]
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=r'"hidden" is \[16\], and not \[512, 512, 512\]'):
        demo.execute(OTHER_NETWORK)


@pytest.mark.nightly
def test_a_network_grows_by_a_class_that_its_first_training_did_not_have(
    running: Service, demo: psycopg.Connection
) -> None:
    origin = train(demo, "few", "digits", epochs=1)
    assert running.until_ended(origin) == ["succeeded"]
    demo.execute(MORE_CLASSES)
    grown = value(demo, "select tensile_train('more', 'more', task => 'classification', init_from => 'few')")
    assert running.until_ended(grown) == ["succeeded"]
    assert tensors(running, grown)["10.weight"].shape == (11, 512)


def enqueue(demo: psycopg.Connection, model: str, limit: str | None, depends_on: list[int]) -> int:
    row = demo.execute(f"select {FURTHER}", (model, limit, depends_on)).fetchone()
    assert row is not None
    return int(row[0])


def tensors(running: Service, job: int) -> dict[str, torch.Tensor]:
    """Return the published weights of a job, in the order of their names."""
    stored = running.value(
        "select string_agg(chunk, '' order by chunk_no) from tensile.artifacts join tensile.model_versions as v"
        " using (version_id) where v.job_id = %s",
        job,
    )
    return dict(sorted(safetensors.torch.load(bytes(stored)).items()))


def value(demo: psycopg.Connection, statement: str) -> Any:
    row = demo.execute(statement.encode()).fetchone()
    assert row is not None
    return row[0]
