"""Depth growth on made checkpoints: what goes where, what is refused, and what an interruption leaves."""

from __future__ import annotations

import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from colosseum.checkpoint import folders
from colosseum.checkpoint.expand import expand
from colosseum.checkpoint.expansion import parameters
from colosseum.checkpoint.growth import Growth, growth
from colosseum.checkpoint.torchdist import Tensors, read_index
from colosseum.errors import RefusedInput
from tests.checkpoint import made

COLOSSEUM = Path(sys.executable).parent / "colosseum"
FC1, FC2 = "decoder.layers.mlp.linear_fc1.weight", "decoder.layers.mlp.linear_fc2.weight"
PROJ, NORM = "decoder.layers.self_attention.linear_proj.weight", "decoder.layers.mlp.linear_fc1.layer_norm_weight"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made.write(tmp_path_factory.mktemp("made"), layers=3, hidden=32)


def grown(source: Path, out: Path, layers: int, at: str, init: str = "identity", moments: str = "carry") -> Tensors:
    plan = growth(3, layers, at, init, moments)  # type: ignore[arg-type]
    return Tensors(read_index(expand(source, out, plan)))


@given(st.integers(1, 60), st.integers(1, 60))
def test_the_old_layers_keep_their_order_and_each_new_one_follows_its_own(layers: int, more: int) -> None:
    for at in ("evenly", "end"):
        plan = growth(layers, layers + more, at, "identity", "carry")
        assert [old for old, new in plan.order if not new] == list(range(layers))
        assert len(plan.new_layers) == more
        for index in plan.new_layers:
            assert plan.order[index - 1][0] == plan.order[index][0]


def test_four_layers_more_of_96_stand_a_quarter_apart() -> None:
    assert [n + 1 for n in growth(96, 100, "evenly", "identity", "carry").new_layers] == [25, 50, 75, 100]
    by_list = growth(96, 100, "24,48,72,96", "identity", "carry")
    assert by_list == growth(96, 100, "evenly", "identity", "carry")


@pytest.mark.parametrize("wanted, at", [(3, "evenly"), (2, "end"), (5, "1"), (4, "0"), (4, "4"), (4, "middle")])
def test_what_does_not_fit_is_refused(wanted: int, at: str) -> None:
    with pytest.raises(RefusedInput):
        growth(3, wanted, at, "identity", "carry")


def test_340b_becomes_355b() -> None:
    """Nemotron-4-340B (arXiv:2406.11704): 341,029,195,776 parameters at 96 layers; 3,454,083,072 a layer."""
    hidden, ffn, vocab, kv = 18432, 73728, 256000, 8 * 192

    def shapes(layers: int) -> dict[str, tuple[int, ...]]:
        here = "decoder.layers."
        norms = {f"{here}{part}.layer_norm_{kind}": (layers, hidden) for part in ("a", "b") for kind in ("w", "b")}
        return {
            **norms,
            f"{here}self_attention.linear_qkv.weight": (layers, hidden + 2 * kv, hidden),
            PROJ: (layers, hidden, hidden),
            FC1: (layers, ffn, hidden),
            FC2: (layers, hidden, ffn),
            "decoder.final_layernorm.weight": (hidden,),
            "decoder.final_layernorm.bias": (hidden,),
            "embedding.word_embeddings.weight": (vocab + 1024, hidden),
            "output_layer.weight": (vocab + 1024, hidden),
            f"optimizer.state.exp_avg.{FC1}": (layers, ffn, hidden),
        }

    assert parameters(shapes(96), vocab) == 341_029_195_776
    assert parameters(shapes(100), vocab) == 354_845_528_064


def test_identity_copies_the_layer_before_and_zeroes_what_it_adds(source: Path, tmp_path: Path) -> None:
    old, new = Tensors(read_index(source)), grown(source, tmp_path, 5, "1,3")
    order = [0, 0, 1, 2, 2]
    for name, layer in old.names():
        if layer is None:
            assert torch.equal(old.get(name), new.get(name)), name
    for place, layer in enumerate(order):
        is_new = place in (1, 4)
        for key in (FC1, NORM, FC2, PROJ):
            for head in ("", "optimizer.state.param."):
                wanted = old.get(head + key, layer)
                if is_new and key in (FC2, PROJ):
                    wanted = torch.zeros_like(wanted)
                assert torch.equal(new.get(head + key, place), wanted), (head, key, place)
            moment = old.get("optimizer.state.exp_avg." + key, layer)
            expected = torch.zeros_like(moment) if is_new else moment
            assert torch.equal(new.get("optimizer.state.exp_avg." + key, place), expected)


def test_copy_and_random(source: Path, tmp_path: Path) -> None:
    old = Tensors(read_index(source))
    copied = grown(source, tmp_path / "copy", 4, "end", "copy")
    assert torch.equal(copied.get(FC2, 3), old.get(FC2, 2))
    drawn = grown(source, tmp_path / "random", 4, "end", "random")
    fresh = drawn.get(FC1, 3)
    assert not torch.equal(fresh, old.get(FC1, 2))
    assert fresh.std().item() == pytest.approx(0.02, rel=0.1)
    assert drawn.get(PROJ, 3).std().item() == pytest.approx(0.02 / (2 * 4) ** 0.5, rel=0.1)
    assert torch.equal(drawn.get(f"optimizer.state.param.{FC1}", 3), fresh)
    assert torch.equal(drawn.get(NORM, 3), old.get(NORM, 2))


def test_moments_carried_zeroed_or_dropped(source: Path, tmp_path: Path) -> None:
    zeroed = grown(source, tmp_path / "zero", 4, "end", moments="zero")
    assert not zeroed.get(f"optimizer.state.exp_avg_sq.{FC1}", 0).any()
    param = f"optimizer.state.param.{FC1}"
    assert torch.equal(zeroed.get(param, 0), Tensors(read_index(source)).get(param, 0))
    common = torch.load(tmp_path / "zero" / "checkpoints" / source.name / "common.pt")
    assert common["optimizer"]["optimizer"]["param_groups"][0]["step"] == 0.0
    dropped = grown(source, tmp_path / "drop", 4, "end", moments="drop")
    assert not any(name.startswith("optimizer") for name, _ in dropped.names())
    metadata = folders.read_metadata(tmp_path / "drop" / "checkpoints" / source.name)
    assert not metadata.has_optimizer
    assert sum(file.bytes for file in metadata.files.values()) < 0.4 * sum(p.stat().st_size for p in source.iterdir())


def test_the_lineage_and_the_sums_are_recorded(source: Path, tmp_path: Path) -> None:
    grown(source, tmp_path, 5, "evenly")
    folder = tmp_path / "checkpoints" / source.name
    metadata = folders.read_metadata(folder)
    assert metadata.model.num_layers == 5
    assert metadata.origin is not None and metadata.origin.source == f"made@{made.STEP}"
    assert metadata.origin.settings["layers"] == [3, 5]
    assert sorted(metadata.files) == sorted(p.name for p in folder.iterdir() if p.name != "colosseum.json")
    assert folders.checksums(folder, metadata.files) == metadata.files
    with pytest.raises(RefusedInput, match="already a complete checkpoint"):
        grown(source, tmp_path, 5, "evenly")


@pytest.mark.parametrize("name", ["__1_0.distcp", ".metadata", "common.pt"])
def test_one_flipped_byte_is_found(source: Path, tmp_path: Path, name: str) -> None:
    copy = tmp_path / source.name
    shutil.copytree(source, copy)
    content = bytearray((copy / name).read_bytes())
    content[len(content) // 2] ^= 1
    (copy / name).write_bytes(content)
    with pytest.raises(RefusedInput, match=f"{name} changed"):
        grown(copy, tmp_path / "out", 4, "end")
    assert not (tmp_path / "out").exists()


def test_what_was_in_the_folder_before_stays_when_a_damaged_source_is_refused(source: Path, tmp_path: Path) -> None:
    copy, other = tmp_path / source.name, tmp_path / "out" / "checkpoints" / source.name / "somebody's"
    shutil.copytree(source, copy)
    content = bytearray((copy / "__1_0.distcp").read_bytes())
    content[len(content) // 2] ^= 1
    (copy / "__1_0.distcp").write_bytes(content)
    other.parent.mkdir(parents=True)
    other.write_text("weights")
    with pytest.raises(RefusedInput, match="changed"):
        grown(copy, tmp_path / "out", 4, "end")
    assert other.read_text() == "weights"


# --- interruptions ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some 50 MB in four files."""
    return made.write(tmp_path_factory.mktemp("large"), layers=6, hidden=512, ranks=4)


WORKER = """
import sys
from pathlib import Path
from colosseum.checkpoint.expand import expand
from colosseum.checkpoint.growth import growth
import torch.distributed.checkpoint
print("ready", flush=True)
expand(Path(sys.argv[1]), Path(sys.argv[2]), growth(6, 8, "evenly", "identity", "carry"), workers=1)
"""


def killed(large: Path, out: Path, moments: list[float]) -> int:
    """Kills the command at moments of its work, again and again on the same OUT; how often it was at work."""
    hits = 0
    for moment in moments:
        process = subprocess.Popen([sys.executable, "-c", WORKER, large, out], stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        time.sleep(moment)
        process.send_signal(signal.SIGKILL)
        hits += process.wait() == -signal.SIGKILL
        process.stdout.close()
        folder = out / "checkpoints" / large.name
        if (folder / "colosseum.json").exists():
            assert folders.read_metadata(folder).files == folders.checksums(folder, folders.read_metadata(folder).files)
            shutil.rmtree(out)
    return hits


def same_as_undisturbed(large: Path, out: Path, tmp_path: Path) -> None:
    plan = growth(6, 8, "evenly", "identity", "carry")
    if not folders.is_committed(out / "checkpoints" / large.name):
        expand(large, out, plan)
    whole = expand(large, tmp_path / "whole", plan)
    wanted, found = folders.read_metadata(whole), folders.read_metadata(out / "checkpoints" / large.name)
    names = [name for name in wanted.files if name != ".metadata"]
    assert {name: found.files[name] for name in names} == {name: wanted.files[name] for name in names}
    read_index(out / "checkpoints" / large.name)
    source = folders.read_metadata(large)
    assert folders.checksums(large, source.files) == source.files, "the source is untouched"


def test_killed_at_any_moment_it_is_taken_up(large: Path, tmp_path: Path) -> None:
    assert killed(large, tmp_path / "out", [0.02, 0.06, 0.12])
    same_as_undisturbed(large, tmp_path / "out", tmp_path)


@pytest.mark.long
def test_killed_at_twenty_moments(large: Path, tmp_path: Path) -> None:
    rng = random.Random(13)
    assert killed(large, tmp_path / "out", [rng.uniform(0, 0.4) for _ in range(20)]) > 10
    same_as_undisturbed(large, tmp_path / "out", tmp_path)


def test_a_full_disk_leaves_no_checkpoint_and_the_next_call_completes(large: Path, tmp_path: Path) -> None:
    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    words = [COLOSSEUM, "checkpoint", "expand", large, tmp_path / "out", "--layers", "8", "--no-probe"]
    ended = subprocess.run(words, preexec_fn=small_files, capture_output=True, text=True, cwd=tmp_path)
    assert ended.returncode == 3, ended.stderr
    assert "Traceback" not in ended.stderr
    assert not folders.is_committed(tmp_path / "out" / "checkpoints" / large.name)
    same_as_undisturbed(large, tmp_path / "out", tmp_path)


def test_the_plan_is_a_value() -> None:
    assert growth(2, 3, "end", "copy", "drop") == Growth(
        order=((0, False), (1, False), (1, True)), init="copy", moments="drop"
    )
