"""Values computed from a recipe alone: steps, tokens, pipeline split, optimizer sharding. Pure functions.

Rules, planner, engines, runtime and the job script all use these, so that a plan and its run give the same numbers.
"""

from __future__ import annotations

from colosseum.recipe.base import AUTO, EngineName
from colosseum.recipe.cluster import Cluster
from colosseum.recipe.schema import Recipe
from colosseum.recipe.tasks import FACTS


def total_steps(recipe: Recipe) -> int | None:
    """Optimizer steps of the whole run; None unless exactly one length is given and the data it needs are known.

    Every engine drops the rows that do not fill a batch at the end of each epoch (NeMo-Aligner's samplers with
    ``drop_last``), so an epoch is ``rows // gbs`` steps and epochs are counted one by one: 7 epochs of 100,000 pairs
    at gbs 140 are 7 * 714 = 4,998 steps, not 5,000.
    """
    train = recipe.train
    if [train.steps, train.tokens, train.epochs].count(None) != 2:
        return None
    if train.steps is not None:
        return train.steps
    if train.tokens is not None:
        return train.tokens // tokens_per_step(recipe)
    per_epoch = steps_per_epoch(recipe)
    return None if per_epoch is None or train.epochs is None else train.epochs * per_epoch


def steps_per_epoch(recipe: Recipe) -> int | None:
    """Full batches in one pass over the training file; None where the number of rows is not known."""
    rows = recipe.data.train_samples
    return None if rows is None else rows // recipe.batch.gbs


def dropped_rows(recipe: Recipe) -> int:
    """Rows that each epoch drops because they do not fill a batch; 0 where the length is not given in epochs."""
    rows = recipe.data.train_samples
    return 0 if rows is None or recipe.train.epochs is None else rows % recipe.batch.gbs


def sequences_per_sample(recipe: Recipe) -> int:
    """Sequences that one sample of the batch holds: DPO's pairs a chosen and a rejected one."""
    return FACTS[recipe.task.kind].sequences


def tokens_per_step(recipe: Recipe) -> int:
    """Tokens per optimizer step: gbs sequences; for DPO, gbs pairs of a chosen and a rejected sequence."""
    return recipe.batch.gbs * recipe.batch.seq_length * sequences_per_sample(recipe)


def decay_steps(recipe: Recipe) -> int | None:
    """Step at which the learning rate has reached min_lr; None where the run's length is not known."""
    return recipe.optimizer.decay_steps or total_steps(recipe)


def warmup_steps(recipe: Recipe) -> int:
    """Steps of the warm-up; a share is of the decay, as in Megatron-LM (lr_warmup_fraction)."""
    share = recipe.optimizer.warmup_fraction
    return recipe.optimizer.warmup_steps if share is None else round(share * (decay_steps(recipe) or 0))


def distributed_optimizer(recipe: Recipe, sharded_ranks: int | None) -> bool | None:
    """Whether optimizer states are sharded: the recipe's value; auto = when dp * cp (``sharded_ranks``) is above 1."""
    choice = recipe.optimizer.distributed
    if choice != AUTO:
        return choice
    return None if sharded_ranks is None else sharded_ranks > 1


def fp8_local_rows(recipe: Recipe) -> int:
    """FP8: the rows of a sequence-parallel rank must be a multiple of this (blockwise scaling: 128, a block; else 8).

    Transformer Engine gathers quantised activations along the sequence, so a block may not cross ranks.
    """
    return 128 if recipe.precision.fp8 == "blockwise" else 8


def nodes_and_ranks(recipe: Recipe) -> tuple[int, int]:
    """Nodes of a job, and ranks on each: one a GPU."""
    gpus, per_node = recipe.resources.gpus, recipe.resources.gpus_per_node
    return (1, gpus) if gpus <= per_node else (gpus // per_node, per_node)


def image_of(cluster: Cluster, engine: EngineName) -> str | None:
    """The container image that an engine's jobs start from; None = bare metal, or no image is named."""
    container = cluster.container
    return None if container is None else container.images.get(engine, container.image)


def image_field(cluster: Cluster, engine: EngineName) -> str:
    """The field that ``image_of`` reads."""
    own = cluster.container is not None and engine in cluster.container.images
    return f"cluster.container.images.{engine}" if own else "cluster.container.image"


def layout_text(tp: int, pp: int, vpp: int, cp: int, dp: int) -> str:
    """``TP8 PP10 VPP10 CP4 DP9``; VPP and CP are left out when they are 1."""
    parts = [f"TP{tp}", f"PP{pp}", *([f"VPP{vpp}"] if vpp > 1 else [])]
    return " ".join([*parts, *([f"CP{cp}"] if cp > 1 else []), f"DP{dp}"])


def split_layers(recipe: Recipe) -> tuple[int, ...] | None:
    """``stage_layers`` of a recipe; None also while a field of its pipeline split is ``auto``."""
    par = recipe.parallelism
    embedding, loss = par.account_for_embedding_in_pipeline_split, par.account_for_loss_in_pipeline_split
    if par.pp == AUTO or embedding == AUTO or loss == AUTO:
        return None
    ends = par.first_stage_layers, par.last_stage_layers
    return stage_layers(recipe.model.num_layers, par.pp, ends, embedding=embedding, loss=loss)


def stage_layers(
    layers: int, pp: int, ends: tuple[int | None, int | None], *, embedding: bool, loss: bool
) -> tuple[int, ...] | None:
    """Layers of the first, an interior (where there is one) and the last of ``pp`` ranks; None = they are uneven.

    megatron-core, transformer_block.get_num_layers_to_build: the ranks without a number of their own hold the same
    number of layers; an embedding or loss that is accounted for counts as one layer.

    Args:
        ends: layers of the first and of the last rank, where a recipe gives them.
    """
    first, last = ends
    if first is None and last is None:
        each, rest = divmod(layers + embedding + loss, pp)
        if rest or not each:
            return None
        if pp == 1:
            return (layers,)
        return (each - embedding, *([each] if pp > 2 else []), each - loss)
    if pp == 1:
        return None
    others = pp - (first is not None) - (last is not None)
    rest = layers - (first or 0) - (last or 0)
    if others < 0 or rest < 0 or (others == 0) != (rest == 0) or (others and rest % others):
        return None
    each = rest // others if others else 0
    ends = (each if first is None else first, each if last is None else last)
    return (ends[0], *([each] if pp > 2 else []), ends[1])
