"""This machine as a place to run."""
