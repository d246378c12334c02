"""Check login links, the slowing down of guesses, and how long a session lasts."""

from dataclasses import dataclass, field

from indb_tensile.monitor.viewer import Viewer
from indb_tensile.web.browser_sessions import IDLE_S, BrowserSessions
from indb_tensile.web.login_links import LoginLinks
from indb_tensile.web.login_throttle import LoginThrottle


@dataclass
class Clock:
    """A clock that a test sets."""

    now_s: float = 1000.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class LastingViewer:
    """Has of a viewer what sessions look at."""

    role: str = "alice"
    needs_password: bool = True
    is_lost: bool = False
    closed: list[str] = field(default_factory=list)

    def close(self) -> None:
        self.closed.append(self.role)


def viewer(**values: object) -> Viewer:
    return LastingViewer(**values)  # type: ignore[arg-type, return-value]


def test_a_link_lets_one_browser_in_and_the_next_link_is_announced() -> None:
    announced: list[str] = []
    links = LoginLinks(announced.append)
    links.start()
    first = announced[-1]

    assert not links.redeem("")
    assert not links.redeem(first + "x")
    assert not links.redeem("ä")
    assert links.redeem(first)
    assert not links.redeem(first)
    assert len(announced) == 2
    assert links.redeem(announced[-1])


def test_each_failure_after_the_third_doubles_the_wait_up_to_five_minutes() -> None:
    clock = Clock()
    throttle = LoginThrottle(clock)
    waits = []
    for _ in range(14):
        throttle.fail("role alice", "address ::1")
        waits.append(throttle.wait_s("role alice"))

    assert waits == [0, 0, 0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]
    assert throttle.wait_s("role bob") == 0
    assert throttle.wait_s("role bob", "address ::1") == 300
    clock.now_s += 300
    assert throttle.wait_s("role alice") == 0
    throttle.succeed("role alice")
    throttle.fail("role alice")
    assert throttle.wait_s("role alice") == 0


def test_a_session_ends_when_it_was_idle_for_long() -> None:
    clock = Clock()
    sessions = BrowserSessions(clock)
    cookie, session = sessions.begin(viewer())

    clock.now_s += IDLE_S
    assert sessions.find(cookie, renew=True) is session
    clock.now_s += IDLE_S
    assert sessions.find(cookie) is session  # a page that is left open asks for data
    clock.now_s += 1
    assert sessions.find(cookie) is None
    assert sessions.find(None) is None
    assert sessions.find("another") is None


def test_connections_of_a_password_close_with_the_last_session_that_uses_them() -> None:
    sessions = BrowserSessions()
    shared, kept = viewer(), viewer(role="bob", needs_password=False)
    first, _ = sessions.begin(shared)
    second, _ = sessions.begin(shared)
    third, _ = sessions.begin(kept)

    assert sessions.viewer_of("alice") is shared
    sessions.end(first)
    assert shared.closed == []  # type: ignore[attr-defined]
    sessions.end(second)
    sessions.end(third)
    assert shared.closed == ["alice"]  # type: ignore[attr-defined]
    assert kept.closed == []  # type: ignore[attr-defined]
    assert sessions.viewer_of("alice") is None


def test_a_role_that_logs_in_again_and_again_ends_its_own_sessions_alone() -> None:
    clock = Clock()
    sessions = BrowserSessions(clock)
    bobs, _ = sessions.begin(viewer(role="bob"))
    alice = viewer()
    cookies = []
    for _ in range(1001):
        clock.now_s += 1
        cookies.append(sessions.begin(alice)[0])

    assert sessions.find(bobs) is not None
    assert [sessions.find(cookie) is not None for cookie in cookies] == [False] * 951 + [True] * 50


def test_a_session_whose_connection_is_lost_has_ended() -> None:
    sessions = BrowserSessions()
    lost = viewer()
    cookie, _ = sessions.begin(lost)
    lost.is_lost = True  # type: ignore[misc]

    assert sessions.find(cookie) is None
    assert lost.closed == ["alice"]  # type: ignore[attr-defined]


def test_form_tokens_differ_and_only_the_own_one_is_accepted() -> None:
    sessions = BrowserSessions()
    _, own = sessions.begin(viewer())
    _, other = sessions.begin(viewer())

    assert own.accepts(own.form_token)
    assert not own.accepts(other.form_token)
    assert not own.accepts(None)
    assert not own.accepts("")
