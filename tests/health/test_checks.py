"""Each check: good figures pass a hundred times, a bad one is found. GPU tools' formats are those of their manuals."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from colosseum.health import host
from colosseum.health.dcgm import judge_diag
from colosseum.health.fabric import fabric
from colosseum.health.finding import Finding, Site
from colosseum.health.gpu import judge_gpus, judge_xids, parse_query
from colosseum.health.hooks import install
from colosseum.health.preflight import preflight

TIMES = 100
NEW = (
    "index, uuid, ecc.errors.uncorrected.volatile.total, clocks_event_reasons.active, temperature.gpu, "
    "pcie.link.width.current, pcie.link.width.max, memory.used [MiB], enforced.power.limit [W], "
    "power.max_limit [W], remapped_rows.pending, remapped_rows.failure"
)
OLD = NEW.replace("clocks_event_reasons", "clocks_throttle_reasons")
HEADERS = {"driver 570": NEW, "driver 535": NEW, "driver 470": OLD}
GOOD = "{i}, GPU-{i}, 0, 0x0000000000000001, 41, 16, 16, 4, 700.00, 700.00, No, No"
GOOD_BY = {"driver 570": GOOD, "driver 535": GOOD.replace("16, 16", "16, 16 "), "driver 470": GOOD}


def _gpus(header: str, row: str = GOOD, count: int = 8) -> Finding:
    lines = [header, *(GOOD.format(i=i) for i in range(count - 1)), row.format(i=count - 1)]
    return judge_gpus(parse_query("\n".join(lines)), 8)


@pytest.mark.parametrize("driver", HEADERS)
def test_good_gpus_pass(driver: str) -> None:
    for _ in range(TIMES):
        found = _gpus(HEADERS[driver], GOOD_BY[driver])
        assert (found.passed, found.figures["gpus"], found.figures["gpu_hottest_c"]) == (True, 8, 41)


@pytest.mark.parametrize("header", [NEW, OLD])
@pytest.mark.parametrize(
    ("good", "bad", "passed", "said"),
    [
        ("0, 0x", "3, 0x", False, "3 uncorrected ECC errors"),
        ("01, 41", "09, 41", False, "hardware slowdown"),
        ("01, 41", "40, 41", False, "hardware thermal slowdown"),
        ("01, 41", "80, 41", False, "power brake"),
        ("01, 41", "20, 41", None, "slowed down by heat"),
        (" 41,", " 93,", None, "slowed down by heat (93 C)"),
        ("16, 16", "8, 16", False, "PCIe x8 instead of x16"),
        (" 4, 700", " 40000, 700", None, "39.1 GiB in use"),
        ("700.00, 700.00", "500.00, 700.00", None, "power limit 500 W of 700 W"),
        ("No, No", "Yes, No", False, "must be reset"),
        ("No, No", "No, Yes", False, "remapping a memory row failed"),
        ("0, 0x0000000000000001, 41", "[GPU is lost], [GPU is lost], [GPU is lost]", False, "lost"),
    ],
)
def test_a_bad_gpu_is_found(header: str, good: str, bad: str, passed: bool | None, said: str) -> None:
    row = GOOD.replace(good, bad, 1)
    assert row != GOOD
    found = _gpus(header, row)
    assert found.passed is passed
    assert said in found.detail
    assert "GPU 7" in found.detail


def test_a_missing_gpu_is_found_and_what_a_gpu_does_not_have_is_no_fault() -> None:
    assert "7 GPUs, 8 expected" in _gpus(NEW, count=7).detail
    bare = GOOD.replace("0, 0x", "[N/A], 0x").replace("No, No", "[N/A], [N/A]").replace("700.00", "[Not Supported]")
    assert _gpus(NEW, bare).passed is True


@pytest.mark.parametrize(
    ("line", "passed"),
    [
        ("[ 9000.1] NVRM: Xid (PCI:0000:65:00): 79, pid=1, GPU has fallen off the bus.", False),
        ("[ 9000.1] NVRM: Xid (PCI:0000:65:00): 31, pid=1, name=python, MMU Fault", True),  # an application's
        ("[   12.5] NVRM: Xid (PCI:0000:65:00): 79, pid=1, GPU has fallen off the bus.", True),  # two days ago
        ("[ 9000.1] NVRM: Xid (0000:65:00): 48, pid=1, DBE", False),
        ("[ 9000.1] eth0: link up", True),
    ],
)
def test_xids(line: str, passed: bool) -> None:
    uptime = 2 * 86400.0 if "12.5" in line else 9500.0
    for _ in range(TIMES):
        assert judge_xids(f"[ 1.0] boot\n{line}\n", uptime).passed is passed


DCGM_3 = {
    "DCGM GPU Diagnostic": {
        "test_categories": [
            {
                "category": "Deployment",
                "tests": [
                    {"name": "Denylist", "results": [{"gpu_ids": "0,1", "status": "PASS"}]},
                    None,
                    {
                        "name": "Memory",
                        "results": [{"gpu_ids": "0", "status": "Pass"}, {"status": "X"}],
                    },
                ],
            }
        ],
        "version": "3.1.8",
    }
}
DCGM_4 = {
    "category": "Deployment",
    "tests": [{"name": "software", "test_summary": {"status": "X", "warnings": [{"warning": "GPU 1: ECC"}]}}],
    "metadata": {"version": "4.2.3"},
}


@pytest.mark.parametrize(("document", "name"), [(DCGM_3, "Memory"), (DCGM_4, "software")])
def test_dcgm_of_two_versions(document: object, name: str) -> None:
    text = "WARNING: something\n" + json.dumps(document)
    assert judge_diag(text.replace('"X"', '"Fail"')).passed is False
    assert name in judge_diag(text.replace('"X"', '"FAIL"')).detail
    for _ in range(TIMES):
        assert judge_diag(text.replace('"X"', '"Pass"')).passed is True
    assert (
        judge_diag(text.replace('"Pass"', '"Skip"').replace('"PASS"', '"Skip"').replace('"X"', '"Skip"')).passed is None
    )
    assert judge_diag("no JSON").passed is None


def _ports(root: Path, **values: str) -> Path:
    """/sys/class/infiniband of a node with four ports of 400 Gb/s; ``values`` are those of the last one."""
    for number in range(4):
        port = root / f"mlx5_{number}" / "ports" / "1"
        (port / "counters").mkdir(parents=True, exist_ok=True)
        texts = {"state": "4: ACTIVE", "rate": "400 Gb/sec (4X NDR)", "link_downed": "2"}
        texts |= values if number == 3 else {}
        for name, text in texts.items():
            place = port / "counters" / name if name == "link_downed" else port / name
            place.write_text(text + "\n")
    return root


@pytest.mark.parametrize(
    ("values", "passed", "said"),
    [
        ({}, True, "4 ports at 400 Gb/s"),
        ({"state": "1: DOWN"}, False, "mlx5_3/1 is DOWN"),
        ({"rate": "200 Gb/sec (4X HDR)"}, False, "200 Gb/s, the others 400"),
        ({"link_downed": "3"}, None, "went down 1 times"),
        ({"link_downed": "9"}, False, "went down 7 times"),
    ],
)
def test_ports(tmp_path: Path, values: dict[str, str], passed: bool | None, said: str) -> None:
    root = _ports(tmp_path, **values)
    for _ in range(TIMES):
        found = fabric(Site(before={"link_downed:mlx5_3/1": 2.0}), root)
        assert (found.passed, said in found.detail) == (passed, True)
    assert fabric(Site(), tmp_path / "none").passed is None


def _proc(root: Path, memory_kib: int = 1000, load: str = "0.5", online: str = "0-3") -> Path:
    root.mkdir(exist_ok=True)
    (root / "meminfo").write_text(f"MemTotal: {memory_kib} kB\nMemAvailable: 900 kB\n")
    (root / "loadavg").write_text(f"{load} 0 0 1/2 3\n")
    (root / "present").write_text("0-3\n")
    (root / "online").write_text(f"{online}\n")
    (root / "mc0").mkdir(exist_ok=True)
    (root / "mc0" / "ue_count").write_text("0\n")
    return root


def test_cpus_and_memory(tmp_path: Path) -> None:
    good, bad = _proc(tmp_path / "good"), _proc(tmp_path / "bad", memory_kib=900, load="99", online="0-1,3")
    site = Site(before={"memory_bytes": 1000 * 1024.0})
    for _ in range(TIMES):
        assert host.cpus(site, good, good).passed is True
        assert host.memory(site, good, good).passed is True
    assert host.cpus(site, good, bad).passed is None  # load is a warning
    assert "1 of 4 CPUs are offline" in host.cpus(site, bad, good).detail
    assert "is a module missing" in host.memory(site, bad, good).detail
    (bad / "mc0" / "ue_count").write_text("2\n")
    assert host.memory(Site(), good, bad).passed is False


def test_disks_clock_and_image_of_this_machine(tmp_path: Path) -> None:
    site = Site(local=tmp_path, shared=tmp_path, image=tmp_path)
    checks = (host.local_disk, host.shared_folder, host.clock, host.image)
    for _ in range(TIMES // 20):
        assert [check(site).passed for check in checks] == [True] * 4
    gone = Site(local=tmp_path / "none", shared=tmp_path / "none", image=tmp_path / "none")
    assert [check(gone).passed for check in (host.local_disk, host.shared_folder, host.image)] == [False] * 3
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_and_a_clock_that_is_off_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.statvfs(tmp_path)
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result((*real[:4], 10, *real[5:])))
    assert "GiB are needed" in host.local_disk(Site(local=tmp_path)).detail
    now = time.time()
    monkeypatch.setattr(host.time, "time", lambda: now + 100)
    assert host.clock(Site(shared=tmp_path)).passed is False


def test_a_check_that_hangs_or_breaks_is_no_verdict() -> None:
    def hangs(site: Site) -> Finding:
        time.sleep(20)
        raise AssertionError

    def breaks(site: Site) -> Finding:
        raise ZeroDivisionError

    def passes(site: Site) -> Finding:
        return Finding(name="passes", passed=True, detail="")

    report = preflight(Site(), (hangs, breaks, passes), limit_s=0.5)
    assert [finding.passed for finding in report.findings] == [None, None, True]
    assert [finding.name for finding in report.findings] == ["hangs", "breaks", "passes"]
    assert report.failed == ()
    assert report.took_s < 5


@pytest.mark.parametrize("mode", ["good", "failed check", "hang", "no python", "bug"])
def test_only_a_failed_check_makes_the_hook_fail(tmp_path: Path, mode: str) -> None:
    """The real script, as Slurm runs it; what it calls is replaced for the faults."""
    words = ["--local", str(tmp_path / "none") if mode == "failed check" else str(tmp_path)]
    prolog, _ = install(tmp_path / "hooks", words)
    text = prolog.read_text()
    start = text.index("timeout -k 1 9 ") + len("timeout -k 1 9 ")
    command = text[start : text.index(" 2>&1", start)]
    instead = {"hang": "sleep 60", "no python": "/none/python3 -m x", "bug": "python3 -c 1/0"}.get(mode, command)
    prolog.write_text(text.replace(command, instead).replace("-k 1 9", "-k 1 1" if mode == "hang" else "-k 1 60"))
    done = subprocess.run([prolog], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == (1 if mode == "failed check" else 0)
    assert ("cannot be written" in done.stderr) == (mode == "failed check")
