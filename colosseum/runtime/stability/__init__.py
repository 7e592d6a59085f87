"""What a step's figures say of a run, and what is done about it."""
