"""``python -m colosseum.launch.local.ranks N PROGRAM …``: one attempt of N ranks here, from inside a run folder.

What srun and the job script are to a cluster: it makes the attempt's folder, starts the ranks with their place in the
environment, forwards stop signals to them, ends the others when one fails, and writes the outcome.
Exit codes are the runtime's: 0 complete, 75 saved, 76 not to be started again, else a crash.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

from colosseum import owner
from colosseum.records import Outcome
from colosseum.rundir import EXIT_FINAL, EXIT_SAVED, AttemptDir, OutcomeKind, RunDir, saved_steps

GRACE_S = 15.0
"""From the first failed rank to killing the others: time for them to notice and write their reason."""
EXIT_CRASH = 70


class Ranks:
    """The processes of one attempt. Signals to us mean: the ranks save and leave; asked twice, they are ended."""

    def __init__(self, attempt: AttemptDir, count: int, argv: Sequence[str], env: dict[str, str]) -> None:
        self.asked_to_stop = False
        self.processes: list[subprocess.Popen[bytes]] = []
        self._attempt = attempt
        for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._stop)
        for rank in range(count):
            self.processes.append(self._start(rank, argv, {**env, **_place(rank, count)}))
        if self.asked_to_stop:  # meanwhile
            self._signal(signal.SIGUSR1)

    def wait(self) -> tuple[list[int], int | None]:
        """Exit codes by rank (128 + n for signal n), and the rank that failed first."""
        codes, first = [0] * len(self.processes), None
        by_pid = {p.pid: rank for rank, p in enumerate(self.processes)}
        timer = threading.Timer(GRACE_S, self._signal, [signal.SIGKILL])
        timer.daemon = True
        while by_pid:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
            assert ended is not None  # None only where it does not wait
            pid = ended.si_pid
            if pid in by_pid:  # still there, so that the group's number is no other's: what it started ends, too
                with suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            if (rank := by_pid.pop(pid, None)) is None:
                continue
            code = os.waitstatus_to_exitcode(status)
            self.processes[rank].returncode = code
            codes[rank] = code if code >= 0 else 128 - code
            if codes[rank] not in (0, EXIT_SAVED) and first is None:
                first = rank
                timer.start()
        timer.cancel()
        return codes, first

    def _start(self, rank: int, argv: Sequence[str], env: dict[str, str]) -> subprocess.Popen[bytes]:
        with self._attempt.rank_log(rank).open("ab") as log:
            # A session of its own: what a rank starts ends with it.
            return subprocess.Popen(
                argv, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._signal(signal.SIGKILL if self.asked_to_stop else signal.SIGUSR1)
        self.asked_to_stop = True

    def _signal(self, number: int) -> None:
        for process in self.processes:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    (os.killpg if number == signal.SIGKILL else os.kill)(process.pid, number)


def _place(rank: int, count: int) -> dict[str, str]:
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
    return {name: str(value) for name, value in place.items()}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _settle(run: RunDir, attempt: AttemptDir, codes: Sequence[int], failed: int | None, stopped: bool) -> int:
    """outcome.json decides, exit codes are a hint; a killed rank writes no outcome.json, so this writes one."""
    kind: OutcomeKind = "completed"
    retry, reason = False, "every rank ended with code 0"
    if failed is not None:
        kind, retry = "crash", codes[failed] != EXIT_FINAL
        reason = (
            f"rank {failed} exited with code {codes[failed]}, wrote no outcome.json: {attempt.rank_log(failed).name}"
        )
    elif stopped or EXIT_SAVED in codes:
        kind, retry, reason = "saved", True, "stopped on request"
    saved = (saved_steps(run.checkpoints) or [0])[-1]
    attempt.write_outcome(kind, retry=retry, step=saved, last_saved_step=saved, rank=failed, reason=reason)
    outcome = attempt.read_outcome() or Outcome.damaged("outcome.json could not be written")
    known = {"completed": 0, "saved": EXIT_SAVED}
    return known.get(outcome.kind, EXIT_CRASH if outcome.retry else EXIT_FINAL)


def main(words: Sequence[str]) -> int:
    """One attempt; the exit code."""
    count, argv = int(words[0]), list(words[1:])
    run = RunDir(Path.cwd())
    if run.is_complete():
        sys.stderr.write(f"{run.root.name} is complete: nothing to do\n")
        return 0
    if whose := owner.take(run.root, owner.this_process()):
        sys.stderr.write(f"{whose}\n")
        return EXIT_FINAL
    number, attempt = run.begin_attempt_here()
    env = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        "COLOSSEUM_RUN": str(run.root),
        "COLOSSEUM_ATTEMPT": str(number),
        "COLOSSEUM_GPUS_PER_NODE": str(count),
        # torch's flight recorder, under both names that torch has given it
        "TORCH_FR_DUMP_TEMP_FILE": str(attempt.nccl_traces),
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": str(attempt.nccl_traces),
    }
    ranks = Ranks(attempt, count, argv, env)
    codes, failed = ranks.wait()
    return _settle(run, attempt, codes, failed, ranks.asked_to_stop)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
