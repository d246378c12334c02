"""Everything that is asked of PostgreSQL: the queue, models, plans, notifications, and the installation itself."""
