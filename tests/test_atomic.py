"""A file is whole or not there."""

from __future__ import annotations

import mmap
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from colosseum.atomic import replacing, write_whole


def test_a_block_that_fails_leaves_the_old_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_whole(path, b"old")
    with pytest.raises(KeyError), replacing(path) as temporary:
        temporary.write_bytes(b"half")
        raise KeyError
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_who_has_the_old_file_mapped_keeps_it(tmp_path: Path) -> None:
    path = tmp_path / "order.npy"
    write_whole(path, b"old")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        with replacing(path) as temporary:
            assert temporary.suffix == ".npy"  # some writers add it to a name without
            temporary.write_bytes(b"newer")
        assert (mapped[:], path.read_bytes()) == (b"old", b"newer")


def test_killed_while_it_writes(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_whole(path, b"old")
    program = (
        "import os, signal, sys; from pathlib import Path; from colosseum.atomic import replacing\n"
        "with replacing(Path(sys.argv[1])) as t: t.write_bytes(b'half'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)])
    assert done.returncode == -signal.SIGKILL
    assert path.read_bytes() == b"old"
    assert [p for p in tmp_path.iterdir() if not p.name.startswith(".")] == [path]
