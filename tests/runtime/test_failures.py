"""What outcome.json says of each way to fail: kind, whether to start again, one sentence."""

from __future__ import annotations

import errno

import pytest
import torch

from colosseum.errors import EnvironmentFault, RefusedInput
from colosseum.records import OUTCOME_KINDS
from colosseum.rundir import OutcomeKind
from colosseum.runtime.failures import ConfigFailure, DataFailure, NumericFailure, RunFailure, exit_code, judge

FULL = "no space is left on the disk"


@pytest.mark.parametrize(
    ("error", "kind", "retry", "words"),
    [
        (DataFailure("b.bin has 3 bytes, not 4"), "data_error", False, "b.bin has 3 bytes, not 4"),
        (NumericFailure("the loss of step 3 is not finite"), "numeric_error", False, "step 3"),
        (ConfigFailure("of another model"), "config_error", False, "of another model"),
        (RefusedInput("train.steps = 0: too few"), "config_error", False, "too few"),
        (EnvironmentFault("torch is not installed"), "config_error", False, "torch"),
        (OSError(errno.ENOSPC, "No space left on device", "/x/common.pt"), "crash", False, f"{FULL} at /x/common.pt"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "crash", False, FULL),
        (RuntimeError("[enforce fail at inline_container.cc] No space left on device"), "crash", False, FULL),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB."), "crash", False, "out of GPU memory"),
        (OSError(errno.EIO, "Input/output error", "/x"), "crash", True, "Input/output error"),
        (RuntimeError("NCCL error: remote process\nexited"), "crash", True, "NCCL error: remote process exited"),
        (KeyError(), "crash", True, "KeyError"),
    ],
)
def test_verdicts(error: Exception, kind: str, retry: bool, words: str) -> None:
    verdict = judge(error)
    assert (verdict.kind, verdict.retry) == (kind, retry)
    assert words in verdict.reason
    assert "\n" not in verdict.reason


def test_a_library_s_error_is_judged_by_what_it_came_from() -> None:
    try:
        try:
            raise OSError(errno.ENOSPC, "No space left on device", "/x/__0_0.distcp")
        except OSError as cause:
            raise RuntimeError("writer thread failed") from cause
    except RuntimeError as error:
        assert judge(error).reason.startswith(f"{FULL} at /x/__0_0.distcp")


def test_a_cause_that_was_set_aside_does_not_count() -> None:
    try:
        try:
            raise FileNotFoundError(errno.ENOENT, "No such file", "/optional")
        except FileNotFoundError:
            raise ValueError("bad width") from None
    except ValueError as error:
        assert judge(error).reason == "ValueError: bad width"


@pytest.mark.parametrize("kind", OUTCOME_KINDS)
@pytest.mark.parametrize("retry", [True, False])
def test_exit_codes_are_those_of_the_contract(kind: OutcomeKind, retry: bool) -> None:
    code = exit_code(kind, retry=retry)
    if kind in ("completed", "saved"):
        assert code == {"completed": 0, "saved": 75}[kind]
    elif retry:
        assert code not in (0, 75, 76)
    else:
        assert code == 76


def test_every_failure_is_a_kind_of_its_own() -> None:
    kinds = [failure.kind for failure in RunFailure.__subclasses__()]
    assert sorted(kinds) == ["config_error", "data_error", "numeric_error"]
