"""``colosseum engines`` and ``import-config`` as typed."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Cli

ARGS = """--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 128 --micro-batch-size 1 --bf16
--global-batch-size 8 --train-iters 10 --lr 1e-4 --tokenizer-type NullTokenizer --vocab-size 1023 --save-interval 5
--log-interval 1 --eval-interval 5 --tensr-model-parallel-size 2"""


def test_engines_say_what_each_can_run(cli: Cli) -> None:
    rows = {row["name"]: row for row in json.loads(cli("engines", "--json").out)["engines"]}
    assert set(rows) == {"mcore", "megatron-lm", "nemo1", "nemo2", "bridge"}
    assert rows["nemo1"]["tasks"] == ["cpt", "sft", "dpo"]
    assert "nemo" in cli("engines").out


def test_engines_of_a_recipe_say_what_keeps_the_others_from_it(cli: Cli) -> None:
    """Each engine is asked of the layout that the planner gives it: CP is left to the planner, and nemo1 has none."""
    done = cli("engines", "colosseum-355b/dpo", "--cluster", "dgx-h100", "--json")
    rows = {row["name"]: row for row in json.loads(done.out)["engines"]}
    assert rows["nemo1"]["can_run"] and rows["mcore"]["can_run"]
    for engine in ("megatron-lm", "nemo2", "bridge"):
        assert not rows[engine]["can_run"]
        assert "task.kind" in [f["path"] for f in rows[engine]["faults"]]


def test_arguments_become_a_recipe_that_says_what_it_lacks(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "args.txt").write_text(ARGS)
    done = cli("import-config", "megatron-args", "args.txt", "--out", "mine.yaml")
    assert done.code == 2 and not (tmp_path / "mine.yaml").exists()
    assert "nearest: --tensor-model-parallel-size" in " ".join(done.said.split())
    done = cli("import-config", "megatron-args", "args.txt", "--out", "mine.yaml", "--accept")
    assert done.code == 0
    assert "did you mean --tensor-model-parallel-size" in done.said
    assert "resources = None: must be given" in done.said
    assert "# Not in this recipe: --tensr-model-parallel-size 2" in (tmp_path / "mine.yaml").read_text()
    document = json.loads(cli("import-config", "megatron-args", "args.txt", "--accept", "--json").out)
    assert document["recipe"]["model"]["vocab_size"] == 1024
    assert cli("validate", "mine.yaml", "resources.gpus=1", "fusion.rope=false").code == 0
    assert cli("import-config", "megatron-args", "args.txt", "--out", "mine.yaml").code == 2


def test_files_that_are_no_configuration_are_refused(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "list.yaml").write_text("[1, 2]")
    (tmp_path / "broken.yaml").write_text("a: [")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    for kind, file in (
        ("nemo1", "list.yaml"),
        ("nemo1", "broken.yaml"),
        ("nemo1", "nowhere.yaml"),
        ("megatron-args", "bytes"),
        ("megatron-args", "list.yaml"),
    ):
        assert cli("import-config", kind, file).code == 2, file


def test_a_nemo_yaml_with_interpolations_is_read(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "nemo.yaml").write_text(
        "exp_manager: {explicit_log_dir: '${oc.env:LOGS}'}\n"
        "model: {encoder_seq_length: 4096, max_position_embeddings: '${.encoder_seq_length}',\n"
        "  determinstic_mode: false}\n"
    )
    done = cli("import-config", "nemo1", "nemo.yaml", "--out", "mine.yaml", "--accept")
    assert done.code == 0
    assert "did you mean model.deterministic_mode" in done.said
    assert cli("validate", "mine.yaml", "model.vocab_size=32000", "tokenizer.path=/t/tokenizer.json").code == 0
