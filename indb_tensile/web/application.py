"""The web application of `tensile web`: maps each address to a page, to data or to an action.

A browser session belongs to a viewer: a database role with the connections by which the page reads and acts for it
(monitor/viewer.py). PostgreSQL checks the rights of that role.
"""

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import parse_qs

import psycopg
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.responses import StreamingResponse as Stream
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from indb_tensile.catalog.connection import UnreachableError
from indb_tensile.errors import MissingError, PrivilegeError, RequestError, TensileError
from indb_tensile.monitor import job_trace, live_figures
from indb_tensile.monitor.job_actions import ACTIONS, checked_values, perform
from indb_tensile.monitor.job_pictures import job_plan_picture
from indb_tensile.monitor.svg_drawing import Theme
from indb_tensile.monitor.viewer import Viewer, ViewerLostError
from indb_tensile.web import listings
from indb_tensile.web.browser_sessions import IDLE_S, BrowserSession, BrowserSessions
from indb_tensile.web.login_links import LoginLinks
from indb_tensile.web.login_throttle import LoginThrottle
from indb_tensile.web.page_feed import Feeds
from indb_tensile.web.pages import PAGES, STATIC, Page, frame, login_page
from indb_tensile.web.request_guard import RequestGuard, refused

_LISTING_AGE_S = 2.0  # an answer is kept for this time, so many browsers with the same list cost one statement
_HISTORY_AGES_S = {"5m": 300.0, "1h": 3600.0, "6h": 21_600.0, "1d": 86_400.0, "7d": 604_800.0, "30d": 2_592_000.0}
_PLACE = "on the page of tensile web"
_MOST_NUMBER = 2**63 - 1
_LONGEST_ROLE = 63  # bytes of a name in PostgreSQL

# The status for each class of SQLSTATE that a viewer's request can cause; all others are the server's fault.
_STATUS_OF_CLASS = {"22": 400, "42": 400, "0A": 400, "23": 409, "25": 409, "54": 400, "55": 409, "53": 409, "57": 503}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginMethod:
    """How browsers log in: by a link that `tensile web` has printed, or by the password of a database role.

    Either `links` and `starter` are set, or `check_password` is. `starter` is the viewer of the role that started
    `tensile web`, to whom the links belong.
    `check_password` returns the viewer of a role.
    """

    links: LoginLinks | None = None
    starter: Viewer | None = None
    check_password: Callable[[str, str], Viewer] | None = None


def application(
    login_method: LoginMethod,
    *,
    hosts: frozenset[str],
    encrypted: bool,
    metrics: Callable[[], tuple[bytes, str]] | None = None,
    feeds: Feeds | None = None,
) -> RequestGuard:
    """Return the ASGI application.

    `metrics` returns the text of /metrics and its media type; without it there is no such page.
    """
    page = _Application(login_method, encrypted=encrypted, metrics=metrics, feeds=feeds or Feeds())
    return RequestGuard(page.starlette, hosts=hosts, encrypted=encrypted)


class _Application:
    def __init__(
        self,
        login_method: LoginMethod,
        *,
        encrypted: bool,
        metrics: Callable[[], tuple[bytes, str]] | None,
        feeds: Feeds,
    ) -> None:
        self._login_method = login_method
        self._encrypted = encrypted
        # A browser sends a cookie with this prefix only if a page with TLS on this very host has set it.
        self._cookie = "__Host-tensile" if encrypted else "tensile"
        self._metrics = metrics
        self._sessions = BrowserSessions()
        self._throttle = LoginThrottle()
        self._feeds = feeds
        self._threads = feeds.threads
        self.starlette = Starlette(routes=self._routes(), exception_handlers=self._faults(), lifespan=self._lifespan)

    def _routes(self) -> list[Route | Mount]:
        pages = [Route(entry.path, self._page(entry), methods=["GET"]) for entry in PAGES]
        return [
            Route("/enter", self._enter, methods=["GET"]),
            Route("/login", self._login, methods=["GET", "POST"]),
            Route("/logout", self._logout, methods=["POST"]),
            Route("/metrics", self._show_metrics, methods=["GET"]),
            Route("/api/overview", self._watch_overview, methods=["GET"]),
            Route("/api/history", self._history, methods=["GET"]),
            Route("/api/jobs/{number:int}", self._job, methods=["GET"]),
            Route("/api/jobs/{number:int}/live", self._watch_job, methods=["GET"]),
            Route("/api/jobs/{number:int}/memory", self._job_memory, methods=["GET"]),
            Route("/api/jobs/{number:int}/data", self._data_report, methods=["GET"]),
            Route("/api/jobs/{number:int}/plan.svg", self._plan_picture, methods=["GET"]),
            Route("/api/jobs/{number:int}/trace", self._trace, methods=["GET"]),
            Route("/api/listings/{name}", self._listing, methods=["GET"]),
            Route("/api/model", self._model, methods=["GET"]),
            Route("/api/figure/{name}", self._figure, methods=["GET"]),
            Route("/api/act/{name}", self._act, methods=["POST"]),
            Mount("/static", _Static(directory=STATIC)),
            *pages,
        ]

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        yield
        self._sessions.close()

    # Logging in and out --------------------------------------------------------------------------------------------

    async def _enter(self, request: Request) -> Response:
        links, starter = self._login_method.links, self._login_method.starter
        if links is None or starter is None:
            return RedirectResponse("/login", status_code=303)
        if not links.redeem(request.query_params.get("link", "")):
            trouble = "This link is not valid any more. Open the newest one that tensile web has printed."
            return HTMLResponse(login_page(by_password=False, trouble=trouble), status_code=403)
        return self._let_in(starter)

    async def _login(self, request: Request) -> Response:
        check = self._login_method.check_password
        if check is None or request.method == "GET":
            return HTMLResponse(login_page(by_password=check is not None))
        try:
            form = parse_qs((await request.body()).decode("utf-8", "replace"), max_num_fields=8)
        except ValueError:
            return self._login_trouble("Type a role and its password.", 400)
        role, password = (form.get(name, [""])[0] for name in ("role", "password"))
        if len(role.encode()) > _LONGEST_ROLE:
            # PostgreSQL shortens longer names, so an attacker could use many names for one role against the throttle.
            return self._login_trouble(f"A role has at most {_LONGEST_ROLE} bytes.", 400)
        keys = (f"address {request.client.host if request.client else ''}", f"role {role}")
        wait_s = self._throttle.wait_s(*keys)
        if wait_s > 0:
            return self._login_trouble(f"Too many attempts have failed. Try again in {wait_s:.0f} seconds.", 429)
        if not role or not password or "\0" in role + password:
            return self._login_trouble("Type a role and its password.", 400)
        self._throttle.fail(*keys)  # before the attempt, so that attempts at the same time count
        try:
            viewer = await run_in_threadpool(check, role, password)
        except PrivilegeError as error:
            return self._login_trouble(" ".join(filter(None, (f"{error.message}.", error.hint))), 403)
        except UnreachableError as error:
            return self._login_trouble(error.message, 503)
        self._throttle.succeed(*keys)
        shared = self._sessions.viewer_of(viewer.role)
        if shared is not None:
            viewer.close()
        return self._let_in(shared or viewer)

    def _login_trouble(self, trouble: str, status: int) -> Response:
        return HTMLResponse(login_page(by_password=True, trouble=trouble), status_code=status)

    def _let_in(self, viewer: Viewer) -> Response:
        cookie, _ = self._sessions.begin(viewer)
        response = RedirectResponse("/", status_code=303)
        response.set_cookie(
            self._cookie,
            cookie,
            max_age=int(IDLE_S),
            path="/",
            secure=self._encrypted,
            httponly=True,
            samesite="strict",
        )
        return response

    async def _logout(self, request: Request) -> Response:
        session = self._session(request)
        if session is not None and not session.accepts(request.headers.get("x-form-token")):
            return refused(403, "the request does not come from this page")
        self._sessions.end(request.cookies.get(self._cookie))
        response = JSONResponse({"message": "You are logged out."})
        response.delete_cookie(self._cookie, path="/", secure=self._encrypted, httponly=True, samesite="strict")
        return response

    def _session(self, request: Request, *, renew: bool = False) -> BrowserSession | None:
        """Return the browser's session. Pages and actions renew it; requests for data, which pages repeat, do not."""
        return self._sessions.find(request.cookies.get(self._cookie), renew=renew)

    def _viewer(self, request: Request) -> Viewer:
        session = self._session(request)
        if session is None:
            raise _NotLoggedInError
        return session.viewer

    # Pages and their data ------------------------------------------------------------------------------------------

    def _page(self, page: Page) -> Callable[[Request], Any]:
        async def show(request: Request) -> Response:
            session = self._session(request, renew=True)
            if session is None:
                # A link in another site's page sends no cookie (SameSite=Strict), so this may be a logged-in browser.
                by_password = self._login_method.check_password is not None
                return HTMLResponse(login_page(by_password=by_password), status_code=401)
            viewer = session.viewer
            return HTMLResponse(
                frame(page, role=viewer.role, database=viewer.database, form_token=session.form_token)
            )

        return show

    async def _watch_overview(self, request: Request) -> Response:
        viewer = self._viewer(request)
        return self._stream(request, viewer, "overview", lambda: viewer.read(live_figures.overview))

    async def _watch_job(self, request: Request) -> Response:
        viewer, number = self._viewer(request), _number(request.path_params["number"], "job")
        return self._stream(
            request, viewer, ("job", number), lambda: viewer.read(lambda c: live_figures.job(c, number))
        )

    def _stream(self, request: Request, viewer: Viewer, question: Any, ask: Callable[[], Any]) -> Response:
        cookie = request.cookies.get(self._cookie)
        events = self._feeds.watch(viewer, question, ask, lambda: self._sessions.find(cookie) is not None)
        return Stream(events, media_type="text/event-stream", headers={"x-accel-buffering": "no"})

    async def _answer(self, viewer: Viewer, work: Callable[[], Any]) -> Response:
        return JSONResponse(await self._threads.run(viewer, work))

    async def _history(self, request: Request) -> Response:
        viewer, worker = self._viewer(request), _number(request.query_params.get("worker"), "worker")
        age = request.query_params.get("age", "5m")
        if age not in _HISTORY_AGES_S:
            raise RequestError(f"age is {age!r}", hint=f"Valid are {', '.join(_HISTORY_AGES_S)}.")
        return await self._answer(
            viewer,
            lambda: viewer.cached(
                ("history", worker, age),
                _LISTING_AGE_S,
                lambda c: live_figures.history(c, worker, _HISTORY_AGES_S[age]),
            ),
        )

    async def _job(self, request: Request) -> Response:
        viewer, number = self._viewer(request), _number(request.path_params["number"], "job")
        return await self._answer(viewer, lambda: viewer.read(lambda c: live_figures.job(c, number)))

    async def _job_memory(self, request: Request) -> Response:
        viewer, number = self._viewer(request), _number(request.path_params["number"], "job")
        return await self._answer(viewer, lambda: viewer.read(lambda c: live_figures.job_memory(c, number)))

    async def _data_report(self, request: Request) -> Response:
        viewer, number = self._viewer(request), _number(request.path_params["number"], "job")
        return await self._answer(
            viewer, lambda: viewer.read(lambda c: live_figures.rows(c, "data_report", job=number))
        )

    async def _plan_picture(self, request: Request) -> Response:
        viewer, number = self._viewer(request), _number(request.path_params["number"], "job")
        theme = request.query_params.get("theme", Theme.LIGHT)
        if theme not in tuple(Theme):
            raise RequestError(f"theme is {theme[:40]!r}", hint=f"Valid are {', '.join(Theme)}.")
        picture = await self._threads.run(
            viewer, lambda: viewer.read(lambda c: job_plan_picture(c, number, Theme(theme)))
        )
        return Response(picture, media_type="image/svg+xml")

    async def _trace(self, request: Request) -> Response:
        """Send the newest trace of a job as a file. With `since`, say whether one was written since then."""
        viewer, number = self._viewer(request), _number(request.path_params["number"], "job")
        since = request.query_params.get("since")
        if since is not None:
            moment = _moment(since)
            return await self._answer(viewer, lambda: viewer.read(lambda c: job_trace.trace_state(c, number, moment)))
        text = await self._threads.run(viewer, lambda: viewer.act(lambda c: job_trace.trace_text(c, [number])))
        name = job_trace.as_file_name(number)
        headers = {"content-disposition": f'attachment; filename="{name}"'}
        return Response(text, media_type="application/json", headers=headers)

    async def _listing(self, request: Request) -> Response:
        viewer = self._viewer(request)
        listing = listings.request_of(request.path_params["name"], request.query_params.multi_items())
        return await self._answer(
            viewer, lambda: viewer.cached(("listing", listing), _LISTING_AGE_S, lambda c: listings.read(c, listing))
        )

    async def _model(self, request: Request) -> Response:
        viewer, name = self._viewer(request), _name(request.query_params.get("model"))
        return await self._answer(viewer, lambda: viewer.read(lambda c: live_figures.model(c, name)))

    async def _figure(self, request: Request) -> Response:
        viewer, name = self._viewer(request), _name(request.query_params.get("model"))
        figure, version = request.path_params["name"], request.query_params.get("version")
        if figure not in live_figures.FIGURES:
            raise MissingError(f"there is no figure {figure!r}", hint=f"Valid are {', '.join(live_figures.FIGURES)}.")
        number = None if version is None else _number(version, "version")
        return await self._answer(viewer, lambda: viewer.act(lambda c: live_figures.figure(c, figure, name, number)))

    async def _act(self, request: Request) -> Response:
        session = self._session(request, renew=True)
        if session is None:
            raise _NotLoggedInError
        if not session.accepts(request.headers.get("x-form-token")):
            return refused(403, "the request does not come from this page", "Load the page again.")
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return refused(415, "an action is sent as application/json")
        action = ACTIONS.get(request.path_params["name"])
        if action is None:
            raise MissingError(f"there is no action {request.path_params['name']!r}")
        try:
            body = json.loads(await request.body())
        except (ValueError, RecursionError):
            raise RequestError("the request is not JSON") from None
        values = checked_values(action, body)
        return await self._answer(
            session.viewer,
            lambda: session.viewer.act(lambda c: perform(c, action, values, _PLACE), pins=action.pins_search_path),
        )

    async def _show_metrics(self, request: Request) -> Response:
        if self._metrics is None:
            return refused(404, "this page shows no metrics", "Start it with tensile web --metrics.")
        text, media_type = await run_in_threadpool(self._metrics)
        return Response(text, media_type=media_type)

    # Faults --------------------------------------------------------------------------------------------------------

    def _faults(self) -> Mapping[Any, Any]:
        return {
            _NotLoggedInError: lambda *_: refused(401, "you are not logged in", "Load the page again to log in."),
            ViewerLostError: lambda _, error: refused(401, error.message, error.hint),
            MissingError: lambda _, error: refused(404, error.message, error.hint),
            TensileError: lambda _, error: refused(
                400 if isinstance(error, RequestError) else 503, *_message_and_hint(error)
            ),
            psycopg.Error: lambda _, error: _database_fault(error),
            404: lambda *_: PlainTextResponse("There is no such page.\n", status_code=404),
        }


class _NotLoggedInError(Exception):
    """The request has no session, or one that has ended."""


class _Static(StaticFiles):
    """Files of the package. A browser asks each time whether its copy is current, so that an upgrade shows."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers["cache-control"] = "no-cache"
        return response


def _message_and_hint(error: TensileError) -> tuple[str, str]:
    return error.message, " ".join(filter(None, (error.detail, error.hint)))


def _database_fault(error: psycopg.Error) -> Response:
    diagnostics = error.diag
    message = diagnostics.message_primary or str(error).strip().partition("\n")[0] or "the database does not answer"
    further = " ".join(filter(None, (diagnostics.message_detail, diagnostics.message_hint)))
    sqlstate = error.sqlstate or ""
    if sqlstate in ("42501", "42704"):
        return refused({"42501": 403, "42704": 404}[sqlstate], message, further)
    return refused(_STATUS_OF_CLASS.get(sqlstate[:2], 503), message, further)


def _number(text: object, name: str) -> int:
    try:
        number = int(str(text))
    except ValueError:
        number = -1
    if not 0 <= number <= _MOST_NUMBER:
        raise RequestError(f"{name} is {str(text)[:40]!r}, not a whole number from 0")
    return number


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = datetime.min
    if moment.tzinfo is None:
        raise RequestError(f"since is {text[:40]!r}, not a time in ISO 8601 with its zone")
    return moment


def _name(text: str | None) -> str:
    if not text or "\0" in text:
        raise RequestError("the request names no model")
    return text
