"""Engine ``mcore``: our own runtime on megatron-core. It reads the bundle's recipe and plan, so it needs no files."""

from __future__ import annotations

from colosseum.engines.base import About, EngineLaunch
from colosseum.errors import Fault
from colosseum.planning.plan import Plan
from colosseum.recipe.schema import Recipe


def not_yet(recipe: Recipe) -> str | None:
    """Why the runtime cannot train a recipe that can be planned and written as a bundle; None = it can."""
    if recipe.engine == "mcore" and recipe.task.kind != "cpt":
        return f"engine mcore trains cpt so far, and {recipe.name} is {recipe.task.kind}"
    return None


class McoreEngine:
    """See ``engines.base.Engine``."""

    name = "mcore"
    about = About(
        title="Colosseum's own runtime on megatron-core",
        tasks=("cpt",),
        fp8=("delayed", "tensorwise", "blockwise"),
        cp="cpt",
        container="any with this package, e.g. docker/Dockerfile.mcore",
        image="dockerd://colosseum:mcore",
        reads="its own checkpoints",
    )

    def faults(self, recipe: Recipe) -> list[Fault]:
        """What this runtime cannot do yet; the rules between fields (``recipe/rules.py``) are megatron-core's."""
        faults = []
        if recipe.data.reset_attention_mask:
            rule = "engine mcore attends across documents; reset_position_ids and eod_mask_loss work"
            faults.append(Fault(path="data.reset_attention_mask", value=True, rule=rule, nearest=(False,)))
        return faults

    def notes(self, recipe: Recipe) -> list[str]:
        """Such a recipe is planned and written as a bundle all the same; only its submission is refused."""
        sentence = not_yet(recipe)
        return [] if sentence is None else [sentence]

    def render(self, recipe: Recipe, plan: Plan) -> EngineLaunch:
        return EngineLaunch(files={}, argv=("python", "-m", "colosseum.runtime", "bundle"))
