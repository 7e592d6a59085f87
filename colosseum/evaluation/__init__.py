"""Scores of checkpoints by lm-evaluation-harness, and the choice between checkpoints."""
