"""Spikes of a loss curve and names of broken gradients."""

from __future__ import annotations

import math
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from colosseum.runtime.stability.detect import ENOUGH, LossWatch, nonfinite_gradients
from colosseum.runtime.stability.ladder import Continue, Measured, Stop, decide


def curve(steps: int) -> list[float]:
    """A smooth training curve with a little noise of a fixed pattern."""
    return [2 + 3 * math.exp(-s / 40) + 0.02 * math.sin(7 * s) for s in range(steps)]


def test_a_jump_is_a_spike_and_says_what_was_expected() -> None:
    watch = LossWatch()
    for step, loss in enumerate(curve(100), 1):
        assert watch.update(step, loss) is None
    spike = watch.update(101, 4.0)
    assert spike is not None
    assert spike.step == 101
    assert 2.0 < spike.expected < 2.7
    assert spike.expected < spike.limit < 4.0


def test_a_plateau_after_a_jump_keeps_being_reported() -> None:
    watch = LossWatch()
    for step, loss in enumerate(curve(60), 1):
        watch.update(step, loss)
    assert all(watch.update(step, 6.0) for step in range(61, 200))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0, 0.1), min_size=1, max_size=200))
def test_small_noise_is_never_a_spike(noise: list[float]) -> None:
    watch = LossWatch()
    assert not any(watch.update(step, 3.0 + n) for step, n in enumerate(noise, 1))


def test_nothing_is_said_before_there_is_something_to_compare_with() -> None:
    watch = LossWatch()
    assert not any(watch.update(step, 10.0**step) for step in range(1, ENOUGH + 1))


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


def test_a_loss_that_is_not_finite_stops_a_run_that_acts_and_is_only_told_by_one_that_watches() -> None:
    for bad in (measured(2, math.nan), measured(2, 1.0, math.inf)):
        stop = decide("act", LossWatch(), bad)
        assert isinstance(stop, Stop)
        what = "loss" if math.isnan(bad.loss) else "gradient norm"
        assert stop.reason == f"the {what} of step 2 is not finite (samples 8 to 15); rank 3: w"
        told = decide("watch", LossWatch(), bad)
        assert isinstance(told, Continue)
        assert told.event == stop.event
        assert stop.event.kind == "not_finite"
        assert decide("off", LossWatch(), bad) == Continue()


def test_a_spike_is_told_and_trained_through() -> None:
    watch = LossWatch()
    for step, loss in enumerate(curve(100), 1):
        assert decide("act", watch, measured(step, loss)) == Continue()
    action = decide("act", watch, measured(101, 5.0))
    assert isinstance(action, Continue)
    assert action.event is not None
    assert action.event.kind == "loss_spike"
    assert action.event.fields["loss"] == 5.0
