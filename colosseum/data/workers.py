"""Worker processes for data: one per core; they end with the process that they work for."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process
from multiprocessing.process import BaseProcess
from typing import TypeVar

from colosseum.errors import EnvironmentFault

LAST_SECONDS = 10
"""Of a worker that was asked to stop."""
POLL_S = 0.2
Job = TypeVar("Job")
Result = TypeVar("Result")


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def start_worker() -> None:
    """A process ends with the one that it works for, also where that is killed, and not before it."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there is already one process per core
    # Launchers signal whole process groups: a worker that died at once would look like one out of memory.
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda *_: signal.alarm(LAST_SECONDS))
    if (parent := parent_process()) is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)


def work(
    function: Callable[[Job], Result],
    jobs: Sequence[Job],
    processes: int | None = None,
    *,
    while_waiting: Callable[[], None] = lambda: None,
) -> Iterator[tuple[int, Result]]:
    """Number and result of each job, as they end; the first error ends the work.

    Args:
        processes: at most so many (default: one per core); with one, the work is done in this process.
        while_waiting: is called several times a second.

    Raises:
        EnvironmentFault: a process was killed, probably out of memory.
    """
    workers = min(processes or cores(), len(jobs))
    if workers <= 1:
        for number, job in enumerate(jobs):
            yield number, function(job)
            while_waiting()
        return
    # Spawned, not forked: the caller may have threads of torch or of a tokenizer.
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=start_worker) as pool:
        numbers = {pool.submit(function, job): number for number, job in enumerate(jobs)}
        try:
            waiting = set(numbers)
            while waiting:
                done, waiting = wait(waiting, timeout=POLL_S, return_when=FIRST_COMPLETED)
                for future in done:
                    yield numbers[future], future.result()
                while_waiting()
        except BrokenProcessPool as error:
            raise EnvironmentFault(
                "a tokenising process was killed, probably out of memory; run the command again"
            ) from error
        finally:
            pool.shutdown(cancel_futures=True)
