"""Import and export killed or without room: the source is untouched, nothing half done has the name OUT."""

from __future__ import annotations

import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from colosseum.checkpoint.folders import check_sums, read_metadata
from colosseum.checkpoint.hf.exporting import export_hf
from colosseum.checkpoint.hf.importing import import_hf
from tests.checkpoint.hf import models

WORKER = """
import sys
from pathlib import Path
from colosseum.checkpoint.hf.exporting import export_hf
from colosseum.checkpoint.hf.importing import import_hf
import torch.distributed.checkpoint
print("ready", flush=True)
getattr(sys.modules["colosseum.checkpoint.hf." + sys.argv[1]], sys.argv[2])(Path(sys.argv[3]), Path(sys.argv[4]))
"""
COMMANDS = {"import": ("importing", "import_hf"), "export": ("exporting", "export_hf")}
MOMENTS = 20


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What each command reads: some 100 MB."""
    root = tmp_path_factory.mktemp("large")
    sizes = {"hidden_size": 768, "intermediate_size": 3072, "head_dim": 192, "num_hidden_layers": 3}
    config = {**models.CONFIGS["llama3"], **sizes}
    models.write(root / "in", "llama3", shards=1, change=sizes)
    rng = np.random.default_rng(0)
    tensors = {name: rng.random(shape, np.float32) for name, shape in models.shapes(config).items()}
    save_file(tensors, root / "in" / "model.safetensors", metadata={"format": "pt"})
    import_hf(root / "in", root / "ckpt")
    return {"import": root / "in", "export": root / "ckpt"}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def begun(command: str, source: Path, out: Path) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-c", WORKER, *COMMANDS[command], str(source), str(out)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


@pytest.mark.long
@pytest.mark.parametrize("command", COMMANDS)
def test_killed_at_twenty_moments(sources: dict[str, Path], tmp_path: Path, command: str) -> None:
    source, before = sources[command], contents(sources[command])
    start = time.monotonic()
    with begun(command, source, tmp_path / "whole") as process:
        assert process.wait() == 0
    takes, rng, hits = time.monotonic() - start, random.Random(13), 0
    for number in range(MOMENTS):
        out = tmp_path / f"out-{number}"
        with begun(command, source, out) as process:
            time.sleep(rng.uniform(0, takes / 4))
            process.send_signal(signal.SIGKILL)
            hits += process.wait() == -signal.SIGKILL
        if out.exists():
            assert contents(out).keys() == contents(tmp_path / "whole").keys()
            if command == "import":
                check_sums(out, read_metadata(out))
        else:
            left = [path.name for path in tmp_path.iterdir() if path.name.startswith(f".out-{number}.")]
            assert len(left) <= 1
    assert hits > MOMENTS // 2, "it was at work"
    assert contents(source) == before, "the source is untouched"
    with begun(command, source, tmp_path / "out") as process:
        assert process.wait() == 0
    whole, again = contents(tmp_path / "whole"), contents(tmp_path / "out")
    assert whole.keys() == again.keys()
    assert all(again[name] == data for name, data in whole.items() if name.endswith((".safetensors", ".distcp")))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_full_disk_leaves_nothing(sources: dict[str, Path], tmp_path: Path, command: str) -> None:
    """A file may grow to 1 MB, then writing fails; in this process, so that no other has to import torch."""
    run = import_hf if command == "import" else export_hf
    before, limits = contents(sources[command]), resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            run(sources[command], tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    assert list(tmp_path.iterdir()) == []
    assert contents(sources[command]) == before
    run(sources[command], tmp_path / "out")
