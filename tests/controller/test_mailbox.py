"""The controller's mailbox: items in order, and a descriptor that a failed start gives back."""

import os

import pytest

from indb_tensile.controller.mailbox import Mailbox


def test_items_come_in_order_and_at_once() -> None:
    mailbox: Mailbox[str] = Mailbox()
    assert mailbox.take() == []
    mailbox.post("a")
    mailbox.post("b")
    assert mailbox.take() == ["a", "b"]
    assert mailbox.take() == []
    mailbox.close()


def test_a_closed_mailbox_has_no_descriptor_and_a_signal_handler_may_still_post() -> None:
    mailbox: Mailbox[str] = Mailbox()
    descriptor = mailbox.fileno()
    mailbox.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    mailbox.post("late")
