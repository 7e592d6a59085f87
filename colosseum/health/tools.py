"""Runs the node's tools: the only file here that starts processes."""

from __future__ import annotations

import shutil
import subprocess

TOOL_S = 6.0
"""The longest that a tool of a light check may take."""


class ToolFault(Exception):
    """A tool is missing, failed or did not answer; the message is a sentence."""


def run(*argv: str, timeout_s: float = TOOL_S) -> str:
    """What a tool prints.

    Raises:
        ToolFault: it is missing, failed or did not answer in time.
    """
    if shutil.which(argv[0]) is None:
        raise ToolFault(f"{argv[0]} is not installed")
    try:
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        raise ToolFault(f"{argv[0]} did not answer within {timeout_s:g} s") from None
    except OSError as error:
        raise ToolFault(f"{argv[0]} could not be run: {error.strerror}") from error
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:] or ["no message"]
        raise ToolFault(f"{argv[0]} failed with exit code {done.returncode}: {last[0][:200]}")
    return done.stdout
