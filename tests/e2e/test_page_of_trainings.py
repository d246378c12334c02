"""Every page in a real browser while a controller trains: what it shows, for whom, by keys alone, and after a cut."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from indb_tensile.cluster import Cluster
from tests.e2e.conftest import Service, running_service
from tests.e2e.trainings import train, wait_until_training
from tests.web.chromium import chromium, complaints, enter, is_too_wide, open_page, wait_for, wait_for_text
from tests.web.conftest import ServedPage, served_page

pytestmark = [pytest.mark.postgres, pytest.mark.nightly]

SMALL = '{"type": "mlp", "hidden": [16]}'
TOO_LARGE = '{"type": "mlp", "hidden": [6000, 6000]}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainings:
    """Numbers of jobs of demo: two that train side by side, a paused one, a failed one, and those that have ended."""

    running: tuple[int, int]
    paused: int
    failed: int
    ended: tuple[int, ...]


@pytest.fixture(scope="module")
def running(cluster: Cluster, template: str) -> Iterator[Service]:
    """A controller of this module alone: the pages show every job, and bob must own no model."""
    with running_service(cluster, template) as service:
        yield service


@pytest.fixture(scope="module")
def trainings(running: Service) -> Iterator[Trainings]:
    """Real trainings in each state. Those that run are cancelled at the end."""
    with running.database.connect("demo") as demo:
        ended = [train(demo, "tumours", "breast_cancer", architecture=SMALL, epochs=epochs) for epochs in (3, 6)]
        ended.append(train(demo, "sugar", "diabetes", architecture=SMALL, epochs=6))
        assert running.until_ended(*ended) == ["succeeded"] * 3
        failed = train(demo, "too large", "digits", architecture=TOO_LARGE)
        assert running.until_ended(failed) == ["failed"]
        active = (train(demo, "first", "digits", epochs=100_000), train(demo, "second", "digits", epochs=100_000))
        for job in active:
            wait_until_training(running, job)
        with demo.transaction():
            paused = train(demo, "later", "digits", architecture=SMALL)
            demo.execute("select tensile_pause(%s)", (paused,))
        yield Trainings(running=active, paused=paused, failed=failed, ended=tuple(ended))
        for job in (*active, paused):
            demo.execute("select tensile_cancel(%s)", (job,))
        running.until_ended(*active, paused)


@pytest.fixture(scope="module")
def page(running: Service, trainings: Trainings) -> Iterator[ServedPage]:
    """The page, started by the owner of the trainings."""
    with served_page(running.database, "demo") as page:
        yield page


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory, page: ServedPage) -> Iterator[Any]:
    """A browser that is logged in."""
    with chromium(tmp_path_factory.mktemp("profile")) as driver:
        enter(driver, page)
        yield driver


def pages_of(trainings: Trainings) -> dict[str, tuple[str, ...]]:
    """Return the paths of all pages, each with texts that it shows of these trainings."""
    first, second = trainings.running
    return {
        "/": (f"{first}", f"{second}", "first", "second", "training", "Side by side", "Copies between device"),
        "/jobs": ("tumours", "sugar", "too large", "succeeded", "failed"),
        f"/jobs/{first}": ("Learning", "of 100000", "Memory plans", "where each tensor is", "Beside other jobs"),
        f"/jobs/{trainings.ended[1]}": ("succeeded", "Published version", "Learning"),
        f"/jobs/{trainings.failed}": ("failed", "memory"),
        "/queue": ("later", "paused"),
        "/models": ("tumours", "sugar"),
        "/models/tumours": ("Versions", "Confusion matrix", "Calibration", "deployed"),
        "/models/sugar": ("Versions", "Feature importance"),
        "/usage": ("demo", "tumours"),
    }


def test_every_page_shows_the_trainings_and_the_browser_finds_no_fault(
    browser: Any, page: ServedPage, trainings: Trainings
) -> None:
    for path, texts in pages_of(trainings).items():
        open_page(browser, page, path)
        wait_for_text(browser, *texts)

    assert complaints(browser) == []


def test_the_device_and_a_job_change_without_a_reload(browser: Any, page: ServedPage, trainings: Trainings) -> None:
    open_page(browser, page, f"/jobs/{trainings.running[0]}")
    seen = wait_for(browser, epoch_shown, "the first epoch")
    wait_for(browser, lambda d: epoch_shown(d) > seen, "a later epoch")
    wait_for(browser, lambda d: d.find_elements(By.CSS_SELECTOR, ".chart canvas"), "the chart of the losses")
    wait_for(browser, lambda d: d.find_element(By.CSS_SELECTOR, "img.picture").get_property("naturalWidth"), "a plan")


def epoch_shown(driver: Any) -> int:
    """Return the epoch that the page of a job shows, or 0."""
    script = "return document.querySelector('#content').innerText.match(/(\\d+) of 100000/)?.[1] ?? 0"
    return int(driver.execute_script(script))


# As many predicted rows in each bin as training rows, but all of the first column in its first bin.
PREDICTED = """
insert into tensile.predicted_inputs (version_id, day, rows, counts)
select v.version_id, tensile.usage_day(), (f.figure ->> 'rows')::bigint,
       array(select case when i.place > 1 then n.count::bigint
                         when n.place = 1 then (f.figure ->> 'rows')::bigint else 0 end
               from jsonb_array_elements(f.figure -> 'inputs') with ordinality as i (input, place),
                    jsonb_array_elements_text(i.input -> 'counts') with ordinality as n (count, place)
              order by i.place, n.place)
  from tensile.models as m join tensile.model_versions as v using (model_id)
  join tensile.version_figures as f on f.version_id = v.version_id and f.name = 'input_counts'
 where m.name = 'tumours' and v.deployed"""


def test_the_drift_of_inputs_is_shown_beside_the_training_rows(
    running: Service, browser: Any, page: ServedPage, trainings: Trainings
) -> None:
    open_page(browser, page, "/models/tumours")
    wait_for_text(browser, "Drift of inputs")
    press(browser, "Drift of inputs")
    wait_for_text(browser, "are not counted", "tensile_measure_drift('tumours')")
    running.connection.execute(PREDICTED)
    press(browser, "Drift of inputs")
    wait_for_text(browser, "Stability index", "large", "stable")
    browser.find_element(By.XPATH, "//td//summary[text()='bins']").click()
    wait_for_text(browser, "Shares of the rows in each bin of", "100 %", "missing")

    assert complaints(browser) == []


def test_another_user_sees_none_of_the_trainings(running: Service, tmp_path: Path, trainings: Trainings) -> None:
    with served_page(running.database, "bob") as of_bob, chromium(tmp_path) as driver:
        enter(driver, of_bob)
        wait_for_text(driver, "No job of yours is on this device.", "No jobs are waiting.")
        for path, text in (
            ("/jobs", "No job"),
            ("/queue", "No jobs are waiting."),
            ("/models", "There is no model that this role owns"),
        ):
            open_page(driver, of_bob, path)
            wait_for_text(driver, text)
            assert not any(name in driver.page_source for name in ("first", "tumours", "too large", "sugar")), path
        for path in (f"/jobs/{trainings.running[0]}", "/models/tumours"):
            open_page(driver, of_bob, path)
            assert wait_for(driver, lambda d: d.find_element(By.ID, "trouble").text, "the refusal").startswith(
                "there is no"
            )


def test_a_training_is_paused_and_resumed_with_the_keyboard_alone(
    running: Service, browser: Any, page: ServedPage, trainings: Trainings
) -> None:
    job = trainings.running[1]
    open_page(browser, page, f"/jobs/{job}")
    for word, wanted in (("Pause", True), ("Resume", False)):
        wait_for_text(browser, word)
        press(browser, word)
        if browser.find_elements(By.CSS_SELECTOR, "dialog[open]"):
            press(browser, word)
        running.until(partial(pause_is, running, job, wanted), f"pause_requested to be {wanted}")
    wait_for(browser, lambda d: "Pause" in d.find_element(By.ID, "content").text, "the button to pause again")
    assert running.state(job) == "running"


def pause_is(running: Service, job: int, wanted: bool) -> bool:
    """Return whether a pause of the job is requested, or is not, as wanted."""
    return running.value("select pause_requested from tensile.jobs where job_id = %s", job) is wanted


def press(driver: Any, word: str) -> None:
    """Go to the button with this word by the tabulator alone, and press it."""
    for _ in range(400):  # a list of 50 jobs has two links in each row
        driver.switch_to.active_element.send_keys(Keys.TAB)
        if driver.switch_to.active_element.text.strip() == word:
            driver.switch_to.active_element.send_keys(Keys.ENTER)
            return
    raise AssertionError(f"the tabulator does not reach {word!r}")


def test_a_browser_without_network_says_so_and_goes_on_when_it_is_back(
    browser: Any, page: ServedPage, trainings: Trainings
) -> None:
    open_page(browser, page, f"/jobs/{trainings.running[0]}")
    seen = wait_for(browser, epoch_shown, "the first epoch")
    conditions = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    browser.execute_cdp_cmd("Network.enable", {})
    try:
        browser.execute_cdp_cmd("Network.emulateNetworkConditions", conditions | {"offline": True})
        browser.execute_script("window.dispatchEvent(new Event('offline'))")
        wait_for(browser, lambda d: d.find_element(By.ID, "trouble").is_displayed(), "the trouble")
    finally:
        browser.execute_cdp_cmd("Network.emulateNetworkConditions", conditions | {"offline": False})
    wait_for(browser, lambda d: epoch_shown(d) > seen, "a later epoch")
    wait_for(browser, lambda d: not d.find_element(By.ID, "trouble").is_displayed(), "the end of the trouble")
    browser.get_log("browser")  # of the requests that failed


def test_a_thousand_jobs_are_listed_beside_the_trainings(
    running: Service, browser: Any, page: ServedPage, trainings: Trainings
) -> None:
    running.connection.execute(
        """insert into tensile.jobs (model_name, owner_oid, owner_name, relation_oid, relation_schema, relation_name,
                                     spec, state, finished_at, error_sqlstate, error_message)
           select 'many', owner_oid, owner_name, relation_oid, relation_schema, relation_name,
                  jsonb_set(spec, '{model}', '"many"'), 'failed', now(), 'XX000', 'a fault'
             from tensile.jobs, generate_series(1, 1000) where job_id = %s""",
        (trainings.failed,),
    )
    try:
        open_page(browser, page, "/jobs?model=many")
        wait_for_text(browser, "1 to 50 of more")
        press(browser, "Next page")
        wait_for_text(browser, "51 to 100")
        open_page(browser, page, "/")
        wait_for_text(browser, "first", "second")
    finally:
        running.connection.execute("delete from tensile.jobs where model_name = 'many'")

    assert complaints(browser) == []


@pytest.mark.parametrize("width", [1200, 480])
def test_no_page_of_a_training_is_wider_than_the_window(
    tmp_path: Path, page: ServedPage, trainings: Trainings, width: int
) -> None:
    with chromium(tmp_path, width=width) as driver:
        enter(driver, page)
        wide = []
        for path, texts in pages_of(trainings).items():
            open_page(driver, page, path)
            wait_for_text(driver, *texts)
            wide += [path] if is_too_wide(driver) else []

        assert wide == []
