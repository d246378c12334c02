"""Look at every page in a real browser: by day once, by night with many jobs, other widths and a lost connection."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.conftest import Database
from tests.web.chromium import chromium, complaints, enter, is_too_wide, open_page, wait_for, wait_for_text
from tests.web.conftest import ServedPage

pytestmark = [pytest.mark.postgres, pytest.mark.shares_database]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A browser of an ordinary width."""
    with chromium(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.mark.nightly
def test_every_page_shows_what_its_role_may_see_and_the_browser_finds_no_fault(
    browser: Any, page_of_alice: ServedPage, job: int
) -> None:
    enter(browser, page_of_alice)
    wait_for_text(browser, "emulated on h", "50 B of 100 B", "flowers <b>")
    wait_for(browser, lambda d: d.find_elements(By.CSS_SELECTOR, ".chart canvas"), "the chart of the memory")
    described = browser.find_element(By.CSS_SELECTOR, ".chart[role=img]").get_attribute("aria-label")
    pages = {
        "/jobs": ("flowers <b>", "running training"),
        f"/jobs/{job}": ("Learning", "Events", "1.1", "3 of 4"),
        "/queue": ("No jobs are waiting.",),
        "/models": ("flowers <b>",),
        "/models/flowers%20%3Cb%3E": ("No version is published",),
        "/usage": ("No device has been used yet.",),
    }
    for path, texts in pages.items():
        open_page(browser, page_of_alice, path)
        wait_for_text(browser, *texts)

    assert "In use now: 50 B" in described
    assert complaints(browser) == []


@pytest.mark.nightly
def test_a_browser_that_is_not_logged_in_sees_the_way_in(browser: Any, page_of_bob: ServedPage, job: int) -> None:
    browser.delete_all_cookies()
    open_page(browser, page_of_bob, f"/jobs/{job}")

    assert "Open the link that tensile web has printed" in browser.find_element(By.TAG_NAME, "main").text


@pytest.mark.nightly
def test_another_user_sees_neither_the_job_nor_its_memory(browser: Any, page_of_bob: ServedPage, job: int) -> None:
    enter(browser, page_of_bob)
    wait_for_text(browser, "No job of yours is on this device.")
    shown = browser.find_element(By.TAG_NAME, "main").text
    open_page(browser, page_of_bob, f"/jobs/{job}")
    trouble = wait_for(browser, lambda d: d.find_element(By.ID, "trouble").text, "the refusal")

    assert "flowers" not in shown
    assert trouble == f"there is no job {job}. Jobs of other users are not shown."


@pytest.mark.nightly
def test_a_job_is_cancelled_with_the_keyboard_alone(
    browser: Any, page_of_alice: ServedPage, database: Database, job: int
) -> None:
    enter(browser, page_of_alice)
    open_page(browser, page_of_alice, f"/jobs/{job}")
    wait_for_text(browser, "Cancel")
    reached = []
    for _ in range(40):
        browser.switch_to.active_element.send_keys(Keys.TAB)
        reached.append(browser.switch_to.active_element.text)
        if reached[-1] == "Cancel":
            break
    browser.switch_to.active_element.send_keys(Keys.ENTER)
    dialog = wait_for(browser, lambda d: d.find_element(By.TAG_NAME, "dialog"), "the question")
    question = dialog.text
    browser.switch_to.active_element.send_keys(Keys.SHIFT, Keys.TAB)
    browser.switch_to.active_element.send_keys(Keys.ENTER)
    wait_for_text(browser, "Being cancelled")
    with database.connect() as admin:
        row = admin.execute("select cancel_requested from tensile.jobs where job_id = %s", (job,)).fetchone()
        admin.execute("update tensile.jobs set cancel_requested = false where job_id = %s", (job,))

    assert reached[:2] == ["Skip to the content", "Device"]
    assert f"Cancel job {job}?" in question
    assert row == (True,)


@pytest.mark.nightly
@pytest.mark.parametrize(("width", "dark"), [(1200, True), (480, False), (480, True)])
def test_no_page_is_wider_than_the_window(
    tmp_path: Path, page_of_alice: ServedPage, job: int, width: int, dark: bool
) -> None:
    with chromium(tmp_path, width=width, dark=dark) as driver:
        enter(driver, page_of_alice)
        wait_for_text(driver, "emulated on h")
        wide = ["/"] if is_too_wide(driver) else []
        for path in ("/jobs", f"/jobs/{job}", "/queue", "/models", "/models/flowers%20%3Cb%3E", "/usage"):
            open_page(driver, page_of_alice, path)
            wait_for(driver, lambda d: not d.find_elements(By.CSS_SELECTOR, "#content > .waiting"), path)
            wide += [path] if is_too_wide(driver) else []
        colour = driver.execute_script("return getComputedStyle(document.body).backgroundColor")

        assert wide == []
        assert complaints(driver) == []
        assert colour == ("rgb(18, 22, 28)" if dark else "rgb(246, 247, 249)")


@pytest.mark.nightly
def test_a_thousand_jobs_are_listed_in_pages(
    browser: Any, page_of_alice: ServedPage, database: Database, job: int
) -> None:
    with database.connect() as admin:
        admin.execute(
            """insert into tensile.jobs (model_name, owner_oid, owner_name, relation_oid, relation_schema,
                                         relation_name, spec, state, finished_at, error_sqlstate, error_message)
               select 'many', owner_oid, owner_name, relation_oid, relation_schema, relation_name,
                      jsonb_set(spec, '{model}', '"many"'), 'failed', now(), 'XX000', 'a fault'
                 from tensile.jobs, generate_series(1, 1000) where job_id = %s""",
            (job,),
        )
        try:
            enter(browser, page_of_alice)
            open_page(browser, page_of_alice, "/jobs?model=many")
            wait_for_text(browser, "1 to 50 and more")
            for first in (51, 101, 151):
                browser.find_element(By.XPATH, "//button[text()='Next page']").click()
                wait_for_text(browser, f"{first} to {first + 49}")
            caption = browser.find_element(By.CSS_SELECTOR, "caption").text
            address = browser.current_url
            open_page(browser, page_of_alice, "/")
            wait_for_text(browser, "emulated on h")
        finally:
            admin.execute("delete from tensile.jobs where model_name = 'many'")

    assert "151 to 200" in caption
    assert "offset=150" in address


@pytest.mark.nightly
def test_the_page_says_that_the_database_is_away_and_goes_on_when_it_is_back(
    browser: Any, page_of_alice: ServedPage, database: Database, job: int
) -> None:
    enter(browser, page_of_alice)
    wait_for_text(browser, "50 B of 100 B")
    with database.connect() as admin, database.cluster_connection() as maintenance:
        maintenance.execute(f"alter database {database.name} with allow_connections false".encode())
        admin.execute(
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity where application_name = 'tensile web'"
        )
        trouble = wait_for(browser, lambda d: d.find_element(By.ID, "trouble").text, "the trouble")
        maintenance.execute(f"alter database {database.name} with allow_connections true".encode())
        admin.execute("update tensile.devices set used_bytes = 60")
    wait_for_text(browser, "60 B of 100 B")

    assert trouble
    assert not browser.find_element(By.ID, "trouble").is_displayed()
    with database.connect() as admin:
        admin.execute("update tensile.devices set used_bytes = 50")
