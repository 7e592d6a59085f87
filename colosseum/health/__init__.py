"""Checks of a node, quick enough for Slurm's Prolog: standard library only; a bug of ours never drains a node."""
