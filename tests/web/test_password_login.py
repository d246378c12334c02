"""Check logins by password: the server decides, and a way in that needs no password is no login."""

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from indb_tensile.errors import PrivilegeError
from indb_tensile.web.application import LoginMethod
from indb_tensile.web.password_login import log_in
from tests.conftest import Database
from tests.web.conftest import Browser, ServedPage, served_page

pytestmark = [pytest.mark.postgres, pytest.mark.shares_database]

_PASSWORD = "correct horse 'battery' \\ staple ü"


@pytest.fixture(scope="module")
def role(database_of_module: Database) -> Iterator[str]:
    """A role that the server asks for its password, also on the Unix socket."""
    rules = Path(database_of_module.cluster.directory, "data", "pg_hba.conf")
    before = rules.read_text()
    name = "carol"
    with database_of_module.connect() as admin:
        admin.execute(
            sql.SQL("create role {} login password {} in role tensile_user").format(
                sql.Identifier(name), sql.Literal(_PASSWORD)
            )
        )
        rules.write_text(f"local all {name} scram-sha-256\n{before}")
        admin.execute("select pg_reload_conf()")
        yield name
        rules.write_text(before)
        admin.execute("select pg_reload_conf()")
        admin.execute(sql.SQL("drop role {}").format(sql.Identifier(name)))


@pytest.fixture(scope="module")
def page(database_of_module: Database, role: str) -> Iterator[ServedPage]:
    """The page with logins by password."""
    dsn = database_of_module.dsn("alice")
    login_method = LoginMethod(check_password=lambda name, password: log_in(dsn, name, password))
    with served_page(database_of_module, "alice", login_method) as served:
        yield served


def log_in_at(page: ServedPage, role: str, password: str) -> tuple[int, Browser, str]:
    """Send the login form. Returns the status, the browser and the answer's text."""
    from urllib.parse import urlencode

    browser = page.browser()
    body = urlencode({"role": role, "password": password}).encode()
    answer = browser.send("POST", "/login", body, {"content-type": "application/x-www-form-urlencoded"})
    return answer.status, browser, answer.body.decode()


def test_the_right_password_lets_the_role_in_as_itself(page: ServedPage, role: str) -> None:
    status, browser, _ = log_in_at(page, role, _PASSWORD)

    assert status == 303
    assert "role <strong>carol</strong>" in browser.get("/").body.decode()
    assert browser.get("/api/listings/jobs").json() == {"rows": [], "more": False}


def test_a_role_without_a_password_on_this_way_is_refused_with_the_reason(page: ServedPage) -> None:
    status, browser, text = log_in_at(page, "bob", "anything")

    assert (status, "without a password" in text, browser.cookie) == (403, True, None)


def test_a_lost_connection_ends_the_session(page: ServedPage, role: str, database: Database) -> None:
    _, browser, _ = log_in_at(page, role, _PASSWORD)
    with database.connect() as admin:
        admin.execute("select pg_terminate_backend(pid, 5000) from pg_stat_activity where usename = 'carol'")
    statuses = [browser.get("/api/listings/jobs?limit=7").status for _ in range(2)]

    assert statuses[-1] == 401
    assert browser.get("/").status == 401


def test_guesses_are_slowed_down_for_the_role_from_any_browser(page: ServedPage, role: str) -> None:
    answers = [log_in_at(page, role, f"guess {number}")[0] for number in range(5)]

    assert answers[:3] == [403, 403, 403]
    assert answers[-1] == 429
    assert log_in_at(page, role, _PASSWORD)[0] == 429


def test_a_form_that_no_page_sends_is_refused_in_words(page: ServedPage) -> None:
    assert log_in_at(page, "r" * 64, "anything")[0] == 400
    many = {"content-type": "application/x-www-form-urlencoded"}
    assert page.browser().send("POST", "/login", b"role=a&" * 20, many).status == 400


def test_the_password_is_not_kept(database: Database, role: str) -> None:
    viewer = log_in(database.dsn("alice"), role, _PASSWORD)
    try:
        assert viewer.needs_password
        with pytest.raises(psycopg.OperationalError):
            viewer.read(lambda c: c.execute("select pg_terminate_backend(pg_backend_pid())"))
        assert viewer.is_lost
        with pytest.raises(PrivilegeError, match="does not accept"):
            log_in(database.dsn("alice"), role, _PASSWORD + "x")
    finally:
        viewer.close()
