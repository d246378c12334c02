"""The trials of a search: which one is trained next and how far, and which values the next one has."""
