"""Spikes of loss and gradient norm, names of broken gradients, and what is decided."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from colosseum.recipe.schema import Bf16Layers, Precision, Stability
from colosseum.runtime.stability.detect import ENOUGH, loss_spike, nonfinite_gradients, norm_spike
from colosseum.runtime.stability.ladder import (
    SKIP_WINDOW,
    Action,
    Continue,
    Measured,
    Memory,
    Rewind,
    Rewound,
    Skip,
    Stop,
    decide,
    lr_factor,
    wider_precision,
)


def curve(steps: int) -> list[float]:
    """A smooth training curve with a little noise of a fixed pattern."""
    return [2 + 3 * math.exp(-s / 40) + 0.02 * math.sin(7 * s) for s in range(steps)]


def test_a_jump_is_a_spike_and_says_what_was_expected() -> None:
    losses = curve(100)
    assert not any(loss_spike(losses[:n], losses[n]) for n in range(100))
    spike = loss_spike(losses, 4.0)
    assert spike is not None
    assert 2.0 < spike.expected < 2.7
    assert spike.expected < spike.limit < 4.0


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0, 0.1), min_size=1, max_size=200))
def test_small_noise_is_never_a_spike(noise: list[float]) -> None:
    losses = [3.0 + n for n in noise]
    assert not any(loss_spike(losses[:n], loss) for n, loss in enumerate(losses))


def test_nothing_is_said_before_there_is_something_to_compare_with() -> None:
    values = [10.0**step for step in range(ENOUGH)]
    assert not any(loss_spike(values[:n], value) or norm_spike(values[:n], value) for n, value in enumerate(values))


def test_ten_times_the_median_gradient_norm_is_a_spike() -> None:
    norms = [1.0, 2.0, 3.0] * 7
    assert norm_spike(norms, 20.0) is None
    spike = norm_spike(norms, 20.1)
    assert spike is not None
    assert (spike.expected, spike.limit) == (2.0, 20.0)


class Layer(torch.nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.layer_number = number
        self.weight = torch.nn.Parameter(torch.zeros(2))


class Wrapped(torch.nn.Module):
    """As megatron-core's DistributedDataParallel: the model under ``module``."""

    def __init__(self, numbers: list[int]) -> None:
        super().__init__()
        self.module = torch.nn.Module()
        self.module.decoder = torch.nn.Module()
        self.module.decoder.layers = torch.nn.ModuleList(Layer(n) for n in numbers)


def test_a_broken_gradient_is_named_by_its_layer_of_the_whole_model() -> None:
    chunk: Any = Wrapped([*range(47, 59)])  # the second of two pipeline stages; layer_number counts from 1
    for parameter in chunk.parameters():
        parameter.main_grad = torch.zeros(2)
    layers = chunk.module.decoder.layers
    layers[1].weight.main_grad[0] = math.nan
    layers[10].weight.main_grad[1] = math.inf
    assert nonfinite_gradients([chunk]) == ["decoder.layers.47.weight", "decoder.layers.56.weight"]


def measured(step: int, loss: float, grad_norm: float = 1.0) -> Measured:
    return Measured(step=step, loss=loss, grad_norm=grad_norm, first_sample=8, last_sample=15, where="rank 3: w")


PRECISION = Precision(fp8="delayed")
ACT = Stability(max_skips=2, max_rewinds=1)
BAD = (measured(101, math.nan), measured(101, 1.0, math.inf), measured(101, 9.0), measured(101, 2.0, 99.0))


def after(steps: int, memory: Memory | None = None) -> Memory:
    """What is remembered after so many good steps."""
    memory = memory or Memory()
    for step, loss in enumerate(curve(steps), 1):
        assert decision(ACT, memory, measured(step, loss)) == Continue()
    return memory


def decision(stability: Stability, memory: Memory, bad: Measured, rewinds: int = 0, can_rewind: bool = True) -> Action:
    return decide(stability, PRECISION, memory, bad, rewinds, can_rewind=can_rewind)


@pytest.mark.parametrize("bad", BAD)
def test_off_ignores_watch_reports_and_act_skips_then_rewinds(bad: Measured) -> None:
    memory = after(100)
    assert decision(Stability(mode="off"), memory, bad) == Continue()
    told = decision(Stability(mode="watch"), memory, bad)
    assert isinstance(told, Continue)
    assert told.event is not None
    kinds = {"not_finite", "loss_spike", "grad_norm_spike"}
    assert told.event.kind in kinds
    for number in range(2):
        skip = decision(ACT, memory, dataclasses.replace(bad, step=101 + number))
        assert isinstance(skip, Skip)
        assert skip.event.kind == told.event.kind
    assert memory.skipped == [101, 102]
    assert isinstance(decision(ACT, memory, dataclasses.replace(bad, step=103)), Rewind)


def test_skips_are_counted_over_a_hundred_steps() -> None:
    memory = after(100)
    memory.skipped = [50, 60]
    assert isinstance(decision(ACT, memory, measured(50 + SKIP_WINDOW - 1, math.nan)), Rewind)
    assert isinstance(decision(ACT, memory, measured(50 + SKIP_WINDOW, math.nan)), Skip)


def test_the_end_of_the_ladder_stops_at_nan_and_trains_on_through_a_finite_loss() -> None:
    for rewinds, can_rewind in ((1, True), (0, False)):
        memory = after(100)
        memory.skipped = [99, 100]
        stop = decision(ACT, memory, measured(101, math.nan), rewinds, can_rewind)
        assert isinstance(stop, Stop)
        wider = "precision.fp8=tensorwise precision.bf16_layers.first=1 precision.bf16_layers.last=1"
        assert stop.reason == (
            "the loss of step 101 is not finite (samples 8 to 15); rank 3: w; "
            f"resume from an earlier step with wider precision: --from RUN@STEP {wider}"
        )
        action = decision(ACT, memory, measured(101, 9.0), rewinds, can_rewind)
        assert isinstance(action, Continue)
        assert action.event is not None
        assert action.event.fields["proposal"] == wider
        assert memory.losses == [], "a loss that has changed for good is the new one to compare with"


def test_nan_without_good_steps_before_it_stops_at_once() -> None:
    stop = decision(ACT, after(ENOUGH - 1), measured(ENOUGH, math.nan))
    assert isinstance(stop, Stop)
    assert stop.reason.endswith("rank 3: w"), "the first weights are wrong, not the precision"


def test_a_checkpoint_remembers_all_that_decides() -> None:
    memory = after(70)
    memory.skip(71)
    back = Memory.of(type(memory.history()).model_validate_json(memory.history().model_dump_json()))
    assert back == memory
    assert Memory.of(None) == Memory()


def test_lower_rates_multiply_and_end() -> None:
    rewinds = [
        Rewound(from_step=30, to_step=20, lr_factor=0.5, until_step=50),
        Rewound(from_step=40, to_step=20, lr_factor=0.5, until_step=60),
    ]
    assert [lr_factor(rewinds, step) for step in (20, 21, 50, 51, 60, 61)] == [1, 0.25, 0.25, 0.5, 0.5, 1]


def test_precision_widens_until_all_is_bf16() -> None:
    layers = Bf16Layers(first=1, last=1)
    assert wider_precision(Precision(fp8="blockwise")) == "precision.bf16_layers.first=1 precision.bf16_layers.last=1"
    assert wider_precision(Precision(fp8="tensorwise", bf16_layers=layers)) == "precision.fp8_wgrad=false"
    no_wgrad = Precision(fp8="tensorwise", bf16_layers=layers, fp8_wgrad=False)
    assert wider_precision(no_wgrad) == "precision=bf16"
    assert wider_precision(Precision(fp8="none")) == ""
