"""Import of Hugging Face models into checkpoints of Colosseum, and export."""
