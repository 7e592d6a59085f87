"""Text from a checkpoint: prompts in, sampled tokens out, on one rank or on tensor and pipeline parallel ones."""
