"""The calibration: every number of the cost model that is measured or fitted and not given by a formula.

A calibration file (``conf/calibration/<name>.yaml``, or one that ``colosseum calibrate`` wrote) is a mapping::

    schema: colosseum.calibration/1
    name: h100-sxm                    # what a plan prints
    hardware: h100-sxm                # the hardware file whose peaks the shares below refer to
    source: one line: what it was measured on or fitted to, and when
    constants: {gemm_efficiency_bf16: 0.7, …}      # every field of Constants, no other
    measurements: […]                 # optional: the raw figures; kept for the reader, never used by a plan

The hash a plan records is the sha256 of the canonical JSON of ``hardware`` and ``constants``.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from colosseum.errors import Fault, RefusedInput
from colosseum.planning.plan import CalibrationRef
from colosseum.recipe.scan import read_text, scan

CALIBRATION_SCHEMA = "colosseum.calibration/1"
DEFAULT_CALIBRATION = "h100-sxm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """Shares are of the hardware file's figure; an exposed share is the part of a transfer compute does not hide."""

    # compute
    gemm_efficiency_bf16: float
    """Share of the BF16 peak that a GEMM with unbounded K and whole waves sustains."""
    gemm_efficiency_fp8: float
    """The same of the FP8 peak."""
    gemm_half_k: float
    """Elements of K at which prologue and epilogue double a BF16 GEMM's time."""
    gemm_half_k_fp8: float
    """The same in FP8, where the multiply is faster and its surroundings are not."""
    gemm_half_m: float
    """Rows of a kernel at which its tail doubles a GEMM's time; TP overlap cuts GEMMs into tp kernels of t/tp rows."""
    attention_efficiency_forward: float
    """Share of the BF16 peak of causal flash attention, long sequences, head dimension 64 or 128."""
    attention_efficiency_backward: float
    attention_half_seq: float
    """Tokens of a causal chunk at which attention runs at half its efficiency."""
    attention_head_dim_factor: float
    """Factor on forward attention efficiency for head dimensions other than 64 and 128."""
    attention_head_dim_factor_backward: float
    attention_dropout_factor: float
    """Factor on forward attention efficiency where its probabilities are dropped."""
    attention_dropout_factor_backward: float
    memory_efficiency: float
    """Share of HBM bandwidth that memory-bound kernels reach."""
    elementwise_scale: float
    """Factor on the counted bytes of norms, activations, residuals and RoPE."""
    cast_scale: float
    """Factor on the counted bytes of FP8 casts and transposes."""
    layer_overhead_s: float
    """Launch gaps a layer, microbatch, forward and backward."""
    # communication
    nvlink_efficiency: float
    network_efficiency: float
    nvlink_latency_s: float
    network_latency_s: float
    tp_exposed: float
    """With TP overlap (userbuffers)."""
    tp_exposed_serial: float
    """Without it."""
    cp_exposed: float
    p2p_exposed: float
    turn_overhead_s: float
    """Of each turn of a pipeline rank: a chunk's forward or backward pass of one microbatch."""
    dp_exposed: float
    # the whole step
    step_overhead_s: float
    """Optimizer launch, gradient norm, logging."""
    jitter_bf16: float
    """Relative growth of the step with each doubling of the GPUs beyond 64."""
    jitter_fp8: float
    site_factor: float
    """Multiplies the step time: what a site adds (data, stragglers, clocks); 1 = NVIDIA's acceptance runs."""
    # memory
    context_bytes: float
    """CUDA context and library workspaces, outside PyTorch's allocator."""
    communicator_bytes: float
    """A NCCL communicator family in use (tp, cp, pp, dp …)."""
    fragmentation: float
    """Reserved over allocated bytes, less 1."""
    memory_offset_bytes: float
    """Added to the allocated bytes: what a site's software keeps besides (0 = the bare model)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Named constants with their origin."""

    name: str
    hardware: str
    source: str
    constants: Constants

    @property
    def hash(self) -> str:
        """sha256 of what a plan depends on."""
        text = json.dumps(
            {"hardware": self.hardware, "constants": asdict(self.constants)}, sort_keys=True, separators=(",", ":")
        )
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def ref(self) -> CalibrationRef:
        """What the plan document says of it."""
        return CalibrationRef(name=self.name, hash=self.hash)

    def as_data(self) -> dict[str, Any]:
        """The content of a calibration file."""
        return {
            "schema": CALIBRATION_SCHEMA,
            "name": self.name,
            "hardware": self.hardware,
            "source": self.source,
            "constants": asdict(self.constants),
        }

    def with_constants(self, **changes: float) -> Calibration:
        """A copy with some constants replaced."""
        return replace(self, constants=replace(self.constants, **changes))


MAY_BE_NEGATIVE = frozenset({"memory_offset_bytes"})
MUST_BE_POSITIVE = frozenset(
    {
        "gemm_efficiency_bf16",
        "gemm_efficiency_fp8",
        "attention_efficiency_forward",
        "attention_efficiency_backward",
        "attention_head_dim_factor",
        "attention_head_dim_factor_backward",
        "attention_dropout_factor",
        "attention_dropout_factor_backward",
        "memory_efficiency",
        "nvlink_efficiency",
        "network_efficiency",
        "site_factor",
    }
)


def calibration_from_data(data: Any, where: str = "") -> Calibration:
    """A calibration from a file's content.

    Raises:
        RefusedInput: not a calibration, a constant is missing, unknown, not a number or out of range.
    """
    if not isinstance(data, Mapping) or data.get("schema") != CALIBRATION_SCHEMA:
        raise RefusedInput(
            [
                Fault(
                    path="schema",
                    value=None,
                    rule=f"a calibration file must have schema: {CALIBRATION_SCHEMA}",
                    where=where,
                )
            ]
        )
    given = data.get("constants")
    given = dict(given) if isinstance(given, Mapping) else {}
    names = [f.name for f in fields(Constants)]
    faults = [_fault(f"constants.{n}", None, "is missing", where) for n in names if n not in given]
    faults += [_fault(f"constants.{n}", v, "no such constant", where) for n, v in given.items() if n not in names]
    for name, value in given.items():
        if name in names and not _legal(name, value):
            faults.append(_fault(f"constants.{name}", value, "must be a finite number in its range", where))
    for name in ("name", "hardware", "source"):
        if not isinstance(data.get(name), str):
            faults.append(_fault(name, data.get(name), "must be text", where))
    if faults:
        raise RefusedInput(faults)
    return Calibration(
        name=data["name"],
        hardware=data["hardware"],
        source=data["source"],
        constants=Constants(**{n: float(given[n]) for n in names}),
    )


def read_calibration(path: Path) -> Calibration:
    """A calibration from a file of the user's.

    Raises:
        RefusedInput: it cannot be read, or as ``calibration_from_data``.
    """
    scanned = scan(read_text(path, str(path)), str(path))
    if scanned.faults:
        raise RefusedInput(scanned.faults)
    return calibration_from_data(scanned.data, where=str(path))


def _fault(path: str, value: Any, rule: str, where: str) -> Fault:
    return Fault(path=path, value=value, rule=rule, where=where)


def _legal(name: str, value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return False
    return value > 0 if name in MUST_BE_POSITIVE else (value >= 0 or name in MAY_BE_NEGATIVE)


@cache
def shipped_calibration(name: str) -> Calibration | None:
    """A calibration that ships with the package, by hardware name; ``None`` where there is none."""
    file = resources.files("colosseum.conf") / "calibration" / f"{name}.yaml"
    if not file.is_file():
        return None
    return calibration_from_data(yaml.safe_load(file.read_text()), where=f"conf/calibration/{name}.yaml")


def calibration_for(hardware: str) -> Calibration:
    """The shipped calibration of a hardware file, else the H100's: its shares applied to the other card's peaks."""
    found = shipped_calibration(hardware) or shipped_calibration(DEFAULT_CALIBRATION)
    assert found is not None
    return found
