"""Blends of corpora: from target shares and a token budget to weights, epochs and drift."""
