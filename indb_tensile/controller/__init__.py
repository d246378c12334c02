"""The controller daemon: turns events into facts for the scheduler's decide(), and carries out its orders."""
