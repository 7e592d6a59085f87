"""What FP8 would do to a model's tensors: observed in its layers, summed up, and turned into a proposal."""
