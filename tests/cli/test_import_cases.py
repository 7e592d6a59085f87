"""Files after the shape of public ones, through the command: right values, or the right refusal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Cli

CASES = Path(__file__).parent / "import_cases"


def fields(cli: Cli, name: str, *words: str) -> dict[str, Any]:
    done = cli(
        "import-config", "nemo1" if name.endswith("yaml") else "megatron-args", str(CASES / name), "--json", *words
    )
    assert done.code == 0, done.said
    return dict(json.loads(done.out)["recipe"])


def refused(cli: Cli, name: str, tmp_path: Path, *words: str) -> dict[str, str]:
    """Rules by option; no recipe is written."""
    kind = "nemo1" if name.endswith("yaml") else "megatron-args"
    done = cli("import-config", kind, str(CASES / name), "--out", "mine.yaml", *words)
    assert done.code == 2 and not (tmp_path / "mine.yaml").exists()
    done = cli("import-config", kind, str(CASES / name), "--json", *words)
    return {fault["path"]: fault["rule"] for fault in json.loads(done.out)["faults"]}


def test_elements_that_hold_an_option_and_its_value(cli: Cli) -> None:
    found = fields(cli, "array-words.sh")
    precision = found["precision"]
    assert (precision["fp8"], precision["fp8_format"], precision["fp8_amax_history_len"]) == ("delayed", "hybrid", 512)
    assert precision["fp8_amax_compute_algo"] == "max" and precision["fp8_params"] and precision["dtype"] == "bf16"
    assert found["optimizer"]["distributed"]
    assert found["overlap"]["grad_reduce"] and found["overlap"]["param_gather"]


@pytest.mark.parametrize("quotes", [True, False])
def test_quoted_arrays(cli: Cli, tmp_path: Path, quotes: bool) -> None:
    text = (CASES / "quoted-arrays.sh").read_text()
    file = tmp_path / "job.sh"
    file.write_text(text if quotes else text.replace('"', ""))
    found = fields(cli, str(file))
    model, batch = found["model"], found["batch"]
    assert (model["num_layers"], model["hidden_size"], model["num_attention_heads"]) == (16, 2048, 16)
    assert (found["precision"]["dtype"], batch["gbs"], found["train"]["steps"]) == ("bf16", 64, 1000)
    assert found["optimizer"]["lr"] == 2e-4
    blend = [(entry["path"], entry["weight"]) for entry in found["data"]["blend"]]
    assert blend == [("/shared/web_text_document", 0.3), ("/shared/code_text_document", 0.7)]


def test_fp16_and_a_decay_of_another_length(cli: Cli, tmp_path: Path) -> None:
    assert list(refused(cli, "half.sh", tmp_path)) == ["--fp16", "--accept"]
    found = fields(cli, "half.sh", "--accept")
    optimizer = found["optimizer"]
    assert (optimizer["warmup_steps"], optimizer["decay_steps"]) == (32, 3200)  # 0.01 * 3200
    assert "dtype" not in found["precision"]


def test_a_job_script_of_32_gpus(cli: Cli) -> None:
    found = fields(cli, "torchrun.sbatch")["resources"]
    assert found == {"gpus": 32, "gpus_per_node": 8, "time_limit": "24h"}


def test_experts_are_refused(cli: Cli, tmp_path: Path) -> None:
    found = refused(cli, "experts.sbatch", tmp_path, "--accept")
    assert "experts" in found["--num-experts"]


def test_what_only_a_run_knows_is_left_open(cli: Cli, tmp_path: Path) -> None:
    opened = refused(cli, "alps.sbatch", tmp_path)
    assert {"--tensor-model-parallel-size", "--data-path"} <= opened.keys()
    found = fields(cli, "alps.sbatch", "--accept")
    assert found["resources"] == {"gpus": 128, "gpus_per_node": 4, "time_limit": "2h"}
    assert (found["parallelism"]["pp"], found["parallelism"]["vpp"]) == (8, 2)
    assert found["model"]["rope_scaling"] == 8 and found["stability"]["mode"] == "off"
    assert "tp" not in found["parallelism"] and "blend" not in found["data"]


def test_nemos_values_that_a_recipe_lacks(cli: Cli, tmp_path: Path) -> None:
    assert {"model.activation"} <= refused(cli, "values.yaml", tmp_path, "--accept").keys()
    file = tmp_path / "values.yaml"
    file.write_text((CASES / "values.yaml").read_text().replace("activation: reglu", "activation: gelu"))
    undecided = refused(cli, str(file), tmp_path)
    assert {"trainer.precision", "model.optim.name", "model.optim.sched.name"} <= undecided.keys()


def test_parallel_attention_is_refused(cli: Cli, tmp_path: Path) -> None:
    found = refused(cli, "parallel.yaml", tmp_path, "--accept")
    assert list(found) == ["model.mcore_customization_config.parallel_attention"]
    file = tmp_path / "dense.yaml"
    lines = (CASES / "parallel.yaml").read_text().splitlines()
    file.write_text("\n".join(line for line in lines if "customization" not in line))
    assert fields(cli, str(file))["model"]["rope_base"] == 10000


def test_kto_is_refused(cli: Cli, tmp_path: Path) -> None:
    found = refused(cli, "kto.yaml", tmp_path, "--accept")
    assert "KTO" in found["trainer.kto.max_epochs"]


def test_a_decay_that_ends_before_the_run(cli: Cli) -> None:
    found = fields(cli, "hold.yaml")
    assert found["optimizer"]["decay_steps"] == 5000
    assert found["precision"]["grad_reduce_dtype"] == "fp32"
    assert found["resources"]["time_limit"] == "24h"
