"""Refuses requests that a browser on this page would not send, and tells browsers what the page may do.

An ASGI middleware: it stands before every route, so no route can forget it.
"""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

_MOST_BODY_BYTES = 64 * 1024
_MOST_QUERY_BYTES = 4 * 1024
_MOST_PATH_BYTES = 4 * 1024  # Python reads no number of more than 4,300 digits
_LONGEST = 20  # digits of a length
_SAFE_METHODS = ("GET", "HEAD")
_METHODS = (*_SAFE_METHODS, "POST")

# Scripts, styles and requests come from this page alone; nothing may frame it, and no form leads elsewhere.
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


class RequestGuard:
    """Checks Host, Origin, method and sizes of each request, and adds security headers to each response."""

    def __init__(self, application: Application, *, hosts: frozenset[str], encrypted: bool) -> None:
        self._application = application
        self._hosts = hosts
        self._scheme = "https" if encrypted else "http"
        self._added = dict(_HEADERS)
        if encrypted:
            self._added["strict-transport-security"] = "max-age=31536000"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return

        async def send_with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self._added.items():
                    headers.setdefault(name, value)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        refusal = self._refusal(scope)
        if refusal is not None:
            await refusal(scope, receive, send_with_headers)
            return
        await self._application(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> JSONResponse | None:
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or hosts[0].lower() not in self._hosts:
            return refused(421, "this page has another address", "Use the address that tensile web has printed.")
        if scope["method"] not in _METHODS:
            return refused(405, f"the page does not know the method {scope['method'][:20]}")
        if len(scope.get("query_string", b"")) > _MOST_QUERY_BYTES or len(scope["path"]) > _MOST_PATH_BYTES:
            return refused(414, f"the address is longer than {_MOST_QUERY_BYTES} bytes")
        if scope["method"] in _SAFE_METHODS:
            return None
        length = headers.get("content-length", "")
        if not (length.isascii() and length.isdigit()) or len(length) > _LONGEST or int(length) > _MOST_BODY_BYTES:
            return refused(413, f"a request has at most {_MOST_BODY_BYTES} bytes, and says how many")
        origin = headers.get("origin")
        if origin is not None and origin.lower() != f"{self._scheme}://{hosts[0].lower()}":
            return refused(403, "the request comes from another site")
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return refused(403, "the request comes from another site")
        return None


def refused(status: int, message: str, hint: str = "") -> JSONResponse:
    """Return the answer to a request that is refused."""
    return JSONResponse({"message": message, "hint": hint}, status_code=status)
