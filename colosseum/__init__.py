"""Colosseum: a YAML recipe becomes a Recipe, a Recipe a Plan, a Plan a LaunchBundle, a bundle a Run."""

__version__ = "0.1.0"
