"""Records of a run folder: what is written comes back, and nothing that others can put there ends a reader."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colosseum import jobscript, owner, records
from colosseum.launch.bundles.compile import library
from colosseum.records import OUTCOME_KINDS, AttemptEnvironment, Event, MetricsRow, Outcome, Owner
from colosseum.rundir import RunDir

COUNTS = st.integers(0, records.MAX_WHOLE)
PRINTABLE = st.text(max_size=50).filter(str.isprintable)


@settings(deadline=None)
@given(st.sampled_from(OUTCOME_KINDS), st.booleans(), COUNTS, COUNTS, st.none() | COUNTS, PRINTABLE)
def test_an_outcome_comes_back(
    kind: str, retry: bool, step: int, saved: int | None, rank: int | None, why: str
) -> None:
    outcome = Outcome(kind, retry, step, saved, rank, why)
    assert Outcome.from_line(outcome.to_line()) == outcome


@settings(deadline=None)
@given(COUNTS, COUNTS, PRINTABLE, COUNTS, PRINTABLE, st.floats(0, 1e12))
def test_an_attempt_environment_comes_back(n: int, step: int, job: str, restart: int, nodes: str, when: float) -> None:
    env = AttemptEnvironment(n, step, job, restart, nodes, when)
    assert AttemptEnvironment.from_line(env.to_line()) == env


OWNER = Owner("slurm", "4_1", "big", 2, "node01", "boot", "pid:[1]", 812, 77, 5.0)


def test_an_owner_comes_back() -> None:
    assert Owner.from_line(OWNER.to_line()) == OWNER
    local = OWNER._replace(scheduler="local", slurm_job="")
    assert Owner.from_line(local.to_line()) == local
    assert (OWNER.job_id, local.job_id) == ("4_1", "812")


@pytest.mark.parametrize(
    "bad",
    [
        {"scheduler": "pbs"},
        *({"slurm_job": job} for job in ("", "-1", "0", "--me", "1;2", "1 2", "1\n", str(2**70), 4, None)),
        *({"pid": pid} for pid in (-1, 0, "812", True, None, 2**22 + 1, 2**70, 1.5)),
        {"start_ticks": -1},
        {"host": ""},
        {"time_unix_s": "now"},
    ],
    ids=str,
)
def test_what_names_no_job_or_process_is_no_owner(bad: dict[str, Any]) -> None:
    assert Owner.from_line(json.dumps({**OWNER._asdict(), **bad})) is None


def test_rows_and_events_come_back() -> None:
    row = MetricsRow("train", 7, 1, 5.0, {"loss": 2.5, "mfu": None, "memory_peak_bytes": [1, 2], "skipped": False})
    assert MetricsRow.from_line(row.to_line()) == row
    event = Event("loss_spike", 7, 0, 5.0, {"loss": 9.0})
    assert Event.from_line(event.to_line()) == event


BAD: tuple[Any, ...] = (
    {},
    [],
    {"kind": "completed"},
    {"kind": "completed", "retry": "no"},
    {"kind": "won", "retry": False},
    {"kind": ["completed"], "retry": False},
    {"kind": "completed", "retry": False, "step": -1},
    {"kind": "completed", "retry": False, "step": True},
    {"kind": "completed", "retry": False, "step": "7"},
    {"kind": "crash", "retry": True, "rank": 1e300},
    {"kind": "crash", "retry": True, "rank": 10**400},
)


@pytest.mark.parametrize("data", BAD, ids=range(len(BAD)))
def test_what_is_no_outcome_is_none(data: Any) -> None:
    assert Outcome.from_line(json.dumps(data)) is None


@pytest.mark.parametrize("line", [b"\xff", b"", b"{", b"[" * 100_000, b'{"a":' * 100_000, b"1" * 10_000, b"null"])
def test_what_is_no_json_is_none(line: bytes) -> None:
    assert Outcome.from_line(line) is None
    assert AttemptEnvironment.from_line(line) is None
    assert MetricsRow.from_line(line) is None


def test_control_characters_and_sizes_end_at_the_reader() -> None:
    evil = json.dumps({"kind": "crash", "retry": True, "reason": "a\x1b[31m\nb\u202ec" + "x" * 10_000})
    outcome = Outcome.from_line(evil)
    assert outcome is not None
    assert outcome.reason.startswith("a [31m b cx")
    assert len(outcome.reason) == records.MAX_TEXT
    row = MetricsRow.from_line('{"kind":"train","step":1,"loss":NaN,"lr":1e999,"n":"\\u001b","deep":[[[[[1]]]]]}')
    assert row is not None
    assert row.fields == {"loss": None, "lr": None, "n": " ", "deep": [[None]]}
    assert MetricsRow.from_line('{"kind":"train","step":null}') is None


def test_the_first_writer_wins_and_leaves_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "outcome.json"
    assert records.write_first(file, Outcome("saved", True).to_line())
    assert not records.write_first(file, Outcome("crash", True).to_line())
    assert Outcome.from_line(file.read_bytes()) == Outcome("saved", True)
    assert list(tmp_path.iterdir()) == [file]


def test_a_link_whose_answer_was_lost_is_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As NFS has it: the link was made, the answer lost, the request sent again."""
    link = os.link

    def twice(source: str, target: str) -> None:
        link(source, target)
        link(source, target)

    monkeypatch.setattr(os, "link", twice)
    assert records.write_first(tmp_path / "first", "mine\n")
    assert not records.write_first(tmp_path / "first", "another's\n")
    assert (tmp_path / "first").read_text() == "mine\n"


@pytest.mark.parametrize("module", [records, owner, jobscript])
def test_a_batch_host_s_old_python_reads_the_module(module: ModuleType) -> None:
    """Python 3.6 has its grammar; only the standard library is imported, and the modules copied beside it."""
    tree = ast.parse(Path(str(module.__file__)).read_text(), feature_version=(3, 6))
    imported = {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    imported |= {a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names}
    standard = [
        "errno",
        "functools",
        "json",
        "math",
        "os",
        "pathlib",
        "re",
        "socket",
        "stat",
        "subprocess",
        "sys",
        "time",
        "typing",
    ]
    assert imported <= {*standard} | {"colosseum", "colosseum.records", "colosseum.owner"}
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.NamedExpr)]


CALL = (
    "import sys; sys.path.insert(0, 'bundle/lib'); from colosseum.jobscript import main; sys.exit(main(sys.argv[1:]))"
)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """A run folder with the bundle's copies, and files that a python must not import."""
    for name, data in library().items():
        (tmp_path / "bundle" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "bundle" / name).write_bytes(data)
    for name in ("json.py", "re.py", "colosseum.py"):
        (tmp_path / name).write_text("open('pwned', 'w')")
    return RunDir(tmp_path)


def asked(run: RunDir, *words: str) -> tuple[int, str]:
    """Exit code and answer of a command of the job script, in the plainest locale."""
    env = {"PATH": os.environ["PATH"], "LC_ALL": "C"}
    argv = [sys.executable, "-IB", "-c", CALL, *words]
    done = subprocess.run(argv, cwd=run.root, env=env, capture_output=True)
    assert done.stderr == b""
    assert not (run.root / "pwned").exists()
    return done.returncode, done.stdout.decode()


def test_what_the_job_script_writes_is_what_we_read(run: RunDir) -> None:
    for number in range(3):
        run.begin_attempt()
        assert asked(run, "begin", str(number), "77_3", "1", "n[01-02]") == (0, "0\n")
    env = AttemptEnvironment.from_line(run.attempt(2).env.read_bytes())
    assert env is not None
    assert (env.attempt, env.saved_step, env.job_id, env.restart, env.nodes) == (2, 0, "77_3", 1, "n[01-02]")
    assert asked(run, "fruitless", "2") == (0, "2\n")
    (run.attempts / "count-from").write_text("1\n")
    assert asked(run, "fruitless", "2") == (0, "1\n")
    (run.attempts / "count-from").write_text("a[$(touch pwned)]")
    assert asked(run, "fruitless", "2") == (0, "2\n")
    assert asked(run, "outcome", "2") == (1, "")
    reason = 'a "word" \\ é漢'
    assert asked(run, "write-outcome", "2", "crash", "true", "5", reason) == (0, "")
    assert run.attempt(2).read_outcome() == Outcome("crash", True, 0, 0, 5, reason)
    assert asked(run, "write-outcome", "2", "completed", "false", "-", "later") == (0, "")
    assert asked(run, "outcome", "2") == (0, f"crash true 0 5\n{reason}\n")
    assert asked(run, "complete") == (1, "")
    run.attempt(1).write_outcome("completed", retry=False, step=9, last_saved_step=9, rank=None, reason="")
    assert asked(run, "complete") == (0, "001\n")
    assert asked(run, "saved") == (0, "9\n")


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b"[" * 100_000, b'{"kind":"completed","retry":"no"}'])
def test_a_damaged_outcome_is_a_crash_that_says_so(run: RunDir, content: bytes) -> None:
    run.begin_attempt()
    run.attempt(0).outcome.write_bytes(content)
    outcome = run.attempt(0).read_outcome()
    assert outcome is not None
    assert (outcome.kind, outcome.retry) == ("crash", True)
    assert "outcome.json holds no outcome" in outcome.reason
    assert asked(run, "outcome", "0") == (0, f"crash true 0 -\n{outcome.reason}\n")


def test_steps_and_saves_are_found_whatever_the_lines_look_like(run: RunDir) -> None:
    assert asked(run, "has-step", "1") == (1, "")
    run.metrics.write_bytes(
        b'\xff\n{"kind": "val", "step": 9}\n{"attempt": 0, "step" : 7,"kind":"train"}\n{"kind": "tr'
    )
    assert asked(run, "has-step", "7") == (0, "")
    assert asked(run, "has-step", "8") == (1, "")
    assert asked(run, "save-seconds") == (0, "\n")
    for step, seconds in ((5, 1), (12, 100.5)):
        folder = run.checkpoints / f"iter_{step:07d}"
        folder.mkdir(parents=True)
        (folder / "colosseum.json").write_text(json.dumps({"save_time_s": seconds}))
    (run.checkpoints / "iter_0000099").mkdir()
    assert asked(run, "saved") == (0, "12\n")
    assert asked(run, "save-seconds") == (0, "100\n")


def test_a_foreign_engine_s_tracker_counts(run: RunDir) -> None:
    (run.bundle / "engine").mkdir()
    (run.bundle / "engine" / "command.json").write_text("{}")
    run.checkpoints.mkdir()
    for content, step in (("30\n", 30), ("release", 0), ("9" * 400, 0), ("²", 0)):
        (run.checkpoints / "latest_checkpointed_iteration.txt").write_text(content)
        assert asked(run, "saved") == (0, f"{step}\n")
