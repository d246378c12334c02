"""The rows of a table in memory or in files: columns, blocks, parts. It knows no encoding and no network."""
