"""The service's parts: the socket, the requests, batching, resident models and the analyst's process."""
