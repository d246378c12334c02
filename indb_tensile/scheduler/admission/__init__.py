"""Who may run, with how much memory: one pure function of what is known and what happened."""
