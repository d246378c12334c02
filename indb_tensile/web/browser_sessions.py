"""The browsers that are logged in: cookie, form token and viewer of each."""

import hashlib
import hmac
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from indb_tensile.monitor.viewer import Viewer

IDLE_S = 12 * 3600.0  # after which a browser has to log in again
_MOST_SESSIONS = 1000  # the one that was used longest ago ends
_MOST_OF_VIEWER = 50  # sessions of one role, so that a role that logs in again and again ends its own sessions alone


@dataclass(slots=True)
class BrowserSession:
    """One browser that is logged in. `form_token` comes with every request that changes something."""

    viewer: Viewer
    form_token: str
    used_s: float

    def accepts(self, form_token: str | None) -> bool:
        """Return True if a request carries this session's form token."""
        return form_token is not None and hmac.compare_digest(form_token.encode(), self.form_token.encode())


class BrowserSessions:
    """All sessions, by the digest of their cookie, so that a copy of the memory has no cookie to steal."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._sessions: dict[str, BrowserSession] = {}

    def begin(self, viewer: Viewer) -> tuple[str, BrowserSession]:
        """Begin a session. Returns the cookie's value and the session."""
        cookie = secrets.token_urlsafe(32)
        session = BrowserSession(viewer=viewer, form_token=secrets.token_urlsafe(32), used_s=self._clock_s())
        ended = []
        with self._lock:
            self._sessions[_digest(cookie)] = session
            own = [key for key, other in self._sessions.items() if other.viewer.role == viewer.role]
            for keys, most in ((own, _MOST_OF_VIEWER), (list(self._sessions), _MOST_SESSIONS)):
                if len(keys) > most:
                    oldest = min(keys, key=lambda key: self._sessions[key].used_s)
                    ended.append(self._sessions.pop(oldest))
        self._release(ended)
        return cookie, session

    def find(self, cookie: str | None, *, renew: bool = False) -> BrowserSession | None:
        """Return the session of a cookie, if it has not ended. With `renew` it counts as used now.

        Only what a person does renews a session. A page that is left open asks again and again by itself.
        """
        if not cookie:
            return None
        now_s = self._clock_s()
        key = _digest(cookie)
        with self._lock:
            session = self._sessions.get(key)
            if session is None:
                return None
            has_ended = now_s - session.used_s > IDLE_S or session.viewer.is_lost
            if has_ended:
                del self._sessions[key]
            elif renew:
                session.used_s = now_s
        if has_ended:
            self._release([session])
            return None
        return session

    def end(self, cookie: str | None) -> None:
        """End the session of a cookie."""
        with self._lock:
            session = self._sessions.pop(_digest(cookie or ""), None)
        self._release([session] if session else [])

    def viewer_of(self, role: str) -> Viewer | None:
        """Return the viewer that sessions of this role share, if there is one."""
        with self._lock:
            viewers = [session.viewer for session in self._sessions.values()]
        return next((viewer for viewer in viewers if viewer.role == role and not viewer.is_lost), None)

    def close(self) -> None:
        """End all sessions."""
        with self._lock:
            ended = list(self._sessions.values())
            self._sessions.clear()
        self._release(ended)

    def _release(self, ended: list[BrowserSession]) -> None:
        """Close the connections of password logins that no session uses any more."""
        with self._lock:
            used = {id(session.viewer) for session in self._sessions.values()}
        unused = {id(session.viewer): session.viewer for session in ended if id(session.viewer) not in used}
        for viewer in unused.values():
            if viewer.needs_password:
                viewer.close()


def _digest(cookie: str) -> str:
    return hashlib.sha256(cookie.encode()).hexdigest()
