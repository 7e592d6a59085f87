"""torch_dist checkpoints of ours made without training, of any size."""

from __future__ import annotations

from pathlib import Path

import torch

from colosseum.checkpoint import folders
from colosseum.checkpoint.metadata import CheckpointMetadata, Layout, ModelShape
from colosseum.checkpoint.torchdist import Index, Item, saved, write_index
from colosseum.rundir import checkpoint_folder

STEP = 4


def write(root: Path, *, layers: int, hidden: int, ranks: int = 2, vocab: int = 512, optimizer: bool = True) -> Path:
    """``root/checkpoints/iter_0000004``: random weights, each rank's rows in a file of its own."""
    folder = checkpoint_folder(root / "checkpoints", STEP)
    folder.mkdir(parents=True)
    rest = {
        "mlp.linear_fc1.layer_norm_weight": (hidden,),
        "mlp.linear_fc1.weight": (2 * hidden, hidden),
        "mlp.linear_fc2.weight": (hidden, 2 * hidden),
        "self_attention.linear_proj.weight": (hidden, hidden),
        "self_attention.linear_qkv.layer_norm_weight": (hidden,),
        "self_attention.linear_qkv.weight": (2 * hidden, hidden),
    }
    shapes = {f"decoder.layers.{name}": (layers, *shape) for name, shape in rest.items()}
    shapes |= dict.fromkeys(("embedding.word_embeddings.weight", "output_layer.weight"), (vocab, hidden))
    shapes["decoder.final_layernorm.weight"] = (hidden,)
    if optimizer:
        states = ("param", "exp_avg", "exp_avg_sq")
        shapes |= {f"optimizer.state.{state}.{name}": shape for state in states for name, shape in shapes.items()}
    generator = torch.Generator().manual_seed(0)
    items = []
    for rank in range(ranks):
        file, at = f"__{rank}_0.distcp", 0
        with (folder / file).open("wb") as out:
            for name, shape in shapes.items():
                stacked = "decoder.layers." in name
                cut = 1 if stacked else 0
                if len(shape) == cut + 1 and rank:
                    continue  # norms: not cut
                rows = shape[cut] // (ranks if len(shape) > cut + 1 else 1)
                for layer in range(shape[0]) if stacked else (None,):
                    head = () if layer is None else (1,)
                    sizes = (*head, rows, *shape[cut + 1 :])
                    data = saved(torch.randn(sizes, generator=generator).mul_(0.02))
                    out.write(data)
                    first = () if layer is None else (layer,)
                    offsets = (*first, rank * rows if rows < shape[cut] else 0, *(0 for _ in shape[cut + 1 :]))
                    items.append(Item(name, offsets, sizes, file, at, len(data)))
                    at += len(data)
    write_index(folder, Index(folder, tuple(items), shapes, dict.fromkeys(shapes, torch.float32), None))
    (folder / "common.pt").write_bytes(saved({"optimizer": {"optimizer": {"param_groups": [{"step": 4.0}]}}}))
    metadata = CheckpointMetadata(
        schema="colosseum.checkpoint/2",
        step=STEP,
        consumed_samples=32,
        consumed_tokens=2048,
        layout=Layout(tp=ranks, pp=1, vpp=1, cp=1, dp=1),
        model=ModelShape(
            num_layers=layers,
            hidden_size=hidden,
            ffn_hidden_size=2 * hidden,
            num_attention_heads=4,
            num_query_groups=2,
            vocab_size=vocab,
            tied_embeddings=False,
            seq_length=64,
        ),
        dtype="fp32",
        fp8="none",
        sharded_optimizer=True,
        tokens_by_source={"a": 2048},
        sample_order="0",
        recipe_hash="0",
        run_id="made",
        versions={},
        save_time_s=0.1,
        files=folders.checksums(folder, sorted(path.name for path in folder.iterdir())),
    )
    folders.commit(root / "checkpoints", STEP, metadata)
    return folder
