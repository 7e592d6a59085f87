"""The only way in which this package reads pickles: with a list of allowed names; nothing else is called.

A pickle is a program that calls functions by name. Here every name must be on a list of those that create plain
data (numbers, arrays, tensors, descriptions of a checkpoint), and no pickle may change a class or a function. Needs
torch only for what holds tensors.
"""

from __future__ import annotations

import _compat_pickle
import importlib
import io
import os
import pickle
import tarfile
import types
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

from colosseum.errors import RefusedInput


def _names(module: str, names: str) -> frozenset[str]:
    return frozenset(f"{module}.{name}" for name in names.split())


PLAIN = (
    _names("builtins", "bool bytearray bytes complex dict float frozenset int list object range set slice str tuple")
    | _names("collections", "OrderedDict defaultdict deque")
    | _names("_io", "BytesIO")
    | _names("io", "BytesIO")
    | _names("pathlib", "Path PosixPath PurePath PurePosixPath")
    | _names("datetime", "date datetime timedelta")
    | _names("argparse", "Namespace")
    | _names("types", "SimpleNamespace")
    | _names("_codecs", "encode")
    | _names("copyreg", "_reconstructor")
)
ARRAYS = (
    _names("numpy", "dtype ndarray")
    | _names("numpy.dtypes", "UInt32DType UInt64DType Int32DType Int64DType Float32DType Float64DType")
    | _names("numpy._core.multiarray", "_reconstruct scalar")
    | _names("numpy._core.numeric", "_frombuffer")
)
TENSORS = (
    _names("torch", "Size device Tensor BoolStorage ByteStorage CharStorage ShortStorage IntStorage LongStorage")
    | _names("torch", "HalfStorage BFloat16Storage FloatStorage DoubleStorage")
    | _names("torch", "bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64 float8_e4m3fn float8_e5m2")
    | _names("torch._utils", "_rebuild_tensor _rebuild_tensor_v2 _rebuild_parameter")
    | _names("torch.serialization", "_get_layout")
    | _names("torch.storage", "TypedStorage UntypedStorage _load_from_bytes")
    | _names("megatron.core.safe_globals", "safe_load_from_bytes")  # what megatron-core 0.19 writes in its place
)
CHECKPOINT = (
    _names("torch.distributed.checkpoint.filesystem", "_StorageInfo _StoragePrefix")
    | _names("torch.distributed.checkpoint.metadata", "BytesStorageMetadata ChunkStorageMetadata Metadata StorageMeta")
    | _names("torch.distributed.checkpoint.metadata", "MetadataIndex TensorProperties TensorStorageMetadata")
    | _names("torch.distributed.checkpoint.metadata", "_MEM_FORMAT_ENCODING")
    | _names(
        "torch.distributed.checkpoint.planner", "BytesIOWriteData SavePlan TensorWriteData WriteItem WriteItemType"
    )
)
FOREIGN = (
    _names("megatron.core.enums", "ModelType")
    | _names("megatron.core.optimizer.optimizer_config", "OptimizerConfig AdamOptimizerConfig")
    | _names("megatron.core.rerun_state_machine", "RerunDiagnostic RerunMode RerunState")
    | _names("megatron.core.transformer.enums", "AttnBackend AttnMaskType AttnType CudaGraphScope LayerType ModelType")
    | _names("megatron.core.dist_checkpointing.strategies.torch", "MCoreMetadata MCoreSavePlan")
    | _names("signal", "Signals")
)
"""What Megatron-LM and NeMo also store in common.pt: their options and counters."""
SCALING = _names(
    "transformer_engine.common.recipe",
    "DelayedScaling Float8BlockScaling Float8CurrentScaling Format MMParams MXFP8BlockScaling NVFP4BlockScaling QParams"
    " _FormatHelper _FormatMaxVals",
) | _names("megatron.core.extensions.transformer_engine", "TEDelayedScaling")
"""Transformer Engine's FP8 recipes and scaling history."""
DEFAULT = PLAIN | ARRAYS | TENSORS | CHECKPOINT


def load_pickle(
    source: bytes | BinaryIO, *, what: str, allow: Iterable[str] = DEFAULT, inert: Iterable[str] = ()
) -> Any:
    """Reads the object of a pickle.

    Args:
        source: its bytes, or an open file.
        what: the file's name in messages.
        allow: allowed names, as ``module.name``; the other lists of this module can be added to ``DEFAULT``.
        inert: allowed names that become an empty object, to check a pickle without creating its objects.

    Raises:
        RefusedInput: it contains a name that is not allowed, or cannot be read.
    """
    file = io.BytesIO(source) if isinstance(source, bytes) else source
    return _with_message(what, lambda: _unpickler(what, frozenset(allow), frozenset(inert))(file).load())


def load_torch(source: Path | bytes | BinaryIO, *, what: str = "", allow: Iterable[str] = DEFAULT) -> Any:
    """Reads a file of ``torch.save``, with tensors on the CPU; otherwise as ``load_pickle``."""
    import torch

    what = what or str(source)
    if isinstance(source, Path):
        try:
            with source.open("rb") as opened:
                return load_torch(opened, what=what, allow=allow)
        except OSError as error:
            raise RefusedInput(f"{what} cannot be read: {os.strerror(error.errno or 0)}") from error
    file = io.BytesIO(source) if isinstance(source, bytes) else source
    module = as_module(what, allow)

    def read() -> Any:
        _no_program(file, what)
        return torch.load(file, map_location="cpu", pickle_module=module, weights_only=False)

    return _with_message(what, read)


def as_module(what: str, allow: Iterable[str] = DEFAULT) -> Any:
    """A replacement for the module ``pickle`` that reads as ``load_pickle`` does, for libraries that accept one."""
    names = frozenset(allow)

    def load(file: BinaryIO, **_options: Any) -> Any:
        return load_pickle(file, what=what, allow=names)

    def loads(data: bytes, **_options: Any) -> Any:
        return load_pickle(bytes(data), what=what, allow=names)

    return types.SimpleNamespace(
        __name__="pickle",
        Unpickler=_unpickler(what, names),
        UnpicklingError=pickle.UnpicklingError,
        load=load,
        loads=loads,
        Pickler=pickle.Pickler,
        dump=pickle.dump,
        dumps=pickle.dumps,
    )


def _with_message(what: str, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except RefusedInput:
        raise
    except Exception as error:  # a pickle can raise anything that its objects' makers raise
        text = " ".join(str(error).split())[:200]
        raise RefusedInput(f"{what} cannot be read: {type(error).__name__} ({text})") from error


def _no_program(file: BinaryIO, what: str) -> None:
    """Refuses what torch reads without this unpickler: TorchScript archives and its oldest, tar-based format."""
    import torch

    start = file.tell()
    zipped = file.read(4) == b"PK\x03\x04"
    file.seek(start)
    other = (
        "constants.pkl" in torch._C.PyTorchFileReader(file).get_all_records() if zipped else tarfile.is_tarfile(file)
    )
    file.seek(start)
    if other:
        raise RefusedInput(f"{what} is refused: it is a TorchScript archive or has torch's old tar format")


class _Inert:
    """Replaces an object that is not needed."""

    def __new__(cls, *_: Any, **__: Any) -> _Inert:
        return super().__new__(cls)

    def __init__(self, *_: Any, **__: Any) -> None: ...


def _unpickler(what: str, allow: frozenset[str], inert: frozenset[str] = frozenset()) -> type[pickle._Unpickler]:
    class Listed(pickle._Unpickler):  # the Python version: the C version cannot refuse changes of a class
        dispatch: ClassVar[dict[int, Callable[[Any], None]]] = dict(pickle._Unpickler.dispatch)

        def find_class(self, module: str, name: str, /) -> Any:
            full = _today(module, name)
            if full not in allow:
                raise RefusedInput(f"{what} refers to {module}.{name}, which is not data: refused; no code was run")
            if full in inert:
                return _Inert
            return _REPLACED.get(full) or _imported(full)

        def load_build(self) -> None:
            target = self.stack[-2]  # type: ignore[attr-defined]
            if callable(target):
                raise RefusedInput(f"{what} changes {target!r}, which is not data: refused")
            super().load_build()  # type: ignore[misc]

        dispatch[pickle.BUILD[0]] = load_build

    return Listed


def _imported(full: str) -> Any:
    module, _, name = full.rpartition(".")
    return getattr(importlib.import_module(module), name)


def _today(module: str, name: str) -> str:
    """Names of Python 3 and NumPy 2: pickles of protocols 0 to 2 contain names of Python 2."""
    module, name = _compat_pickle.NAME_MAPPING.get((module, name), (module, name))
    module = _compat_pickle.IMPORT_MAPPING.get(module, module)
    return f"{module.replace('numpy.core.', 'numpy._core.')}.{name}"


def _latin1(text: str, encoding: str) -> bytes:
    """How pickles of protocol 2 write bytes."""
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"bytes written in {encoding}")
    return text.encode("latin1")


def _storage(data: bytes) -> Any:
    """torch's own function would call ``torch.load`` without restrictions."""
    return load_torch(bytes(data), what="a tensor's storage", allow=DEFAULT)


_REPLACED: dict[str, Callable[..., Any]] = {
    "_codecs.encode": _latin1,
    "torch.storage._load_from_bytes": _storage,
    "megatron.core.safe_globals.safe_load_from_bytes": _storage,
}
