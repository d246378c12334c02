"""Trainings on tables without a job, and the plain scripts that are the rivals of jobs."""
