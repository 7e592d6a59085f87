"""The ledger of a lineage: two runs of real bundles, a restart, a corpus with a manifest, and what an auditor asks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from colosseum.bundle import write_bundle
from colosseum.cli.main import main
from colosseum.data.ledger import by_tag, lineage_use
from colosseum.errors import RefusedInput
from colosseum.launch.bundles.compile import Lineage, compile_bundle
from colosseum.planning.resolve import apply_layout, resolve
from colosseum.recipe.load import load
from colosseum.rundir import RunDir, append_line
from tests.data.tokenization.corpora import MANY, jsonl, tokenized, tokenizer_json

pytest.importorskip("tokenizers")
STEP_TOKENS = 16 * 256
"""Of debug/cpt-4k-bf16: global batch size times sequence length."""


def _run(runs: Path, name: str, blend: str, *, lineage: Lineage | None = None) -> RunDir:
    words = [f"name={name}", "train.steps=20", f"data.blend={blend}", "data.split='1,0,0'", "train.val_steps=0"]
    recipe = load("debug/cpt-4k-bf16", words, cluster="local").recipe
    plan = resolve(recipe)
    compiled = compile_bundle(apply_layout(recipe, plan.layout), plan, lineage=lineage)
    write_bundle(RunDir(runs / name).bundle, compiled.files, compiled.manifest)
    return RunDir(runs / name)


def _entry(run: RunDir, step: int, attempt: int, **counts: int) -> None:
    row = {"step": step, "attempt": attempt, "consumed_samples": step * 16}
    append_line(run.ledger, {**row, "tokens_by_source": {str(run.root.parent / k): n for k, n in counts.items()}})


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run a: half english, half code, restarted at step 5. Run b from its step 10: english three to one code."""
    folder = tmp_path_factory.mktemp("runs")
    tokenizer = tokenizer_json(folder)
    from colosseum.data.tokenization.corpus import Tags

    source = jsonl(folder / "english.jsonl", MANY)
    tokenized([source], folder / "english", tokenizer, tags=Tags(licence="CC-BY-4.0", language="en"))
    tokenized([jsonl(folder / "code.jsonl", MANY)], folder / "code", tokenizer)
    (folder / "code.manifest.json").unlink()
    blend = "[{{path: {0}/english, weight: {1}, tags: [en]}}, {{path: {0}/code, weight: 1, tags: [code]}}]"
    a = _run(folder, "a", blend.format(folder, 1))
    half = STEP_TOKENS // 2
    _entry(a, 5, 0, english=5 * half, code=5 * half)
    _entry(a, 10, 0, english=999, code=999)  # before a restart at step 5
    _entry(a, 10, 1, english=10 * half, code=10 * half)
    _entry(a, 20, 1, english=20 * half, code=20 * half)
    for attempt in (0, 1):
        a.attempt(attempt).root.mkdir(parents=True)
    b = _run(folder, "b", blend.format(folder, 3), lineage=Lineage(run="a", step=10))
    _entry(b, 20, 0, english=10 * half + 15 * STEP_TOKENS, code=10 * half + 5 * STEP_TOKENS)
    b.attempt(0).root.mkdir(parents=True)
    return folder


def test_each_run_has_what_it_consumed_itself(runs: Path) -> None:
    first, second = lineage_use(RunDir(runs / "b"))
    assert (first.run.root.name, first.step, first.attempts) == ("a", 10, 2)
    assert [s.consumed for s in first.sources] == [5 * STEP_TOKENS, 5 * STEP_TOKENS]
    assert [s.planned for s in first.sources] == [10 * STEP_TOKENS, 10 * STEP_TOKENS]
    assert [s.consumed for s in second.sources] == [15 * STEP_TOKENS, 5 * STEP_TOKENS]
    assert [s.planned for s in second.sources] == [15 * STEP_TOKENS, 5 * STEP_TOKENS]
    assert by_tag([first, second]) == {"en": 20 * STEP_TOKENS, "code": 10 * STEP_TOKENS}
    english = second.sources[0]
    assert english.available is not None
    assert english.epochs == 15 * STEP_TOKENS / english.available


def test_a_checkpoint_leads_back_to_shards_licences_and_hashes(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "ledger", "b@20", "--runs", str(runs), "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    english, code = document["runs"][1]["sources"]
    manifest = json.loads((runs / "english.manifest.json").read_text())
    assert (english["licence"], english["state"]) == ("CC-BY-4.0", "same")
    assert english["files"] == manifest["files"]
    assert english["shards"][0]["sha256"] == manifest["sources"][0]["sha256"]
    assert english["tokenizer"]["sha256"] == manifest["tokenizer"]["sha256"]
    assert (code["licence"], code["state"]) == (None, "no manifest")
    assert document["consumed_tokens"] == 30 * STEP_TOKENS
    assert main(["data", "ledger", "b", "--runs", str(runs)]) == 0
    assert "CC-BY-4.0" in capsys.readouterr().out


def test_a_corpus_that_was_made_again_is_named(runs: Path) -> None:
    manifest = runs / "english.manifest.json"
    before = manifest.read_text()
    manifest.write_text(before.replace('"bytes": ', '"bytes": 1'))
    try:
        assert lineage_use(RunDir(runs / "a"))[0].sources[0].state == "changed"
    finally:
        manifest.write_text(before)


def test_what_is_refused(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RefusedInput, match="has no entry for step 7"):
        lineage_use(RunDir(runs / "a"), 7)
    for name, said in (("none", "no such run"), ("a@x", "after @ stands the step")):
        assert main(["data", "ledger", name, "--runs", str(runs)]) == 2
        assert said in capsys.readouterr().err
