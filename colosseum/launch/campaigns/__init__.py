"""Stages one after another, with a gate between them."""
