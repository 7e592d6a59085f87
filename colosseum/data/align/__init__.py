"""Alignment data: JSONL rows of conversations and preferences to token ids and loss masks.

rows.py (JSON object to typed row) -> render.py or hf_template.py (row to text with marked spans) -> encode.py (text to
ids and mask) -> cache.py (all rows of a file, on disk) -> order.py and packing.py (rows of each step). No torch.
"""
