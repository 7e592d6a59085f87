"""Alignment data: JSONL rows of conversations and preferences to token ids and loss masks.

rows.py (a JSON object is a typed row) -> render.py or hf_template.py (a row is text with marked spans) -> encode.py
(text is ids and mask) -> cache.py (all rows of a file, on disk, mapped) -> order.py and packing.py (which rows make a
step). No torch anywhere.
"""
