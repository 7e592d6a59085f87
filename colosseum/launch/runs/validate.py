"""What a launch would refuse of a recipe, found without a launch."""

from __future__ import annotations

from colosseum.engines.planned import resolved
from colosseum.engines.registry import cannot_train, engine_of
from colosseum.errors import Fault, RefusedInput
from colosseum.launch.bundles.compile import faults
from colosseum.launch.bundles.inputs import tokenizer_faults
from colosseum.launch.runs.request import placing
from colosseum.recipe.load import Loaded


def validated(loaded: Loaded) -> list[str]:
    """Warnings about a recipe that its engine can train.

    Raises:
        RefusedInput: all faults of the layout, the tokenizer and the engine.
    """
    recipe = resolved(loaded.recipe)
    engine = engine_of(recipe.engine)
    with placing(loaded.origins):
        found = [*faults(recipe), *tokenizer_faults(recipe)]
        if sentence := cannot_train(recipe):
            found.append(Fault(path="task.kind", value=recipe.task.kind, rule=sentence, nearest=engine.about.tasks))
        if found:
            raise RefusedInput(found)
    dropped = [fault.sentence() for fault in engine.drops(recipe)]
    return [*loaded.warnings, *engine.notes(recipe), *dropped]
