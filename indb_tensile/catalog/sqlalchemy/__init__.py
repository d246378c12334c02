"""The catalog as SQLAlchemy Core sees it: an engine, the metadata of schema `tensile`, and listings made with them.

Only this room and `indb_tensile.client` import SQLAlchemy. This room reads for people: statements that are put
together from filters, sort keys and pages. All other statements are named blocks of SQL that run on plain psycopg,
because they are fixed, and because queue, notifications and COPY need the driver itself. Importing SQLAlchemy takes
about 0.2 s, so a command imports this room when it lists, and not before.
"""
