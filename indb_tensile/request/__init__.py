"""The rules of requests: the tables of options, and the only checker of what a user may ask of a training.

The SQL functions check a request in the user's session before they enqueue it, and a worker checks the specification
again, because a specification in the queue is untrusted input. Both import these modules. The bridge function in
PostgreSQL carries their source text (`indb_tensile/catalog/bridge_sources.py`), so they use only the standard library
and relative imports. They run no SQL statement. A check raises RequestError, whose HINT lists what is allowed.
"""
