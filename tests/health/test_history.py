"""Reports of nodes, their history, and the exclude list that follows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from colosseum.health import history, records
from colosseum.health.finding import Finding
from colosseum.health.preflight import Report


def _report(node: str, when: float, passed: bool | None = True, speed: float = 1e9) -> Report:
    findings = (
        Finding(name="local_disk", passed=True, detail="", figures={"local_disk_bytes_per_s": speed}),
        Finding(name="gpus", passed=passed, detail="GPU 3: power brake", figures={}),
    )
    return Report(node=node, time_unix_s=when, took_s=1.0, findings=findings)


def _update(folder: Path) -> dict[str, history.NodeHistory]:
    history.update(folder, records.read(folder))
    return {node.node: node for node in history.nodes(folder)}


def test_a_node_is_proposed_while_its_last_check_failed_or_it_fails_again_and_again(tmp_path: Path) -> None:
    for when in range(12):
        records.write(tmp_path, _report("n1", when))
        records.write(tmp_path, _report("n2", when, passed=when != 11))
        records.write(tmp_path, _report("n3", when, passed=when % 3 != 0))
        records.write(tmp_path, _report("n4", when, passed=None if when == 11 else True))
        records.write(tmp_path, _report("n5", when, passed=when != 10))
    found = _update(tmp_path)
    assert {name: node.exclude for name, node in found.items()} == {
        **{"n1": False, "n2": True, "n3": True, "n4": False},
        "n5": False,  # one failure, passed since
    }
    assert found["n2"].reasons == ("gpus: GPU 3: power brake",)
    assert (found["n2"].checks, found["n2"].failed) == (10, 1)
    assert _update(tmp_path) == found  # what is there already is not added again


def test_a_slow_disk_is_a_trend(tmp_path: Path) -> None:
    for number in range(5):
        records.write(tmp_path, _report(f"n{number}", 1.0, speed=1e8 if number == 4 else 1e9))
    found = _update(tmp_path)
    assert found["n4"].notes == ("local disk at 100 MB/s, the fleet's median is 1000 MB/s",)
    assert found["n1"].notes == ()


def test_figures_of_the_last_check_are_known(tmp_path: Path) -> None:
    records.write(tmp_path, _report("n1", 1.0, speed=5.0))
    records.write(tmp_path, _report("n1", 2.0, speed=7.0))
    assert records.figures_before(tmp_path, "n1") == {"local_disk_bytes_per_s": 7.0}
    assert records.figures_before(tmp_path, "n2") == {}


@pytest.mark.parametrize("line", ["", "{", "[]", '{"schema":"colosseum.health/1"}', '{"findings":[{"passed":5}]}'])
def test_lines_that_are_no_reports_are_skipped(tmp_path: Path, line: str) -> None:
    records.write(tmp_path, _report("n1", 1.0))
    with (tmp_path / "n1.jsonl").open("a") as file:
        file.write(line + "\n")
        bad = _report("x; rm -rf /", 2.0).as_json()
        file.write(json.dumps(bad) + "\n")
    assert list(_update(tmp_path)) == ["n1"]
    assert records.figures_before(tmp_path, "n1")
