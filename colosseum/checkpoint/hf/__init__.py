"""Models in Hugging Face folders: into a checkpoint of ours, and out of one."""
