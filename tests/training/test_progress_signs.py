"""Signs of progress tell the controller once how long the job took from the order to start to its first step."""

import socket

from indb_tensile.job import JobId
from indb_tensile.messages import Message, Progressed, TrainerLink
from worker.training.progress_signs import ProgressSigns


class RecordingLink(TrainerLink):
    """Records the messages that are sent."""

    def __init__(self, own: socket.socket) -> None:
        super().__init__(own)
        self.sent: list[Message] = []

    def send(self, message: Message) -> None:
        self.sent.append(message)


def test_the_first_sign_after_the_first_step_says_how_long_the_job_started_up_and_later_signs_do_not() -> None:
    own, other = socket.socketpair()
    with own, other:
        link, clock_s = RecordingLink(own), iter([0.0, 1.0, 2.0, 3.5, 3.75, 4.25, 5.0])
        signs = ProgressSigns(link, JobId(1), lambda: next(clock_s))
        signs.give()  # at 1 s, while the job is read
        signs.admit()  # at 2 s
        signs.steps_left = 9.0
        signs.give()  # at 3.5 s: the first step has ended
        signs.steps_left = 8.0
        signs.give()  # at 3.75 s, too soon for a message
        signs.give()  # at 4.25 s
        assert _startups(link) == [None, 1.5, None]


def test_a_startup_that_ends_between_two_signs_is_sent_with_the_next_one() -> None:
    own, other = socket.socketpair()
    with own, other:
        link, clock_s = RecordingLink(own), iter([0.0, 1.0, 1.125, 1.25, 1.75])
        signs = ProgressSigns(link, JobId(1), lambda: next(clock_s))
        signs.give()  # at 1 s
        signs.admit()
        signs.steps_left = 9.0
        signs.give()  # at 1.25 s, too soon for a message
        signs.give()
        assert _startups(link) == [None, 0.125]


def _startups(link: RecordingLink) -> list[float | None]:
    return [message.startup_s for message in link.sent if isinstance(message, Progressed)]
