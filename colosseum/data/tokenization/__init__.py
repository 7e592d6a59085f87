"""Text corpora to Megatron .bin/.idx pairs: sources, shards, rows, encoders, one shard's work, and the merge."""
