"""``align sft`` and ``align dpo`` of the 355B family on a real Slurm: taken as they ship; no image is one sentence."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from colosseum.cli.main import main
from colosseum.data.indexed import write_dataset
from colosseum.launch.runs import submit
from colosseum.rundir import RunDir
from tests.slurm.conftest import DevSlurm
from tests.slurm.runs import log, until_ended

COLOSSEUM = Path(sys.executable).parent / "colosseum"
IMPORT = "enroot import -o {} docker://nvcr.io#nvidia/nemo:25.02"
SMALL = Path(__file__).parents[1] / "data/small.model"
ALIGNER = ("engine=nemo1", "tokenizer=nemotron-256k", "resources.vboost=false")
ON_FOUR_NODES = (
    "batch.gbs=4",
    "model.num_layers=4",
    "parallelism.pp=4",
    "resources.gpus=32",
)


@pytest.fixture(scope="module")
def house(slurm: DevSlurm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the inputs' names, and a cluster file whose image nobody has imported."""
    root = tmp_path_factory.mktemp("house")
    for name, rows in (("sft", 1_000_000), ("dpo", 100_000)):  # as many as the recipes say
        (root / "data" / name).mkdir(parents=True)
        for part in ("train", "validation"):
            (root / "data" / name / f"{part}.jsonl").write_bytes(b"{}\n" * rows)
    (root / "data/m.nemo").mkdir()
    (root / "data/m.nemo/model_config.yaml").write_text("{}")
    (root / "data/tokenizer").mkdir()
    shutil.copy(SMALL, root / "data/tokenizer/nemotron_2_256k.model")
    end = {"id": 0, "content": "</s>", "special": True}
    words = {"added_tokens": [end], "model": {"type": "BPE", "vocab": {"</s>": 0}, "merges": []}}
    (root / "data/tokenizer/tokenizer.json").write_text(json.dumps(words))
    cluster = {
        "name": "site",
        "scheduler": "slurm",
        "nodes": 360,
        "gpus_per_node": 8,
        "paths": {"data": str(root / "data"), "runs": str(root / "runs")},
        "slurm": {"partition": "main", "gpu_request": "gpus-per-node", "exclusive": False},
    }
    folder = root / "config/colosseum/cluster"
    folder.mkdir(parents=True)
    (folder / "bare.yaml").write_text(yaml.safe_dump(cluster))
    image = {"image": str(root / "unseen" / 'my "nemo".sqsh')}
    (folder / "site.yaml").write_text(yaml.safe_dump({**cluster, "container": image}))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in slurm.env.items():
            patch.setenv(name, value)
        patch.setenv("XDG_CONFIG_HOME", str(root / "config"))
        yield root


@pytest.fixture(autouse=True)
def _large_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command asks for room for all checkpoints, 4.5 TiB each; no disk at hand has it."""
    monkeypatch.setattr(submit, "_free_bytes", lambda folder: 1 << 60)


Align = Callable[..., RunDir]


@pytest.fixture
def align(house: Path, capfd: pytest.CaptureFixture[str]) -> Align:
    """``colosseum align KIND --cluster CLUSTER``; the run it submitted."""

    def command(kind: str, cluster: str, *words: str) -> RunDir:
        start = ("align", kind, "--cluster", cluster, f"checkpoint.from={house}/data/m.nemo", *ALIGNER)
        code = main([*start, *words])
        out, err = capfd.readouterr()
        assert code == 0, err
        return RunDir(Path(out.partition("\nrun ")[2].partition("\n")[0]))

    return command


@pytest.mark.parametrize("kind", ["sft", "dpo"])
def test_slurm_takes_the_355b_alignment_on_350_nodes(align: Align, slurm: DevSlurm, kind: str) -> None:
    run = align(kind, "site", "cluster.slurm.partition=full", "cluster.slurm.extra=[--hold]")
    job = json.loads(run.submissions.read_text())["job_id"]
    assert "NumNodes=350" in slurm.run("scontrol", "-o", "show", "job", job).stdout
    slurm.run("scancel", job)


@pytest.mark.parametrize("kind", ["sft", "dpo"])
@pytest.mark.parametrize("cluster", ["site", "bare"])
def test_slurm_a_job_without_its_image_ends_with_one_sentence(
    house: Path, align: Align, kind: str, cluster: str
) -> None:
    run = align(kind, cluster, *ON_FOUR_NODES)
    job = until_ended(run, 60)
    outcome = json.loads(run.attempt(0).outcome.read_text())
    assert (outcome["kind"], outcome["retry"], run.attempt_numbers()) == ("config_error", False, [0])
    if cluster == "site":
        image = house / "unseen" / 'my "nemo".sqsh'
        assert f"container image {image} is not there" in outcome["reason"]
        assert IMPORT.format(image) in outcome["reason"]
    else:
        assert f"examples/nlp/gpt/train_gpt_{kind}.py does not exist" in outcome["reason"]
        assert IMPORT.format("nemo.sqsh") in outcome["reason"]
    assert job.word == "failed"
    assert "not requeued" in log(run) or "stopped:" in log(run)
    shown = subprocess.run(
        [COLOSSEUM, "jobs", "status", run.root.name, "--runs", run.root.parent, "--json"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert outcome["reason"] in json.dumps(json.loads(shown.stdout), ensure_ascii=False).replace('\\"', '"')


def test_slurm_takes_the_whole_355b_chain_through_nemo1(
    house: Path, slurm: DevSlurm, capfd: pytest.CaptureFixture[str]
) -> None:
    for folder in ("cpt", "checkpoints"):
        (house / "data" / folder).mkdir(exist_ok=True)
    for source in ("multilingual", "english", "code", "domain"):
        with write_dataset(house / "data/cpt" / source, 256_000, force=True) as writer:
            for _ in range(200):  # of these, the validation's 1% fills a sequence of 16K
                writer.add_document([7] * 20_000)
    shutil.copytree(house / "data/m.nemo", house / "data/checkpoints/nemotron-4-340b-base")
    # On hold: Slurm 22.05 takes no more jobs for nodes that it has asked to wake, and ghosts never do.
    words = ("engine=nemo1", "cluster.slurm.partition=full", "cluster.slurm.extra=[--hold]", "resources.vboost=false")
    assert main(["campaign", "run", "colosseum-355b", *words, "--cluster", "site"]) == 0
    out, err = capfd.readouterr()
    assert "submitted: bf16-4k, expand-16k, fp8, sft, dpo" in out
    assert "expand-16k: has 100 layers and bf16-4k has 96" in " ".join(err.split())
    stages = json.loads((house / "runs/campaign-colosseum-355b/campaign.json").read_text())["stages"]
    jobs = [stage["job"] for stage in stages]
    shown = [slurm.run("scontrol", "-o", "show", "job", job).stdout for job in jobs]
    assert [text.split("NumNodes=")[1].split("-")[0].split()[0] for text in shown] == ["360"] * 3 + ["350"] * 2
    for stage, text in zip(stages[1:], shown[1:], strict=True):
        assert f"afterok:{stage['gate_job']}" in text
    slurm.run("scancel", *jobs, *(stage["gate_job"] for stage in stages[1:]))
