"""Fixtures: the page on a free port of the loopback interface, and a client that behaves like a browser."""

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvicorn

from indb_tensile.catalog.connection import Connection, connect
from indb_tensile.monitor.viewer import Viewer
from indb_tensile.web.application import LoginMethod, application
from indb_tensile.web.listening_address import ListeningAddress
from indb_tensile.web.login_links import LoginLinks
from indb_tensile.web.metrics_exporter import exporter
from indb_tensile.web.page_feed import Feeds
from indb_tensile.web.web_server import server_config
from tests.conftest import Database


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """The answer to a request."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """Return the body as a value."""
        return json.loads(self.body)


@dataclass(slots=True, kw_only=True)
class Browser:
    """Sends requests to the page and keeps its cookie, as a browser does."""

    port: int
    cookie: str | None = None
    form_token: str = ""
    sent_headers: dict[str, str] = field(default_factory=dict)

    def get(self, path: str, **headers: str) -> Answered:
        """Send a GET request."""
        return self.send("GET", path, None, headers)

    def act(self, name: str, **values: object) -> Answered:
        """Carry out an action, as a button of the page does."""
        headers = {"x-form-token": self.form_token, "content-type": "application/json"}
        return self.send("POST", f"/api/act/{name}", json.dumps(values).encode(), headers)

    def send(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> Answered:
        """Send a request, with the cookie if there is one."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            own = {"cookie": self.cookie} if self.cookie else {}
            connection.request(method, path, body, own | self.sent_headers | headers)
            response = connection.getresponse()
            answer = Answered(
                status=response.status,
                headers={name.lower(): value for name, value in response.getheaders()},
                body=response.read(),
            )
        finally:
            connection.close()
        if "set-cookie" in answer.headers:
            self.cookie = answer.headers["set-cookie"].partition(";")[0]
        return answer

    def enter(self, link: str) -> Answered:
        """Open a login link, and the first page, which has the form token."""
        answer = self.get(f"/enter?link={link}")
        self.form_token = self.token_of(self.get("/").body.decode())
        return answer

    @staticmethod
    def token_of(html: str) -> str:
        """Return the form token of a page; empty if it has none."""
        return html.partition('name="form-token" content="')[2].partition('"')[0]


@dataclass(slots=True, kw_only=True)
class ServedPage:
    """The running page, and the links that it has announced."""

    port: int
    links: list[str]
    server: uvicorn.Server

    def browser(self) -> Browser:
        """Return a browser that is not logged in."""
        return Browser(port=self.port)

    def guest(self) -> Browser:
        """Return a browser that has entered by the newest link."""
        browser = self.browser()
        browser.enter(self.links[-1])
        return browser


@contextmanager
def served_page(database: Database, role: str, login_method: LoginMethod | None = None) -> Iterator[ServedPage]:
    """Serve the page for login links of this role, or with these login_method, until the block ends."""

    def reopen() -> Connection:
        return connect(database.dsn(role), application_name="tensile web", callers_path=True)

    starter = Viewer((reopen(), reopen()), reopen=reopen)
    links: list[str] = []
    login_method = login_method or LoginMethod(links=LoginLinks(links.append), starter=starter)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        address = ListeningAddress(host="127.0.0.1", port=port)
        page = application(
            login_method, hosts=address.hosts, encrypted=False, metrics=exporter(starter), feeds=Feeds(0.05)
        )
        server = uvicorn.Server(server_config(page, address))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            if login_method.links is not None:
                login_method.links.start()
            yield ServedPage(port=port, links=links, server=server)
        finally:
            server.should_exit = True
            thread.join(timeout=30)
            starter.close()


@pytest.fixture(scope="module")
def page_of_alice(database_of_module: Database) -> Iterator[ServedPage]:
    """The page, started by alice."""
    with served_page(database_of_module, "alice") as page:
        yield page


@pytest.fixture(scope="module")
def page_of_bob(database_of_module: Database) -> Iterator[ServedPage]:
    """The page on the same database, started by bob."""
    with served_page(database_of_module, "bob") as page:
        yield page


@pytest.fixture(scope="module")
def job(database_of_module: Database) -> Iterator[int]:
    """A running job of alice on a device, with a plan, epochs, an event and samples of its memory."""
    with database_of_module.connect("alice") as alice, database_of_module.connect() as admin:
        alice.execute(
            """create table iris (id bigint primary key, petal real, species text not null);
               insert into iris select i, i % 7, case when i % 2 = 0 then 'setosa' else '<script>' end
                 from generate_series(1, 60) as i;
               grant select on iris to tensile_reader"""
        )
        row = alice.execute("select tensile_train('flowers <b>', 'iris', target => 'species')").fetchone()
        assert row is not None
        admin.execute(
            """insert into tensile.workers (host, pid, device, version, lease_s)
               values ('h', 1, 'emulated', '0', 3600);
               insert into tensile.devices (worker_id, kind, capacity_bytes, budget_bytes, granted_bytes, used_bytes)
               select worker_id, 'emulated', 200, 100, 80, 50 from tensile.workers;
               update tensile.jobs set state = 'running', phase = 'training', claim = 1, started_at = now(),
                      worker_id = (select worker_id from tensile.workers);
               insert into tensile.job_progress (job_id, epoch, epochs, step, steps, loss)
               select job_id, 3, 4, 5, 10, 'NaN' from tensile.jobs;
               insert into tensile.metrics (job_id, epoch, name, value)
               select job_id, 1, n, 0.5 from tensile.jobs, unnest(array['loss', 'valid_loss', 'accuracy']) as n;
               insert into tensile.device_jobs (worker_id, job_id, granted_bytes, used_bytes, high_water_bytes)
               select worker_id, job_id, 30, 20, 25 from tensile.jobs;
               insert into tensile.device_samples (worker_id, at, budget_bytes, granted_bytes, used_bytes, host_bytes)
               select worker_id, date_trunc('second', now()) - make_interval(secs => s), 100, 80, 50, 7
                 from tensile.workers, generate_series(10, 30, 10) as s;
               insert into tensile.device_job_samples (worker_id, at, job_id, granted_bytes, used_bytes)
               select s.worker_id, s.at, j.job_id, 30, 20 from tensile.device_samples as s, tensile.jobs as j;
               insert into tensile.plans (job_id, attempt, generation, reason, policy, predicted_iteration_ns, swaps)
               select job_id, 1, 1, 'start', 'tensile', 1500000, 2 from tensile.jobs;
               update tensile.models set definition = '{"type": "mlp"}'"""
        )
        yield int(row[0])
