"""Makes the folder from which a first attempt loads another run's optimizer. Runs in the engine's container.

    python continue_from.py [CHECKOUT]

A copy stands in every bundle of such a launch; nothing of Colosseum is imported. Megatron-LM and Megatron-Bridge keep,
beside the sharded tensors, one object with the iteration, the samples read and the state of the learning rate's
schedule: with it they go on in the other run's middle. ``continues`` of ``command.json`` says what is done instead:

    from, step   the checkpoints of the other run, or one of them; null = its newest
    to           the new folder: links to the files, and that object with its counters set to 0
    keep         leave the counters as they are: the run goes on with the other's data
    groups       numbers that Adam's parameter groups keep in the checkpoint: those of this run, which must be the same
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
COMMON, TRAIN_STATE = "common.pt", "train_state.pt"
GROUPS = "optimizer.distributed.dp_group_idx_0.optimizer/shard_0_1"
"""Where a distributed optimizer keeps its groups unless its checkpoint can change TP and PP."""
COUNTERS = ("consumed_train_samples", "skipped_train_samples", "consumed_valid_samples")


def main() -> None:
    command = json.loads((HERE / "command.json").read_text())
    what, tracker = command["continues"], command["names"]["tracker"]
    source = checkpoint_of(Path(what["from"]), what["step"], tracker)
    sys.path[:0] = sys.argv[1:]
    from megatron.core.dist_checkpointing.serialization import load_common_state_dict

    common = load_common_state_dict(str(source))
    compare(source, common, what["groups"])
    if not what["keep"]:
        reset(common)
    write(source, Path(what["to"]), tracker, common, keep=what["keep"])


def checkpoint_of(folder: Path, step: int | None, tracker: str) -> Path:
    """The folder of one checkpoint: itself, the step's, or the newest's."""
    if folder.name.startswith("iter_"):
        return folder
    if step is None:
        step = int((folder / tracker).read_text())
    return folder / f"iter_{step:07d}"


def groups_in(node: Any) -> Iterator[dict[str, Any]]:
    """Parameter groups anywhere below."""
    if isinstance(node, dict):
        yield from node.get("param_groups", ())
        for value in node.values():
            yield from groups_in(value)


def compare(source: Path, common: dict[str, Any], wanted: dict[str, Any]) -> None:
    """The groups of the checkpoint win over a new run's: they must have its numbers already.

    Raises:
        SystemExit: with one sentence.
    """
    optimizer = common.get("optimizer") or {}
    if not any(groups_in(optimizer)):
        optimizer = read_object(source, GROUPS)
    for group in groups_in(optimizer):
        for key, value in wanted.items():
            has = list(group[key]) if isinstance(group.get(key), tuple) else group.get(key)
            if has is not None and has != value:
                sys.exit(
                    f"the optimizer in {source} keeps {key} {has}, which would win over this run's {value}: set the "
                    f"recipe to it, or checkpoint.load=[weights]"
                )


def read_object(source: Path, key: str) -> Any:
    """An object that lies among the tensors; {} when there is none."""
    import io

    import torch
    from torch.distributed import checkpoint

    reader = checkpoint.FileSystemReader(str(source))
    if key not in reader.read_metadata().state_dict_metadata:
        return {}
    state = {key: io.BytesIO()}
    checkpoint.load(state, storage_reader=reader, no_dist=True)
    found: Any = state[key]
    if isinstance(found, io.BytesIO):
        found.seek(0)
        found = torch.load(found, weights_only=False)
    return found[0] if isinstance(found, list) else found


def reset(common: dict[str, Any]) -> None:
    """Step, samples and schedule begin at 0; the optimizer's own count of its steps stays."""
    common["iteration"] = 0
    common["num_floating_point_operations_so_far"] = 0
    common.get("opt_param_scheduler", {})["num_steps"] = 0
    common.pop("rerun_state_machine", None)
    for name in COUNTERS:
        if hasattr(common.get("args"), name):
            setattr(common["args"], name, 0)


def write(source: Path, to: Path, tracker: str, common: dict[str, Any], *, keep: bool) -> None:
    """The new folder; what an attempt before left of it goes."""
    import torch

    shutil.rmtree(to, ignore_errors=True)
    folder = to / source.name
    folder.mkdir(parents=True)
    for path in source.iterdir():
        if path.name not in (COMMON, TRAIN_STATE):
            (folder / path.name).symlink_to(path.resolve())
    torch.save(common, folder / COMMON)
    if (source / TRAIN_STATE).is_file():  # Megatron-Bridge's counters
        state = torch.load(source / TRAIN_STATE, weights_only=True)
        torch.save(state if keep else {key: value * 0 for key, value in state.items()}, folder / TRAIN_STATE)
    (to / tracker).write_text(source.name.removeprefix("iter_").lstrip("0"))


if __name__ == "__main__":
    main()
