"""Access to PostgreSQL: the installation of the catalog, the queue, models, plans and notifications."""
