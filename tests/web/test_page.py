"""Check the page over HTTP: what each role sees and does, and that nobody gets in another way."""

import http.client
import json

import pytest

from tests.conftest import Database
from tests.web.conftest import Browser, ServedPage

pytestmark = [pytest.mark.postgres, pytest.mark.shares_database]


@pytest.fixture
def alice(page_of_alice: ServedPage, job: int) -> Browser:
    """A browser that acts as the owner of the job."""
    return page_of_alice.guest()


@pytest.fixture
def bob(page_of_bob: ServedPage, job: int) -> Browser:
    """A browser that acts as another user."""
    return page_of_bob.guest()


def first_event(browser: Browser, path: str) -> tuple[str, object]:
    """Return the kind and the data of the first event of a stream."""
    connection = http.client.HTTPConnection("127.0.0.1", browser.port, timeout=60)
    try:
        connection.request("GET", path, headers={"cookie": browser.cookie or ""})
        response = connection.getresponse()
        assert response.status == 200, response.read()
        kind = response.readline().decode().removeprefix("event: ").strip()
        return kind, json.loads(response.readline().removeprefix(b"data: "))
    finally:
        connection.close()


def test_owner_and_another_user_see_the_device_and_only_their_own_jobs(
    alice: Browser, bob: Browser, job: int
) -> None:
    kind, whole = first_event(alice, "/api/overview")
    _, partly = first_event(bob, "/api/overview")

    assert kind == "data"
    assert isinstance(whole, dict)
    assert isinstance(partly, dict)
    assert [d["used_bytes"] for d in whole["devices"]] == [d["used_bytes"] for d in partly["devices"]] == [50]
    assert [(j["job_id"], j["used_bytes"], j["loss"]) for j in whole["jobs"]] == [(job, 20, None)]
    assert partly["jobs"] == []


def test_history_shows_a_job_to_its_owner_and_the_total_to_everybody(alice: Browser, bob: Browser, job: int) -> None:
    worker = alice.get("/api/listings/workers").json()["rows"][0]["worker_id"]
    whole = alice.get(f"/api/history?worker={worker}&age=5m").json()
    partly = bob.get(f"/api/history?worker={worker}&age=5m").json()

    assert whole["used_bytes"] == partly["used_bytes"] == [50, 50, 50]
    assert whole["jobs"] == [{"job_id": job, "used_bytes": [20, 20, 20]}]
    assert partly["jobs"] == []


def test_a_job_is_shown_to_its_owner_and_does_not_exist_for_others(alice: Browser, bob: Browser, job: int) -> None:
    shown = alice.get(f"/api/jobs/{job}").json()

    assert (shown["job"]["model"], shown["job"]["state"], shown["job"]["epoch"]) == ("flowers <b>", "running", 3)
    assert shown["epochs"] == [
        {"epoch": 1, "loss": 0.5, "valid_loss": 0.5, "learning_rate": None, "metrics": {"accuracy": 0.5}}
    ]
    assert [plan["predicted_iteration_ms"] for plan in shown["plans"]] == [1.5]
    assert alice.get(f"/api/jobs/{job}/memory").json()["used_bytes"] == [20, 20, 20]
    hidden = bob.get(f"/api/jobs/{job}")
    assert (hidden.status, hidden.json()["message"]) == (404, f"there is no job {job}")
    assert bob.get(f"/api/jobs/{job}/memory").json()["at"] == []
    assert bob.get(f"/api/jobs/{job}/data").json() == []
    assert first_event(bob, f"/api/jobs/{job}/live") == (
        "trouble",
        {"message": f"there is no job {job}", "hint": "Jobs of other users are not shown."},
    )


def test_actions_have_the_rights_of_the_role(alice: Browser, bob: Browser, job: int) -> None:
    refusals = [bob.act(name, job=job) for name in ("cancel", "pause", "resume", "retry")]
    refusals.append(bob.act("priority", job=job, priority=5))
    paused = alice.act("pause", job=job)

    assert {answer.status for answer in refusals} <= {403, 404, 400}
    assert (paused.status, alice.get(f"/api/jobs/{job}").json()["job"]["paused"]) == (200, True)
    assert alice.act("resume", job=job).status == 200
    assert alice.act("priority", job=job, priority=-3).status == 200
    assert alice.get(f"/api/jobs/{job}").json()["job"]["priority"] == -3


def test_wrong_values_of_an_action_are_named(alice: Browser, job: int) -> None:
    assert (
        alice.act("cancel", job="1; drop table tensile.jobs").json()["message"].endswith("has to be a whole number")
    )
    assert alice.act("cancel", job=2**63).status == 400
    assert alice.act("cancel", job=True).status == 400
    assert alice.act("cancel").status == 400
    assert alice.act("priority", job=job, priority=10**6).status == 400
    assert alice.act("deploy", model="flowers <b>", version=7).json()["message"] != ""
    assert alice.act("deploy", model="a\0b", version=7).status == 400
    assert alice.act("nothing").status == 404
    unknown = alice.act("cancel", job=987654)
    assert (unknown.status, unknown.json()["message"]) == (404, "there is no job 987654")


def test_listings_are_filtered_sorted_and_paged_and_wrong_requests_are_named(alice: Browser, job: int) -> None:
    rows = alice.get("/api/listings/jobs?model=flowers+%3Cb%3E&sort=-job_id&limit=1").json()

    assert ([row["job_id"] for row in rows["rows"]], rows["more"]) == ([job], False)
    assert alice.get("/api/listings/jobs?state=failed").json()["rows"] == []
    for path in ("jobs?state=x", "jobs?sort=x", "jobs?limit=201", "jobs?limit=-1", "jobs?x=1", "jobs?offset=1e9"):
        answer = alice.get(f"/api/listings/{path}")
        assert (answer.status, bool(answer.json()["message"])) == (400, True), path
    assert alice.get("/api/listings/secrets").status == 404


def test_every_page_is_shown_and_a_stranger_gets_the_login_page(page_of_alice: ServedPage, alice: Browser) -> None:
    for path in ("/", "/jobs", "/jobs/1", "/queue", "/models", "/models/a%2Fb", "/usage"):
        assert alice.get(path).status == 200, path
        stranger = page_of_alice.browser().get(path)
        assert (stranger.status, b"not logged in" in stranger.body, b"form-token" in stranger.body) == (
            401,
            True,
            False,
        )
    for path in (
        "overview",
        "history?worker=1",
        "jobs/1",
        "jobs/1/live",
        "listings/jobs",
        "model?model=m",
        "figure/roc",
    ):
        assert page_of_alice.browser().get(f"/api/{path}").status == 401, path
    assert alice.get("/nothing").status == 404


def test_figures_of_a_model_that_does_not_exist_are_refused_in_words(alice: Browser) -> None:
    assert alice.get("/api/model?model=none").json()["message"] == 'there is no model "none"'
    assert alice.get("/api/figure/roc?model=none").status in (400, 404)
    assert alice.get("/api/figure/pg_read_file?model=none").status == 404
    assert alice.get("/api/figure/roc?model=none&version=x").status == 400


def test_a_request_without_the_form_token_changes_nothing(alice: Browser, bob: Browser, job: int) -> None:
    tokens = ["", "x", bob.form_token]
    for token in tokens:
        forged = Browser(port=alice.port, cookie=alice.cookie, form_token=token)
        assert forged.act("cancel", job=job).status == 403
    as_form = alice.send(
        "POST", "/api/act/cancel", b"job=1", {"x-form-token": alice.form_token, "content-type": "text/plain"}
    )
    assert as_form.status == 415
    assert alice.get(f"/api/jobs/{job}").json()["job"]["cancel_requested"] is False


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 421),
        ({"host": "127.0.0.1"}, 421),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"content-length": "70000"}, 413),
        ({"transfer-encoding": "chunked"}, 413),
    ],
)
def test_requests_of_other_sites_and_of_wrong_sizes_are_refused(
    alice: Browser, job: int, headers: dict[str, str], status: int
) -> None:
    own = {"x-form-token": alice.form_token, "content-type": "application/json"}
    body = (
        None if "transfer-encoding" in headers or "content-length" in headers else json.dumps({"job": job}).encode()
    )

    assert alice.send("POST", "/api/act/cancel", body, own | headers).status == status


def test_methods_paths_and_files_outside_the_page_are_refused(alice: Browser) -> None:
    assert alice.send("PUT", "/", None, {}).status == 405
    assert alice.send("TRACE", "/", None, {}).status == 405
    assert alice.get("/?" + "a" * 5000).status == 414
    assert alice.get("/api/jobs/" + "1" * 5000).status == 414
    for path in ("/static/../pages.py", "/static/%2e%2e/pages.py", "/static/..%2fpages.py", "/static//etc/passwd"):
        assert alice.get(path).status == 404, path


def test_answers_carry_headers_that_bind_the_browser_to_this_page(alice: Browser, page_of_alice: ServedPage) -> None:
    headers = alice.get("/").headers
    stranger = page_of_alice.browser()
    entered = stranger.enter(page_of_alice.links[-1])

    assert "default-src 'none'" in headers["content-security-policy"]
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "no-referrer")
    assert headers["cache-control"] == "no-store"
    assert "server" not in headers
    cookie = entered.headers["set-cookie"].lower()
    assert ("httponly" in cookie, "samesite=strict" in cookie, "path=/" in cookie) == (True, True, True)


def test_a_link_works_once_and_a_session_ends_with_the_log_out(page_of_alice: ServedPage, job: int) -> None:
    link = page_of_alice.links[-1]
    browser = page_of_alice.browser()
    assert browser.enter(link).status == 303
    assert page_of_alice.browser().get(f"/enter?link={link}").status == 403
    cookie = browser.cookie

    assert browser.send("POST", "/logout", b"", {"content-length": "0"}).status == 403
    browser.cookie = cookie
    assert browser.send("POST", "/logout", b"", {"x-form-token": browser.form_token}).status == 200
    assert Browser(port=browser.port, cookie=cookie).get("/api/listings/jobs").status == 401


def test_a_lost_connection_is_opened_again_for_links(alice: Browser, database: Database, job: int) -> None:
    with database.connect() as admin:
        admin.execute(
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
            " where application_name = 'tensile web' and usename = 'alice'"
        )
    answers = [alice.get(f"/api/jobs/{job}").status for _ in range(2)]

    assert answers[-1] == 200


def test_metrics_count_jobs_and_name_neither_jobs_nor_models(page_of_alice: ServedPage, job: int) -> None:
    text = page_of_alice.browser().get("/metrics").body.decode()

    assert "tensile_up 1.0" in text
    assert 'tensile_jobs{state="running"} 1.0' in text
    assert 'tensile_jobs_ended_total{state="succeeded"} 0.0' in text
    assert 'tensile_device_used_bytes{device="emulated",host="h",worker="1"} 50.0' in text
    assert "flowers" not in text
    assert "alice" not in text


def test_another_page_of_the_same_role_asks_the_database_once(
    page_of_alice: ServedPage, database: Database, job: int
) -> None:
    browsers = [page_of_alice.guest() for _ in range(5)]
    for browser in browsers:
        first_event(browser, "/api/overview")
    with database.connect() as admin:
        row = admin.execute(
            "select count(*) from pg_stat_activity where application_name = 'tensile web' and usename = 'alice'"
        ).fetchone()

    assert row in ((1,), (2,))  # one for reading, and one for actions once there was one


def test_the_newest_epochs_of_a_long_training_are_shown(alice: Browser, database: Database, job: int) -> None:
    with database.connect() as admin:
        admin.execute(
            "insert into tensile.metrics (job_id, epoch, name, value)"
            " select %s, n, 'loss', 1 from generate_series(2, 2100) as n",
            (job,),
        )
        epochs = [row["epoch"] for row in alice.get(f"/api/jobs/{job}").json()["epochs"]]
        admin.execute("delete from tensile.metrics where epoch > 1")

    assert epochs == list(range(101, 2101))
