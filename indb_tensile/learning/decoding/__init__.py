"""Decodes the values of rows: COPY's binary format, records of SQL, and JSON."""
