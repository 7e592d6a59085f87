"""From a recipe and its plan to the folder that is launched."""
