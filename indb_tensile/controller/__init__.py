"""The daemon: facts are folded into the scheduler's decide(), its orders are done by processes."""
