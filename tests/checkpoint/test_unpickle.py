"""A pickle that calls what is not on the list is refused, and nothing of it has run."""

from __future__ import annotations

import io
import pickle
import tarfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from colosseum.checkpoint.unpickle import _REPLACED, DEFAULT, FOREIGN, PLAIN, SCALING, load_pickle, load_torch
from colosseum.errors import RefusedInput
from tests.checkpoint.payload import Touch


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_plain_data_and_arrays_come_back(protocol: int) -> None:
    data = {"a": [1, 2.5, None, "é", b"\xff\x00"], "b": OrderedDict(x={3, 4}), "c": (True, -1, Path("/x"))}
    assert load_pickle(pickle.dumps(data, protocol=protocol), what="x", allow=PLAIN) == data
    array = np.arange(6, dtype=np.uint32).reshape(2, 3)
    found = load_pickle(pickle.dumps(array, protocol=protocol), what="x")
    assert found.dtype == np.uint32
    assert found.tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_call_of_anything_else_is_refused_before_it_runs(tmp_path: Path, protocol: int) -> None:
    for wrapped in (Touch(tmp_path / "run"), {"a": [Touch(tmp_path / "run")]}):
        with pytest.raises(RefusedInput, match=r"^FILE refers to .*\.mkdir, which is not data"):
            load_pickle(pickle.dumps(wrapped, protocol=protocol), what="FILE")
    assert not (tmp_path / "run").exists()


# Programs of the kinds that get round a list of names: attributes, other readers, changed classes, extensions.
PROGRAMS = [
    b"cbuiltins\neval\n(Vopen('RUN', 'w')\ntR.",
    b"cbuiltins\ngetattr\n(cio\nBytesIO\nV__init__\ntR.",
    b"\x80\x04\x8c\x08builtins\x8c\x0cobject.__new__\x93.",
    b"\x80\x04\x8c\x0bcollections\x8c\x15OrderedDict.fromkeys.__globals__\x93.",
    b"ctorch\nload\n(VRUN\ntR.",
    b"ctorch.jit\nload\n(VRUN\ntR.",
    b"cpickle\nloads\n(Vx\ntR.",
    b"cfunctools\npartial\n.",
    b"(ios\nsystem\nVtouch RUN\n.",
    b"\x82\x01.",
    # BUILD on a class and on a function of the list: it would set their attributes.
    b"\x80\x02cargparse\nNamespace\nN}X\x08\x00\x00\x00__call__K\x01s\x86b.",
    b"\x80\x02ccopyreg\n_reconstructor\nN}X\x0c\x00\x00\x00__defaults__)s\x86b.",
    b"\x80\x02c_codecs\nencode\n(X\x01\x00\x00\x00xX\x05\x00\x00\x00rot13tR.",
    b"garbage",
    b"",
    b"\x80\x04" + b"(" * 100,
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_is_one_sentence(tmp_path: Path, program: bytes) -> None:
    with pytest.raises(RefusedInput) as refused:
        load_pickle(program.replace(b"RUN", str(tmp_path / "run").encode()), what="FILE", allow=DEFAULT | FOREIGN)
    assert str(refused.value).startswith("FILE ")
    assert "\n" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_nothing_on_a_list_reads_files_or_runs_code() -> None:
    """Names that are no classes of data, each known to be harmless or replaced by ours."""
    import importlib

    functions = []
    of_0_19 = "megatron.core.safe_globals.safe_load_from_bytes"
    assert of_0_19 in _REPLACED, "ours stands for it whether or not the installed megatron-core has it"
    for name in sorted(DEFAULT - {of_0_19}):
        module, _, last = name.rpartition(".")
        found = getattr(importlib.import_module(module), last)
        if callable(found) and not isinstance(found, type):
            functions.append(name)
    assert functions == [
        "_codecs.encode",
        "copyreg._reconstructor",
        "numpy._core.multiarray._reconstruct",
        "numpy._core.multiarray.scalar",
        "numpy._core.numeric._frombuffer",
        "torch._utils._rebuild_parameter",
        "torch._utils._rebuild_tensor",
        "torch._utils._rebuild_tensor_v2",
        "torch.serialization._get_layout",
        "torch.storage._load_from_bytes",
    ]


def _saved(data: Any, **options: Any) -> bytes:
    import torch

    file = io.BytesIO()
    torch.save(data, file, **options)
    return file.getvalue()


@pytest.mark.parametrize("zipped", [True, False])
def test_tensors_come_back_and_calls_do_not(tmp_path: Path, zipped: bool) -> None:
    import torch

    tensor = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)
    data = {"w": tensor, "view": tensor[:, 1], "n": np.arange(3), "size": tensor.shape, "dtype": torch.float32}
    found = load_torch(_saved(data, _use_new_zipfile_serialization=zipped), what="x")
    assert torch.equal(found["w"], tensor)
    assert torch.equal(found["view"], tensor[:, 1])
    assert (found["size"], found["dtype"]) == (torch.Size([2, 3]), torch.float32)
    payload = tmp_path / "payload.pt"
    payload.write_bytes(_saved({"w": tensor, "x": Touch(tmp_path / "run")}, _use_new_zipfile_serialization=zipped))
    with pytest.raises(RefusedInput, match=r"payload\.pt refers to .*\.mkdir, which is not data"):
        load_torch(payload)
    assert not (tmp_path / "run").exists()
    # A tensor in a plain pickle holds a whole file of torch's, read by torch with nothing refused.
    assert torch.equal(load_pickle(pickle.dumps(tensor), what="x"), tensor)
    inner = _saved(Touch(tmp_path / "run"), _use_new_zipfile_serialization=zipped)
    program = b"\x80\x02ctorch.storage\n_load_from_bytes\nB" + len(inner).to_bytes(4, "little") + inner + b"\x85R."
    with pytest.raises(RefusedInput, match=r"a tensor's storage refers to .*\.mkdir"):
        load_pickle(program, what="x")
    assert not (tmp_path / "run").exists()


def test_other_archives_are_refused(tmp_path: Path) -> None:
    import torch

    class Doubled(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * x

    script = tmp_path / "script.pt"
    torch.jit.save(torch.jit.trace(Doubled(), torch.ones(1)), str(script))  # type: ignore[no-untyped-call]
    old = tmp_path / "old.pt"
    with tarfile.open(old, "w") as tar:
        tar.addfile(tarfile.TarInfo("storages"))
    for path in (script, old):
        with pytest.raises(RefusedInput, match="is refused: it is a TorchScript archive or has torch's old tar format"):
            load_torch(path)
    with pytest.raises(RefusedInput, match=r"nowhere\.pt cannot be read: No such file"):
        load_torch(tmp_path / "nowhere.pt")


def test_fp8_memory_as_megatron_core_writes_it_is_data() -> None:
    """Its recipe is a class of megatron-core's own: a resume of an FP8 run on an H200 was refused over it."""
    assert "megatron.core.extensions.transformer_engine.TEDelayedScaling" in SCALING


def test_a_tensor_in_a_pickle_as_megatron_core_0_19_writes_it() -> None:
    tensor = torch.arange(3.0)
    content = pickle.dumps(tensor, protocol=2).replace(
        b"ctorch.storage\n_load_from_bytes\n", b"cmegatron.core.safe_globals\nsafe_load_from_bytes\n"
    )
    assert torch.equal(load_pickle(content, what="state", allow=DEFAULT), tensor)
