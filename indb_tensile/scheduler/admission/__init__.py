"""Decide which jobs run and with how much memory: a pure function of the controller's state and an event."""
