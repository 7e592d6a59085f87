"""Import and export killed or without room: the source is untouched, nothing half done has the name OUT, and the next
call continues with the files that are missing."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from colosseum.checkpoint.folders import check_sums, read_metadata
from colosseum.checkpoint.hf.exporting import export_hf
from colosseum.checkpoint.hf.importing import import_hf
from colosseum.checkpoint.partial import folder_continued
from colosseum.errors import RefusedInput
from tests.checkpoint.hf import models

WORKER = """
import sys
from pathlib import Path
from tests.checkpoint.test_interrupted import run
import torch.distributed.checkpoint
print("ready", flush=True)
run(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
"""
COMMANDS = ("import", "export")
FILE_BYTES = 1 << 22
"""Several files."""
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


def run(command: str, source: Path, out: Path, **more: Any) -> None:
    if command == "import":
        import_hf(source, out, file_bytes=FILE_BYTES, **more)
    else:
        export_hf(source, out, shard_bytes=FILE_BYTES, **more)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def begun(command: str, source: Path, out: Path) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-c", WORKER, command, str(source), str(out)]
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
            assert left in ([], [f".out-{number}.partial"])
            if number % 4 == 0:  # each takes an import of torch
                with begun(command, source, out) as process:
                    assert process.wait() == 0
                assert weights(out) == weights(tmp_path / "whole")
    assert hits > MOMENTS // 2, "it was at work"
    assert contents(source) == before, "the source is untouched"
    with begun(command, source, tmp_path / "out") as process:
        assert process.wait() == 0
    assert weights(tmp_path / "whole") == weights(tmp_path / "out")


def stop(done: int, total: int) -> None:
    """Progress that is interrupted in the second half."""
    if done > total / 2:
        raise KeyboardInterrupt


@pytest.mark.parametrize("command", COMMANDS)
def test_the_next_call_continues_with_the_files_that_are_missing(
    sources: dict[str, Path], tmp_path: Path, command: str
) -> None:
    source, out, partial = sources[command], tmp_path / "out", tmp_path / ".out.partial"
    with pytest.raises(KeyboardInterrupt):
        run(command, source, out, progress=stop)
    assert not out.exists()
    kept = {name: inode(partial / "files" / name) for name in noted(partial)}
    assert len(kept) >= 3
    cut = max(kept)
    os.truncate(partial / "files" / cut, 100)  # a file that lost bytes since is written again
    run(command, source, out)
    run(command, source, tmp_path / "whole")
    assert weights(out) == weights(tmp_path / "whole")
    assert not partial.exists()
    assert all(inode(out / name) == number for name, number in kept.items() if name != cut)
    if command == "import":
        check_sums(out, read_metadata(out))


@pytest.mark.parametrize("command", COMMANDS)
def test_files_of_other_settings_are_not_continued(sources: dict[str, Path], tmp_path: Path, command: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(command, sources[command], tmp_path / "out", progress=stop)
    run(command, sources[command], tmp_path / "out", dtype="bf16")
    run(command, sources[command], tmp_path / "whole", dtype="bf16")
    assert weights(tmp_path / "out") == weights(tmp_path / "whole")


def test_two_commands_do_not_write_one_folder(sources: dict[str, Path], tmp_path: Path) -> None:
    with folder_continued(tmp_path / "out", "key"), pytest.raises(RefusedInput, match="another process is writing"):
        run("import", sources["import"], tmp_path / "out")
    assert (tmp_path / "out").is_dir()


def noted(partial: Path) -> list[str]:
    return [path.name.removesuffix(".json") for path in (partial / "notes").iterdir()]


def inode(path: Path) -> int:
    return path.stat().st_ino


def weights(folder: Path) -> dict[str, bytes]:
    return {name: data for name, data in contents(folder).items() if name.endswith((".safetensors", ".distcp"))}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_full_disk_leaves_nothing(sources: dict[str, Path], tmp_path: Path, command: str) -> None:
    """A file may grow to 1 MB, then writing fails; in this process, so that no other has to import torch."""
    before, limits = contents(sources[command]), resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            run(command, sources[command], tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    assert list(tmp_path.iterdir()) == []
    assert contents(sources[command]) == before
    run(command, sources[command], tmp_path / "out")
