"""Reads relations from PostgreSQL: locks, snapshots, COPY, statistics, and the memory that the rows will need."""
