"""Programs in a run folder, under names that a program imports early: whoever imports one leaves a line, and fails."""

from __future__ import annotations

from pathlib import Path

NAMES = (
    *("colosseum", "hashlib", "json", "megatron", "numpy", "re", "runpy", "shutil", "signal", "sitecustomize"),
    *("subprocess", "tempfile", "torch", "typing", "usercustomize", "yaml"),
)
_MARK = "imported"


def set_traps(folder: Path) -> None:
    """Puts them there."""
    text = f"open({str(folder / _MARK)!r}, 'a').write(__name__ + '\\n')\nraise ImportError('a trap')\n"
    for name in NAMES:
        (folder / f"{name}.py").write_text(text)
        (folder / f"{name}.py").chmod(0o640)


def trapped(folder: Path) -> list[str]:
    """Names of those that were imported."""
    mark = folder / _MARK
    return mark.read_text().split() if mark.exists() else []
