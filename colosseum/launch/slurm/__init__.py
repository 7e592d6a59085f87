"""Slurm: its commands, their answers and the job script."""
