"""The images: pinned bases, an ordinary user at the end, nothing fetched and run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["Dockerfile.mcore", "Dockerfile.nemo"])
def test_a_dockerfile_pins_its_base_and_leaves_root(name: str) -> None:
    text = (ROOT / "docker" / name).read_text()
    base = re.search(r"^ARG BASE=(\S+)$", text, re.MULTILINE)
    assert base
    assert re.fullmatch(r"nvcr\.io/nvidia/[a-z]+:\d+\.\d+(-py3)?", base[1])
    instructions = [line.split()[0] for line in text.replace("\\\n", " ").splitlines() if re.match(r"[A-Z]+ ", line)]
    assert instructions[:2] == ["ARG", "FROM"]
    assert instructions.index("USER") > max(i for i, word in enumerate(instructions) if word == "RUN")
    assert not {"ADD", "VOLUME"} & set(instructions)
    assert "curl" not in text
    for source in re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE):
        assert all((ROOT / path).exists() for path in source.split()), source


def test_packages_of_the_image_are_pinned_in_the_constraints() -> None:
    text = (ROOT / "docker" / "Dockerfile.mcore").read_text()
    pattern = re.search(r"grep -iE '(\^\([^']+)'", text)
    assert pattern
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if re.match(pattern[1], line, re.I)]
    assert {re.split(r"==", pin)[0].lower().replace("_", "-") for pin in pins} >= {"hydra-core", "megatron-core"}
