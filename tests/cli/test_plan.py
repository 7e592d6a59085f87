"""``colosseum plan``: what is printed, the documents, near misses, scaling and sweeps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Cli

SIZE_16K = ("plan", "colosseum-355b/cpt-16k-expand", "--cluster", "dgx-h100")


def test_the_case_studys_layout_and_its_parts(cli: Cli) -> None:
    """2,880 H100 are DP 9 with TP8 PP10 CP4; step parts add up to the step, a stage's bytes to its total."""
    done = cli(*SIZE_16K, "--json")
    assert done.code == 0
    plan = json.loads(done.out)
    assert plan["schema"] == "colosseum.plan/1"
    assert plan["fits"] is True
    assert (plan["layout"]["dp"], plan["layout"]["microbatches"]) == (9, 140)
    assert sum(plan["step_time_parts_s"].values()) == pytest.approx(plan["step_time_s"])
    low, high = plan["step_time_range_s"]
    assert low < plan["step_time_s"] < high
    for stage in plan["memory"]["stages"]:
        total = stage.pop("total_bytes")
        assert sum(stage.values()) == pytest.approx(total)
    assert plan["mfu"]["causal"] < plan["mfu"]["full"] < 1
    assert plan["mfu_peak_tflops"] == 989
    assert plan["tokens_per_s_per_gpu"] == pytest.approx(1260 * 16384 / plan["step_time_s"] / 2880)
    assert plan["gpu_hours"] == pytest.approx(plan["days"] * 24 * 2880)
    assert len(plan["rejected"]) == 5


@pytest.mark.parametrize("width", [80, 160])
def test_the_text_stays_within_the_terminal(cli: Cli, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    for words in (SIZE_16K, (*SIZE_16K, "--gpus", "320,640,2880,16384"), ("plan", "debug/cpt-4k-bf16")):
        done = cli(*words)
        assert done.code == 0
        assert max(len(line.rstrip()) for line in done.out.splitlines()) <= width
        assert "…" not in done.out
    for text in ("head-room", "pipeline bubble", "causal attention", "GPU hours"):
        assert text in cli(*SIZE_16K).out


def test_near_misses_of_an_illegal_count(cli: Cli) -> None:
    """3,072 GPUs are 9.6 replicas of TP8 PP10 CP4; 384 nodes leave 24 idle when 360 are used."""
    done = cli(*SIZE_16K, "--gpus", "3072")
    assert done.code == 2
    assert "dp would be 9.6" in done.said
    assert "resources.gpus=2880" in done.out
    assert "24 of them idle" in done.out
    refusal = json.loads(cli(*SIZE_16K, "--gpus", "3072", "--json").out)
    assert refusal["schema"] == "colosseum.refusal/1"
    assert refusal["faults"][0]["path"] == "resources.gpus"
    assert ["resources.gpus=2880"] in [way["overrides"] for way in refusal["near"]]
    paces = [way["tokens_per_day"] for way in refusal["near"] if way["fits"]]
    assert paces == sorted(paces, reverse=True)


def test_a_job_too_small_is_answered_with_its_figures(cli: Cli) -> None:
    """340B at DP 1 holds 18 bytes of state a parameter: more than 64 GPUs have."""
    small = ("plan", "colosseum-355b/cpt-4k-bf16", "--gpus", "64", "--cluster", "dgx-h100")
    done = cli(*small, "--json")
    assert done.code == 0
    plan = json.loads(done.out)
    assert plan["fits"] is False
    assert plan["step_time_s"] > 0
    assert plan["memory"]["device_bytes"] > plan["memory"]["usable_bytes"]
    assert any("smallest job" in line for line in plan["advice"])
    assert "does NOT fit" in cli(*small).out


def test_a_sweep_answers_every_line(cli: Cli, tmp_path: Path) -> None:
    lines = [
        json.dumps({"id": 1, "overrides": ["model.num_layers=16"]}),
        "",
        "no json",
        json.dumps({"id": "b", "overrides": ["model.num_layers=x"]}),
        json.dumps({"id": [2], "overrides": ["parallelism.tp=8", "batch.mbs=2"]}),
        json.dumps({"id": 3, "overrides": "model.num_layers=16"}),
    ]
    (tmp_path / "sweep.jsonl").write_text("\n".join(lines))
    done = cli("plan", "generic", "--batch", "sweep.jsonl", "train.tokens=1000000000")
    assert done.code == 0
    answers = [json.loads(line) for line in done.out.splitlines()]
    assert [a["id"] for a in answers] == [1, None, "b", [2], None]
    kinds = ["plan", "refusal", "refusal", "plan", "refusal"]
    assert [a["schema"] for a in answers] == [f"colosseum.{k}/1" for k in kinds]
    assert answers[3]["layout"]["mbs"] == 2
    alone = json.loads(cli("plan", "generic", "model.num_layers=16", "train.tokens=1000000000", "--json").out)
    answers[0].pop("id")
    assert answers[0] == alone


def test_scaling_keeps_or_grows_the_batch(cli: Cli) -> None:
    points = json.loads(cli("plan", "generic", "--free", "--gpus", "8,16,24", "--json").out)["points"]
    assert [(p["gpus"], p["gbs"], p["kind"]) for p in points] == [
        (8, 128, "strong"),
        (16, 128, "strong"),
        (16, 256, "weak"),
        (24, 128, "strong"),
        (24, 384, "weak"),
    ]
    strong, weak = points[1]["plan"], points[2]["plan"]
    assert strong["step_time_s"] < weak["step_time_s"] < 1.2 * points[0]["plan"]["step_time_s"]


@pytest.mark.parametrize("words", [("--gpus", "0"), ("--gpus", "8,x"), ("--gpus", "8", "--batch", "f"), ("more",)])
def test_what_is_refused(cli: Cli, words: tuple[str, ...]) -> None:
    done = cli("plan", "generic", *words)
    assert done.code == 2
    assert done.err.startswith("error: ")


def test_a_calibration_of_ones_own(cli: Cli, tmp_path: Path) -> None:
    from colosseum.planning.constants import shipped_calibration

    shipped = shipped_calibration("h100-sxm")
    assert shipped is not None
    own = shipped.with_constants(site_factor=1.5).as_data() | {"name": "site"}
    (tmp_path / "own.yaml").write_text(json.dumps(own))
    plan = json.loads(cli("plan", "generic", "--calibration", "own.yaml", "--json").out)
    base = json.loads(cli("plan", "generic", "--json").out)
    assert plan["step_time_s"] == pytest.approx(1.5 * base["step_time_s"])
    assert plan["calibration"]["name"] == "site"
    del own["constants"]["tp_exposed"]
    (tmp_path / "own.yaml").write_text(json.dumps(own))
    assert "tp_exposed" in cli("plan", "generic", "--calibration", "own.yaml").said


def test_a_plan_says_its_peak_its_steps_and_what_it_misses(cli: Cli) -> None:
    """FP32 counts against the FP32 peak; 1e12 tokens are 1,907,348 whole steps of 128 x 4096; disk speed is known."""
    out = cli("plan", "generic", "precision=fp32", "model.num_layers=4", "--cluster", "dgx-h100", "--top", "0").out
    assert "of 67 dense FP32" in out
    assert "the FP32 dense peak" in " ".join(out.split())
    assert "1,907,348 steps" in out
    assert "set cluster.node_mtbf_hours" in out
    assert "write_bytes_per_s" not in out


def test_a_refused_value_that_is_no_layout_has_no_near_misses(cli: Cli) -> None:
    """The recipe without the refused value is legal: it is no near miss of itself."""
    done = cli("plan", "generic", "resources.gpus=${oc.env:HOME}", "--json")
    assert done.code == 2
    assert "near" not in json.loads(done.out)


def test_a_size_beyond_all_machines_is_refused_at_once(cli: Cli) -> None:
    """The search lists divisors and chunks; 10**15 of either would take it days."""
    for word in ("model.num_layers=100000000", "resources.gpus=1000000000000000"):
        done = cli("plan", "generic", word, "--json")
        assert done.code == 2
        assert "must be at most" in json.loads(done.out)["faults"][0]["rule"]
