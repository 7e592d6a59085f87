"""The request to save and leave."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from colosseum.runtime.stopping import SIGNALS, StopSignal


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_both_signals_ask_to_stop_and_end_nothing(number: signal.Signals) -> None:
    stop = StopSignal()
    assert not stop.received
    signal.raise_signal(number)
    signal.raise_signal(number)
    assert stop.received


def test_an_interrupt_is_the_launcher_s_to_pass_on() -> None:
    before = signal.getsignal(signal.SIGINT)
    StopSignal()
    assert signal.getsignal(signal.SIGINT) is before


def test_a_shakedown_leaves_after_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not any(StopSignal().after(step) for step in range(1, 5))
    monkeypatch.setenv("COLOSSEUM_STOP_AFTER_STEP", "3")
    assert [step for step in range(1, 6) if StopSignal().after(step)] == [3]
    stop = StopSignal()
    signal.raise_signal(signal.SIGUSR1)
    assert stop.after(1)


def test_before_the_first_step_a_signal_leaves_at_once() -> None:
    left = threading.Event()
    stop = StopSignal()
    stop.leave_at_once(left.set)
    signal.raise_signal(signal.SIGTERM)
    assert left.wait(5)


def test_from_the_first_step_on_a_signal_waits_for_the_step() -> None:
    left = threading.Event()
    stop = StopSignal()
    stop.leave_at_once(left.set)
    stop.leave_after_steps()
    signal.raise_signal(signal.SIGTERM)
    assert stop.received
    assert not left.wait(0.2)
