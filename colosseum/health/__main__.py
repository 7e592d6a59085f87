"""``python -m colosseum.health``: the light checks of this node, for Prolog, Epilog and job scripts.

Prints one JSON line. Exit code 66 = a check failed; 0 = none did; anything else is a fault of ours.
"""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import suppress
from pathlib import Path

from colosseum.health import records
from colosseum.health.finding import Site
from colosseum.health.preflight import FULL, FULL_S, LIGHT, LIGHT_S, preflight
from colosseum.records import line_of

EXIT_FAILED = 66
"""No shell, Python or ``timeout`` exits with it: only a verdict of ours drains a node."""


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m colosseum.health")
    parser.add_argument("--health", type=Path, help="folder of the history")
    parser.add_argument("--shared", type=Path)
    parser.add_argument("--local", type=Path, default=Site().local)
    parser.add_argument("--image", type=Path)
    parser.add_argument("--gpus", type=int)
    parser.add_argument("--full", action="store_true")
    given = parser.parse_args(words)
    before = records.figures_before(given.health, os.uname().nodename)
    site = Site(local=given.local, shared=given.shared, image=given.image, gpus=given.gpus, before=before)
    report = preflight(site, FULL if given.full else LIGHT, FULL_S if given.full else LIGHT_S)
    if given.health is not None:
        with suppress(OSError):  # a full shared folder is no fault of this node
            records.write(given.health, report)
    sys.stdout.write(line_of(report.as_json()))
    sys.stdout.flush()
    return EXIT_FAILED if report.failed else 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    os._exit(code)  # a check may hang in the kernel: its thread is left behind
