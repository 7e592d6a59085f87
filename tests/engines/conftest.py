"""Shipped recipes resolved for an engine, as a compile sees them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from colosseum.engines import planned
from colosseum.engines.base import EngineLaunch
from colosseum.engines.registry import engine_of
from colosseum.planning.resolve import resolve
from colosseum.recipe.load import load
from colosseum.recipe.schema import Recipe

Resolved = Callable[..., Recipe]
Rendered = Callable[..., EngineLaunch]


@pytest.fixture(autouse=True)
def shipped_clusters_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "/nonexistent")


@pytest.fixture
def resolved() -> Resolved:
    """``resolved(name, "key=value", …)``: the recipe with no ``auto`` left."""

    def make(name: str, *words: str) -> Recipe:
        return planned.resolved(load(name, words, cluster="dgx-h100").recipe)

    return make


@pytest.fixture
def rendered(resolved: Resolved) -> Rendered:
    """``rendered(name, "key=value", …)``: the launch by the engine that the recipe names."""

    def make(name: str, *words: str) -> EngineLaunch:
        recipe = resolved(name, *words)
        engine = engine_of(recipe.engine)
        assert engine.faults(recipe) == []
        return engine.render(recipe, resolve(recipe))

    return make
