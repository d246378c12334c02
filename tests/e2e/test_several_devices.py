"""Check jobs that several devices train together: equal bits, and what a lost rank or controller changes."""

import contextlib
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.conftest import MIB, Service
from tests.e2e.test_images import TABLE as PHOTOS
from tests.e2e.test_images import TRAIN as TRAIN_ON_PHOTOS
from tests.e2e.test_images import insert_many, late_rows, photo
from tests.e2e.test_texts import TABLE as NOTES
from tests.e2e.test_texts import TRAIN as TRAIN_ON_NOTES
from tests.e2e.trainings import load, processes, weights

pytestmark = [pytest.mark.postgres, pytest.mark.nightly]

NETWORK = '{"type": "mlp", "hidden": [64, 48, 32], "dropout": 0.2}'
HYPERPARAMS = {"epochs": 3, "batch_size": 96, "seed": 7, "clip_norm": 0.5}
WIDE = '{"type": "mlp", "hidden": [900, 900, 900, 900, 900]}'  # with Adam 53 MB of state and gradients
LARGE = '{"type": "mlp", "hidden": [1400, 1400]}'  # needs 30 MB of 48 with the norm of all gradients, so no two fit
DIVIDED = {"zero_stage": 1}  # the devices divide the optimizer's state
CAPACITIES_BYTES = (64 * MIB, 48 * MIB, 40 * MIB, 56 * MIB)


@pytest.fixture
def devices(service: Service) -> int:
    """The number of controllers; a test may say another one."""
    return 2


@pytest.fixture
def slow_link(service: Service) -> None:
    """Let swaps take long."""
    service.settings |= {"TENSILE_LINK_OUT_BYTES_PER_S": "50000000", "TENSILE_LINK_IN_BYTES_PER_S": "50000000"}


@pytest.fixture
def small_device(service: Service) -> None:
    """Let the first device hold one job of the network LARGE, as the second one does."""
    service.settings["TENSILE_CAPACITY_BYTES"] = str(CAPACITIES_BYTES[1])


@pytest.fixture
def gang(service: Service, devices: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Controllers of so many emulated devices of different sizes on one catalog: the first is that of `service`."""
    service.settings |= {"TENSILE_ANSWER_S": "8", "TENSILE_LEASE_S": "4", "TENSILE_SHARING": "any_price"}
    service.start()
    with contextlib.ExitStack() as stack:
        started = [begin(service, number, stack) for number in range(1, devices)]
        alive = "select count(*) from tensile.stat_device where alive"
        service.until(lambda: service.value(alive) == devices, "all controllers to report their devices")
        with service.database.connect("demo") as demo:
            load(demo, "digits")
        yield started


def begin(service: Service, number: int, stack: contextlib.ExitStack) -> subprocess.Popen[bytes]:
    """Start a further controller, which ends with the stack."""
    settings = {"TENSILE_CAPACITY_BYTES": str(CAPACITIES_BYTES[number]), "TENSILE_SERVICE_DIRECTORY": ""}
    process = service.spawn(settings)
    stack.callback(end, process)
    return process


def end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGCONT)
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout=30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def train(service: Service, model: str, devices: int, *, network: str = NETWORK, **changes: object) -> int:
    """Enqueue a training on so many devices."""
    with service.database.connect("demo") as demo:
        row = demo.execute(
            "select tensile_train(%s, 'digits', architecture => %s, hyperparams => %s, devices => %s)",
            (model, network, json.dumps(HYPERPARAMS | changes), devices),
        ).fetchone()
    assert row is not None
    return int(row[0])


def alone(service: Service, devices: int, *, network: str = NETWORK, **changes: object) -> str:
    """Return the digest of the weights that one device trains, with batches in as many parts."""
    rows = HYPERPARAMS["batch_size"] // devices
    job = train(service, "alone", 1, network=network, micro_batch_size=rows, **changes)
    assert service.until_ended(job) == ["succeeded"]
    return weights(service, job)


def ranks(service: Service, job: int) -> list[tuple[int, str, int]]:
    """Return number, state and controller's process of each rank that has a worker."""
    return service.connection.execute(
        "select r.rank, r.state, w.pid from tensile.stat_ranks as r join tensile.workers as w using (worker_id)"
        " where r.job_id = %s order by r.rank",
        (job,),
    ).fetchall()


def wait_until_all_train(service: Service, job: int) -> list[int]:
    """Wait until the job has trained an epoch on all devices, and return the controllers' processes by rank."""

    def training() -> list[int]:
        entered = ranks(service, job)
        epoch = service.value("select epoch from tensile.job_progress where job_id = %s", job) or 0
        complete = entered and all(state == "training" for _, state, _ in entered) and epoch > 1
        return [pid for _, _, pid in entered] if complete else []

    pids: list[int] = service.until(training, f"all ranks of job {job} to train")
    return pids


def trainer_of(service: Service, pid: int) -> int:
    """Return the trainer of a controller that has read the table."""
    own = {process for process, parent, name in processes() if (parent, name) == (pid, "tensile trainer")}
    read = re.findall(r"trainer\[(\d+)\] INFO reading table", service.log.read_text(errors="replace"))
    (trainer,) = own.intersection(map(int, read))
    return trainer


def check_clean(service: Service) -> None:
    """Check that nothing is left of the gangs."""
    left = "select count(*) from tensile.job_ranks"
    assert (service.value(left), service.value("select count(*) from tensile.rank_values")) == (0, 0)
    held = "select sum(granted_bytes) from tensile.stat_device where alive"
    service.until(lambda: service.value(held) == 0, "all device memory to be free")


@pytest.mark.parametrize(("devices", "options"), [(2, {}), (3, {}), (4, {}), (3, DIVIDED)])
def test_several_devices_publish_the_bits_of_one(
    service: Service, gang: list[subprocess.Popen[bytes]], devices: int, options: dict[str, Any]
) -> None:
    job = train(service, "gang", devices, **options)
    assert service.until_ended(job) == ["succeeded"]
    assert weights(service, job) == alone(service, devices)
    kinds = {kind for (kind,) in service.connection.execute("select kind from tensile.job_events").fetchall()}
    assert not kinds & {"memory_corrected", "interrupted"}
    check_clean(service)


@pytest.mark.usefixtures("slow_link")
def test_devices_without_memory_for_the_whole_state_divide_it(
    service: Service, gang: list[subprocess.Popen[bytes]]
) -> None:
    del gang
    small, wide = train(service, "gang", 2), train(service, "wide", 2, network=WIDE)
    assert service.until_ended(small, wide) == ["succeeded"] * 2
    recorded = "select detail ->> 'divided' from tensile.job_events where job_id = %s and kind = 'optimizer_state'"
    assert (service.value(recorded, small), service.value(recorded, wide)) == (None, "true")
    assert weights(service, wide) == alone(service, 2, network=WIDE)
    check_clean(service)


@pytest.mark.parametrize("devices", [3])
def test_fast_sum_trains_within_its_plans_to_the_same_bits_each_time(
    service: Service, gang: list[subprocess.Popen[bytes]], devices: int
) -> None:
    jobs = [train(service, "gang", devices, reduce="fast") for _ in range(2)]
    assert service.until_ended(*jobs) == ["succeeded"] * 2
    assert weights(service, jobs[0]) == weights(service, jobs[1])
    met = "select distinct cardinality(hosts), min(time_ns) > 0 from tensile.rank_networks group by hosts"
    assert service.connection.execute(met).fetchall() == [(devices, True)]
    with service.database.connect("demo") as demo:
        shown = demo.execute("select hyperparams ->> 'reduce' from tensile_training_info('gang')").fetchall()
    assert shown == [("fast",)] * 2
    asked = {"model": "gang", "network": NETWORK, "hyperparams": json.dumps(HYPERPARAMS | {"reduce": "fast"})}
    with service.database.connect("demo") as demo:
        explained = demo.execute(
            "select starts_now, note from tensile_explain(%(model)s, 'digits', devices => 3,"
            " architecture => %(network)s, hyperparams => %(hyperparams)s)",
            asked,
        ).fetchall()
    assert [starts_now for starts_now, _ in explained] == [None] * 3
    assert re.match(
        r'each of 3 devices sends about \S+ kB to the others in an iteration, in 1 exchange \("reduce": "fast"\); '
        r"\S+ of \S+ ms of the gradients' exchange are foretold to run beside computation"
        r"(, by the measured speed of the network)?; ",  # trainings write latencies once in ten seconds
        explained[-1][1],
    )
    kinds = {kind for (kind,) in service.connection.execute("select kind from tensile.job_events").fetchall()}
    assert not kinds & {"memory_corrected", "interrupted"}
    check_clean(service)


@pytest.mark.parametrize("options", [{}, DIVIDED], ids=["whole", "divided"])
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_job_goes_on_after_a_trainer_is_lost_and_publishes_the_same_bits(
    service: Service, gang: list[subprocess.Popen[bytes]], rank: int, blow: signal.Signals, options: dict[str, Any]
) -> None:
    job = train(service, "gang", 2, epochs=30, **options)
    pids = wait_until_all_train(service, job)
    shown = "select array_agg(divides_state order by rank) from tensile.stat_ranks where job_id = %s"
    assert service.value(shown, job) == [options == DIVIDED] * 2
    os.kill(trainer_of(service, pids[rank]), blow)
    assert service.until_ended(job) == ["succeeded"]
    assert service.value("select attempt from tensile.jobs where job_id = %s", job) > 1, "nothing was disturbed"
    resumed = "select count(*) from tensile.job_events where job_id = %s and kind = 'resumed'"
    assert service.value(resumed, job) > 0, "it began again from the start"
    assert weights(service, job) == alone(service, 2, epochs=30)
    check_clean(service)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_job_goes_on_after_a_controller_is_lost_and_publishes_the_same_bits(
    service: Service, gang: list[subprocess.Popen[bytes]], rank: int, blow: signal.Signals
) -> None:
    # The trainers of a stopped controller go on until its lease is over, so the job has to take longer.
    epochs = 30 if blow is signal.SIGKILL else 150
    job = train(service, "gang", 2, epochs=epochs)
    lost = wait_until_all_train(service, job)[rank]
    claim = service.value("select claim from tensile.jobs where job_id = %s", job)
    with contextlib.ExitStack() as stack:
        os.kill(lost, blow)
        if service.process is not None and lost == service.process.pid:
            stack.callback(end, service.process)
            service.process = gang[0]  # the one whose end the tests watch for
        begin(service, 2, stack)
        assert service.until_ended(job) == ["succeeded"]
        assert service.value("select claim from tensile.jobs where job_id = %s", job) > claim
        published = weights(service, job)
        if blow is signal.SIGSTOP:
            os.kill(lost, signal.SIGCONT)  # it comes back after its lease, and writes nothing
            alive = "select count(*) from tensile.stat_workers where alive and pid = %s"
            service.until(lambda: service.value(alive, lost), "the controller to be back")
        assert (service.state(job), weights(service, job)) == ("succeeded", published)
        assert published == alone(service, 2, epochs=epochs)
        check_clean(service)


@pytest.mark.parametrize("options", [{}, DIVIDED], ids=["whole", "divided"])
@pytest.mark.parametrize("devices", [2, 3])
def test_job_goes_on_with_fewer_devices_if_no_other_comes_and_publishes_the_same_bits(
    service: Service, gang: list[subprocess.Popen[bytes]], devices: int, options: dict[str, Any]
) -> None:
    """A batch keeps its parts: 3 parts on 2 devices, and 2 parts on one device, are added in the same order."""
    del gang
    service.value("select tensile_set_setting('fewer_devices_after', '\"5 seconds\"')")
    job = train(service, "gang", devices, epochs=30, **options)
    pids = wait_until_all_train(service, job)
    assert service.process is not None
    os.kill(next(pid for pid in pids if pid != service.process.pid), signal.SIGKILL)
    assert service.until_ended(job) == ["succeeded"]
    fewer = "select detail ->> 'to' from tensile.job_events where job_id = %s and kind = 'devices'"
    assert service.value(fewer, job) == str(devices - 1)
    resumed = "select count(*) from tensile.job_events where job_id = %s and kind = 'resumed'"
    assert service.value(resumed, job) > 0, "it began again from the start"
    assert weights(service, job) == alone(service, devices, epochs=30)
    check_clean(service)


def test_fast_sum_goes_on_with_one_device(service: Service, gang: list[subprocess.Popen[bytes]]) -> None:
    service.value("select tensile_set_setting('fewer_devices_after', '\"5 seconds\"')")
    job = train(service, "gang", 2, epochs=30, reduce="fast")
    wait_until_all_train(service, job)
    gang[0].kill()
    assert service.until_ended(job) == ["succeeded"]
    assert service.value("select devices from tensile.jobs where job_id = %s", job) == 1
    check_clean(service)


@pytest.mark.parametrize("options", [{}, DIVIDED], ids=["whole", "divided"])
def test_cancelled_job_ends_on_all_devices_and_a_paused_one_goes_on_with_the_same_bits(
    service: Service, gang: list[subprocess.Popen[bytes]], options: dict[str, Any]
) -> None:
    del gang
    cancelled = train(service, "cancelled", 2, epochs=100_000, **options)
    wait_until_all_train(service, cancelled)
    service.value("update tensile.jobs set cancel_requested = true where job_id = %s returning 1", cancelled)
    assert service.until_ended(cancelled) == ["cancelled"]
    check_clean(service)
    paused = train(service, "paused", 2, epochs=30, **options)
    wait_until_all_train(service, paused)
    service.value("update tensile.jobs set pause_requested = true where job_id = %s returning 1", paused)
    service.until(lambda: service.state(paused) == "queued", "the paused job to leave the devices")
    check_clean(service)
    service.value("update tensile.jobs set pause_requested = false where job_id = %s returning 1", paused)
    assert service.until_ended(paused) == ["succeeded"]
    resumed = "select count(*) from tensile.job_events where job_id = %s and kind = 'resumed'"
    assert service.value(resumed, paused) > 0, "it began again from the start"
    assert weights(service, paused) == alone(service, 2, epochs=30)


def test_single_jobs_and_several_gangs_all_end_with_the_bits_of_one_device(
    service: Service, gang: list[subprocess.Popen[bytes]]
) -> None:
    del gang
    together = [train(service, f"gang {number}", 2) for number in range(3)]
    singles = [train(service, f"single {number}", 1, micro_batch_size=48) for number in range(3)]
    assert service.until_ended(*together, *singles) == ["succeeded"] * 6
    assert len({weights(service, job) for job in (*together, *singles)}) == 1
    check_clean(service)


@pytest.mark.usefixtures("small_device")
def test_single_job_starts_on_one_device_while_a_gang_waits_for_the_other(
    service: Service, gang: list[subprocess.Popen[bytes]]
) -> None:
    del gang
    last = train(service, "long", 1, network=LARGE, epochs=100_000)
    service.until(lambda: service.state(last) == "running", "the first job to train")
    together = train(service, "gang", 2, network=LARGE, epochs=1, zero_stage=0)

    def states() -> list[str]:
        return sorted(state for _, state, _ in ranks(service, together))

    service.until(lambda: states() == ["admitted", "prepared"], "one rank to have memory, and the other to have none")
    single = train(service, "single", 1, network=LARGE, epochs=1)
    assert service.until_ended(single) == ["succeeded"]
    assert (service.state(last), service.value("select count(*) from tensile.gang_turns")) == ("running", 0)
    assert "training" not in states()
    reason = "select detail ->> 'reason' from tensile.job_events where job_id = %s and kind = 'requeued' limit 1"
    assert "not got memory while others held theirs" in service.value(reason, together)
    service.value("update tensile.jobs set cancel_requested = true where job_id = %s returning 1", last)
    assert service.until_ended(together) == ["succeeded"]
    assert service.value("select faults from tensile.jobs where job_id = %s", together) == 0
    check_clean(service)


LSTM = (
    '{"type": "layers", "input_shape": [8, 8], "layers": [{"type": "lstm", "hidden": 16, "output": "last"},'
    ' {"type": "dropout", "p": 0.1}, {"type": "linear"}]}'
)
CNN = '{"type": "cnn", "input_shape": [1, 8, 8], "channels": [8], "hidden": [16], "dropout": 0.1}'
VIT = '{"type": "vit", "input_shape": [1, 8, 8], "patch": 2, "width": 16, "heads": 2, "blocks": 1, "dropout": 0.1}'
TRAININGS: tuple[tuple[str, dict[str, object]], ...] = (
    (LSTM, {"optimizer": "sgd", "clip_norm": 0.1}),
    (CNN, {"optimizer": "adam", "schedule": "plateau", "decay_patience": 1, "epochs": 12, "learning_rate": 0.05}),
    (VIT, {"precision": "bfloat16", "average_decay": 0.9}),
    (NETWORK, {"batch_size": 100, "micro_batch_size": 9, "seed": 3}),
    ('{"type": "mlp", "hidden": [16]}', {"epochs": 200, "learning_rate": 0.1, "seed": 11}),
)


def test_batches_of_short_and_long_texts_have_the_bits_of_one_device(
    service: Service, gang: list[subprocess.Popen[bytes]]
) -> None:
    del gang
    options = """, architecture => '{"type": "wide_and_deep", "text_encoder": "transformer", "text_width": 32}',
      hyperparams => '{"epochs": 3, "batch_size": 16, "micro_batch_size": 8, "length_buckets": 3}', devices => """
    digests = []
    with service.database.connect("demo") as demo:
        demo.execute(NOTES.encode())
        for devices in (1, 2):
            named = TRAIN_ON_NOTES.replace("'sections'", f"'sections on {devices}'", 1)
            job = demo.execute(f"{named}{options}{devices})".encode()).fetchall()[0][0]
            assert service.until_ended(job) == ["succeeded"]
            digests.append(weights(service, job))
    assert digests[0] == digests[1]


def test_mixed_images_have_the_bits_of_one_device(service: Service, gang: list[subprocess.Popen[bytes]]) -> None:
    del gang
    digests = []
    with service.database.connect("demo") as demo:
        demo.execute(PHOTOS.encode())
        rows = [(row, photo(row), f"corner {row % 4}") for row in range(160)]
        demo.cursor().executemany("insert into photos (id, photo, corner) values (%s, %s, %s)", rows)
        for devices in (1, 2):
            row = demo.execute(
                "select tensile_train(%s, 'photos', 'corner', features => array['photo'], devices => %s,"
                """ architecture => '{"type": "vit", "patch": 4, "width": 32}', hyperparams => '{"epochs": 3,"""
                """ "batch_size": 16, "micro_batch_size": 8, "mixup": 0.4, "augment_shift": 0.1}')""",
                (f"corners on {devices}", devices),
            ).fetchone()
            assert row is not None
            assert service.until_ended(row[0]) == ["succeeded"], service.log.read_text()
            digests.append(weights(service, row[0]))
    assert digests[0] == digests[1]


def test_images_are_decoded_beside_the_steps_of_all_devices_and_a_broken_one_ends_the_job(
    service: Service, gang: list[subprocess.Popen[bytes]]
) -> None:
    del gang
    options = TRAIN_ON_PHOTOS.replace('"epochs": 12', '"epochs": 3, "micro_batch_size": 8')
    with service.database.connect("demo") as demo:
        demo.execute(PHOTOS.encode())
        insert_many(demo)

        def enqueued(devices: int) -> int:
            network = """architecture => '{"type": "vit", "patch": 4, "width": 32}'"""
            job = demo.execute(f"{options}, {network}, devices => {devices})".encode()).fetchall()[0][0]
            return int(job)

        first, second = map(enqueued, (1, 2))
        assert service.until_ended(first, second) == ["succeeded"] * 2, service.log.read_text()
        assert weights(service, first) == weights(service, second)
        first = late_rows(demo, "corners")[0]
        insert_many(demo, [first])
        stopped = enqueued(2)
        assert service.until_ended(stopped) == ["failed"], service.log.read_text()
    ended = "select attempt, error_message from tensile.jobs where job_id = %s"
    ((attempt, message),) = service.connection.execute(ended.encode(), (stopped,)).fetchall()
    assert attempt == 1
    assert message.startswith(f'column "photo", id {first}: the value is a broken PNG image')
    check_clean(service)


def test_networks_of_other_kinds_have_the_bits_of_one_device(
    service: Service, gang: list[subprocess.Popen[bytes]]
) -> None:
    """Among them one that stops early, and one of a lower rate from some epoch on: each rank decides that itself."""
    del gang
    for number, (network, hyperparams) in enumerate(TRAININGS):
        options = HYPERPARAMS | {"micro_batch_size": 48} | hyperparams
        digests = []
        for devices in (1, 2):
            with service.database.connect("demo") as demo:
                row = demo.execute(
                    "select tensile_train(%s, 'digits', architecture => %s, hyperparams => %s, devices => %s,"
                    """ early_stop => '{"patience": 3}')""",
                    (f"network {number} on {devices}", network, json.dumps(options), devices),
                ).fetchone()
            assert row is not None
            assert service.until_ended(row[0]) == ["succeeded"]
            digests.append(weights(service, row[0]))
        assert digests[0] == digests[1], network
    rates = (
        "select count(distinct value) from tensile.metrics join tensile.jobs using (job_id)"
        " where model_name = %s and metrics.name = 'learning_rate'"
    )
    assert service.value(rates, "network 1 on 2") > 1
    epochs = "select max(epoch) from tensile.metrics join tensile.jobs using (job_id) where model_name = %s"
    assert service.value(epochs, "network 4 on 2") < 200
