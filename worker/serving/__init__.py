"""The parts of the service: the socket, the requests, batching, models in memory, and the analyst's process."""
