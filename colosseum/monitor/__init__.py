"""Reads run folders: losses, tables, plots."""
