"""No option of another tool is lost: each becomes a field, or is in a list with its reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from colosseum.engines.foreign_options import TEMPLATES, megatron_options, nemo1_defaults, nemo1_keys, rows, treatments
from colosseum.engines.importing import DECIDE, HARMLESS, REFUSED, UNREAD, Imported, treatment
from colosseum.engines.megatron_lm import importer as megatron
from colosseum.engines.nemo1 import importer as nemo1
from colosseum.errors import RefusedInput

BASE = (
    "--num-layers 16 --hidden-size 64 --num-attention-heads 4 --seq-length 128 --micro-batch-size 1 --lr 1e-3 "
    "--global-batch-size 8 --train-iters 10 --tokenizer-type NullTokenizer --vocab-size 1023 --bf16 --min-lr 1e-5 "
    "--swiglu --fp8-format hybrid --first-last-layers-bf16 --use-precision-aware-optimizer --use-rope-scaling "
    "--group-query-attention --recompute-granularity full --pipeline-model-parallel-size 2 --eval-interval 5 "
    "--num-virtual-stages-per-pipeline-rank 2 --tensor-model-parallel-size 2 --save-interval 2 --tp-comm-overlap "
    "--defer-embedding-wgrad-compute --position-embedding-type rope --num-query-groups 2 --rope-scaling-factor 4"
)
"""Turns on what other options need, so that none of them is idle."""
IN_BASE = {word for word in BASE.split() if word.startswith("--")}


def _other(option: str) -> str:
    """The option with a value that is not its default."""
    row = megatron_options()[option]
    if row["values"] == "0":
        return option
    choices = [choice for choice in row["choices"].split(",") if choice and choice != row["default"]]
    if choices:
        return f"{option} {choices[-1]}"
    default = row["default"]
    if option == "--lr-warmup-fraction":
        return f"{option} 0.5"
    number = default.replace(".", "").replace("-", "").replace("e", "").isdigit() if default else True
    return f"{option} {'7' if number else 'other'}"


def _read(text: str) -> Imported | None:
    try:
        return megatron.read(text)
    except RefusedInput:
        return None


@pytest.fixture(scope="module")
def base() -> Imported:
    return megatron.read(BASE)


def test_the_base_of_these_tests_is_read_whole(base: Imported) -> None:
    assert [f for f in base.findings if f.kind != HARMLESS] == []


def test_every_option_of_megatron_lm_becomes_a_field_or_is_listed_with_its_reason(base: Imported) -> None:
    lost = []
    for option in megatron_options():
        if option in IN_BASE:
            continue
        found = _read(f"{BASE} {_other(option)}")
        if found is None or found.fields != base.fields or any(f.key == option for f in found.findings):
            continue
        lost.append(option)
    assert lost == []


def test_every_option_of_the_base_changes_what_is_read(base: Imported) -> None:
    """Left out, or with another value, each makes other fields or another finding."""
    words = BASE.split()
    lost = []
    for option in sorted(IN_BASE):
        at = words.index(option)
        end = next((i for i in range(at + 1, len(words)) if words[i].startswith("--")), len(words))
        found = _read(" ".join([*words[:at], *words[end:]]))
        if found is not None and found.fields == base.fields and found.findings == base.findings:
            lost.append(option)
    assert lost == []


def test_the_table_of_megatron_lm_has_a_reason_for_each_entry_and_no_option_twice() -> None:
    table = treatments("megatron_lm")
    assert all(row.reason for row in table.values())
    mapped = {*megatron.NUMBERS, *megatron.RATES, *megatron.WORDS, *megatron.SWITCHES, *megatron.NEGATIVES}
    assert mapped & table.keys() == set()
    known = set(megatron_options())
    assert [name for name in table if "*" not in name and name not in known] == []
    unused = [name for name in table if "*" in name and not any(treatment(o, table) is table[name] for o in known)]
    assert unused == []


def _flat(**values: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path, value in values.items():
        here = found
        *sections, last = path.split(".")
        for section in sections:
            here = here.setdefault(section, {})
        here[last] = value
    return found


def _changed(default: Any) -> Any:
    if isinstance(default, bool):
        return not default
    if isinstance(default, int | float):
        return default + 3
    return [9] if isinstance(default, list) else "other"


NEMO_BASE = {
    "trainer.num_nodes": 2,
    "trainer.devices": 8,
    "model.optim.name": "mcore_distributed_optim",
    "model.fp8": True,
    "model.scale_positional_embedding": True,
    "model.tokenizer.library": "sentencepiece",
    "model.tokenizer.model": "/t.model",
}


def _tasks_of(key: str) -> list[str]:
    """Tasks whose template has the key; all for a key that no template has."""
    found = [task for task, name in TEMPLATES.items() if any(row["key"] == key for row in rows(name))]
    return found or ["cpt"]


def _nemo(task: str, extra: Mapping[str, Any]) -> Imported:
    section = {"cpt": {}, "sft": {"trainer.sft.max_epochs": 1}, "dpo": {"trainer.dpo.max_epochs": 1}}[task]
    return nemo1.read(_flat(**{**NEMO_BASE, **section, **extra}))


def test_every_key_of_nemo_becomes_a_field_or_is_listed_with_its_reason() -> None:
    bases = {task: _nemo(task, {}) for task in TEMPLATES}
    lost = []
    for key in sorted(nemo1_keys()):
        for task in _tasks_of(key):
            default = NEMO_BASE.get(key, nemo1_defaults(task).get(key))
            found = _nemo(task, {key: _changed(default)})
            said = any(f.key == key or f.key.startswith(f"{key}.") for f in found.findings)
            said |= found.findings != bases[task].findings
            if not said and found.fields == bases[task].fields:
                lost.append((task, key))
    assert lost == []


def test_the_table_of_nemo_has_a_reason_for_each_entry() -> None:
    table = treatments("nemo1")
    assert all(row.reason for row in table.values())
    assert {row.kind for row in table.values()} == {REFUSED, DECIDE, HARMLESS}


@pytest.mark.parametrize("task", ["kto", "ppo", "rm", "spin", "reinforce"])
def test_other_tasks_of_nemo_aligner_are_refused(task: str) -> None:
    found = nemo1.read({"trainer": {task: {"max_epochs": 1}}, "model": {task: {"x": 1}}})
    assert task.upper() in found.of(REFUSED)[0].reason


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ("--num-experts 8", "--num-experts"),
        ("--multi-latent-attention", "--multi-latent-attention"),
        ("--rotary-interleaved", "--rotary-interleaved"),
        ("--position-embedding-type none", "--position-embedding-type"),
        ("--spec a b", "--spec"),
        ("--perform-rl-step", "--perform-rl-step"),
        ("--window-size 5,0", "--window-size"),
    ],
)
def test_other_architectures_are_refused(options: str, key: str) -> None:
    assert key in [finding.key for finding in megatron.read(f"{BASE} {options}").of(REFUSED)]


# --- defaults that Megatron-LM works out -------------------------------------------------------------------------


def test_swiglu_without_a_width_has_megatron_lms() -> None:
    """validate_args: int((4 * hidden * 2 / 3) / 64) * 64."""
    assert megatron.read("--hidden-size 4096 --swiglu").fields["model.ffn_hidden_size"] == 10880
    assert "model.ffn_hidden_size" not in megatron.read("--hidden-size 4096").fields  # 4 * hidden on both sides
    assert megatron.read("--hidden-size 4096 --swiglu --ffn-hidden-size 7").fields["model.ffn_hidden_size"] == 7


def test_the_global_batch_is_a_micro_batch_per_replica() -> None:
    text = "#SBATCH -N 4 --gpus-per-node=8\nsrun pretrain_gpt.py --num-layers 4 --micro-batch-size 2"
    assert megatron.read(f"{text} --tensor-model-parallel-size 4").fields["batch.gbs"] == 16
    assert "batch.gbs" not in megatron.read("--num-layers 4 --micro-batch-size 2").fields


def test_sequence_parallel_is_off_without_tensor_parallel() -> None:
    assert not megatron.read("--sequence-parallel").fields["parallelism.sequence_parallel"]
    found = megatron.read("--sequence-parallel --tensor-model-parallel-size 2").fields
    assert found["parallelism.sequence_parallel"]


def test_numbers_may_have_underscores() -> None:
    found = megatron.read("--train-samples 220_000_000 --global-batch-size 1_000 --lr 1_0e-4").fields
    assert (found["train.steps"], found["optimizer.lr"]) == (220_000, 1e-3)


@pytest.mark.parametrize(
    "text",
    [
        "--train-samples 100 --train-iters 10",
        "--train-samples 100 --lr-decay-iters 10",
        "--train-samples 100 --lr-warmup-iters 10",
        "--train-iters 100 --lr-decay-samples 10",
        "--train-iters 100 --lr-warmup-samples 10",
        "--train-iters 100 --lr-warmup-iters 3 --lr-warmup-fraction 0.1",
    ],
)
def test_steps_and_samples_mixed_are_refused_as_megatron_lm_does(text: str) -> None:
    with pytest.raises(RefusedInput, match="Megatron-LM refuses"):
        megatron.read(f"--global-batch-size 10 {text}")


def test_wsd_and_a_decay_of_its_own_length() -> None:
    text = "--train-iters 1000 --lr-decay-style WSD --lr-wsd-decay-iters 100 --lr-wsd-decay-style minus_sqrt"
    found = {key: value for key, value in megatron.read(text).fields.items() if key.startswith("optimizer.")}
    assert (found["optimizer.lr_schedule"], found["optimizer.wsd_decay_steps"]) == ("wsd", 100)
    assert found["optimizer.wsd_decay"] == "minus_sqrt" and "optimizer.decay_steps" not in found
    samples = "--train-samples 1000 --global-batch-size 10 --lr-decay-samples 800 --lr-warmup-fraction 0.1"
    found = megatron.read(samples).fields
    assert (found["optimizer.decay_steps"], found["optimizer.warmup_steps"]) == (80, 8)


@pytest.mark.parametrize(("each", "vpp"), [(1, 10), (2, 5), (5, 2), (10, 1)])
def test_layers_per_virtual_stage(each: int, vpp: int) -> None:
    text = "--num-layers 80 --pipeline-model-parallel-size 8 --num-layers-per-virtual-pipeline-stage"
    assert megatron.read(f"{text} {each}").fields["parallelism.vpp"] == vpp


@pytest.mark.parametrize("each", [3, 4, 7, 20])
def test_layers_per_virtual_stage_that_do_not_divide_are_refused_with_the_divisors(each: int) -> None:
    text = "--num-layers 80 --pipeline-model-parallel-size 8 --num-layers-per-virtual-pipeline-stage"
    with pytest.raises(RefusedInput) as refused:
        megatron.read(f"{text} {each}")
    assert refused.value.faults[0].nearest == (1, 2, 5, 10)


def test_a_value_that_is_not_read_is_no_default() -> None:
    found = megatron.read("pretrain_gpt.py --lr $LR --tensor-model-parallel-size $TP --weight-decay $WD --seed x")
    assert not {"optimizer.lr", "parallelism.tp", "optimizer.weight_decay", "train.seed"} & found.fields.keys()
    assert {f.key for f in found.of(UNREAD)} == {"--lr", "--tensor-model-parallel-size", "--weight-decay", "--seed"}


def test_sources_with_no_weights_are_no_equal_weights() -> None:
    assert megatron.read("--data-path /a /b").of(DECIDE)[0].key == "--data-path"
    found = megatron.read("--data-path 0.5 /a 0 /b 2 /c")
    assert [(e["path"], e["weight"]) for e in found.fields["data.blend"]] == [("/a", 0.5), ("/c", 2.0)]
    assert found.fields["data.split"] == "969,30,1"


def test_first_weights_are_carried_or_asked_for() -> None:
    found = megatron.read("--load /w --finetune --no-load-optim")
    assert found.fields["checkpoint.from"] == "/w" and found.fields["checkpoint.load"] == ["weights"]
    assert [f.key for f in megatron.read("--load /w --save /s").of(DECIDE)] == ["--load"]
    assert megatron.read("--load /s --save /s").of(DECIDE) == []


# --- GPUs and time -----------------------------------------------------------------------------------------------

RUN = "pretrain_gpt.py --num-layers 4"


@pytest.mark.parametrize(
    ("script", "gpus", "each"),
    [
        ("#SBATCH --nodes=4\n#SBATCH --ntasks-per-node=1\n#SBATCH --gpus-per-node=8\nsrun {run}", 32, 8),
        ("#SBATCH -N4 --gpus-per-node=h100:8\nsrun {run}", 32, 8),
        ("#SBATCH -N 4\n#SBATCH --gres=gpu:h100:8,nvme:1\nsrun {run}", 32, 8),
        ("#SBATCH -N 4-4\n#SBATCH --gres gpu:4\nsrun {run}", 16, 4),
        ("#SBATCH --nodes=2\nsrun torchrun --nproc_per_node=4 {run}", 8, 4),
        ("#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=8\nsrun torchrun --nproc-per-node 4 {run}", 8, 4),
        ("#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=8\nsrun {run}", 16, 8),
        ("#SBATCH -G 32 -N 4\nsrun {run}", 32, 8),
        ("#SBATCH --ntasks-per-node=4 --gpus-per-task=2 -N 3\nsrun {run}", 24, 8),
        ("#SBATCH -N 2\n#SBATCH -N 3\n#SBATCH --gpus-per-node=8\nsrun {run}", 24, 8),
        ("#SBATCH -N 2\n#SBATCH --gpus-per-node=8\nsrun -N 1 {run}", 8, 8),
        ("#SBATCH -N 2\n# a comment\n\n#SBATCH --gpus-per-node=8\necho\n#SBATCH -N 9\nsrun {run}", 16, 8),
        ("torchrun --nproc_per_node 8 {run}", 8, 8),
        ("torchrun --nnodes 3 --nproc_per_node 8 {run}", 24, 8),
        ("#SBATCH -N 2-4\n#SBATCH --gpus-per-node=8\nsrun {run}", None, 8),
        ("#SBATCH --gpus-per-node=8\nsrun {run}", None, 8),
    ],
)
def test_gpus_of_a_job_script(script: str, gpus: int | None, each: int | None) -> None:
    found = megatron.read("#!/bin/bash\n" + script.format(run=RUN))
    assert (found.fields.get("resources.gpus"), found.fields.get("resources.gpus_per_node")) == (gpus, each)


def test_directives_below_the_first_command_are_said_to_be_dead() -> None:
    found = megatron.read(f"#!/bin/bash\n#SBATCH -N 2 --gpus-per-node=8\nset -e\n#SBATCH --time=1:00:00\nsrun {RUN}")
    assert "resources.time_limit" not in found.fields
    assert [f.key for f in found.of(HARMLESS)] == ["#SBATCH --time=1:00:00"]


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("1-00:00:00", "24h"),
        ("90", "1h30m"),
        ("02:00:00", "2h"),
        ("45:30", "45m30s"),
        ("2-12", "60h"),
        ("1-0:30", "24h30m"),
    ],
)
def test_time_limits_of_slurm(text: str, limit: str) -> None:
    assert megatron.read(f"#SBATCH --time={text}\nsrun {RUN}").fields["resources.time_limit"] == limit
