"""Login links: each lets one browser in, once, as the role of whoever started `tensile web`."""

import hmac
import secrets
import threading
from collections.abc import Callable


class LoginLinks:
    """The one valid link. When a browser has used it, the next one is announced to whoever started the page."""

    def __init__(self, announce: Callable[[str], None]) -> None:
        """`announce` shows a new token to the starter, and to nobody else."""
        self._announce = announce
        self._lock = threading.Lock()
        self._token = secrets.token_urlsafe(32)

    def start(self) -> None:
        """Announce the first link."""
        self._announce(self._token)

    def redeem(self, token: str) -> bool:
        """Return True for the valid token, which is then used up."""
        with self._lock:
            if not hmac.compare_digest(token.encode(), self._token.encode()):
                return False
            self._token = secrets.token_urlsafe(32)
            following = self._token
        self._announce(following)
        return True
