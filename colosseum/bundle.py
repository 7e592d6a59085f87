"""The LaunchBundle on disk: a folder that holds all a run needs but data, checkpoint and image. Never changes."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from colosseum import __version__
from colosseum.errors import EnvironmentFault, RefusedInput
from colosseum.reading import Unreadable, read_bytes, read_object
from colosseum.recipe.scan import EXPONENT
from colosseum.terminal import one_line

if TYPE_CHECKING:  # who lists a thousand runs opens no bundle
    from colosseum.planning.plan import Plan
    from colosseum.recipe.schema import Recipe

FOLDER_MODE, FILE_MODE, PROGRAM_MODE = 0o750, 0o640, 0o750
"""Of run folders' roots and bundles, whatever the umask: for the owner and the group, written by the owner only."""
MANIFEST_SCHEMA = "colosseum.manifest/1"
MANIFEST, RECIPE, PLAN, ENV = "manifest.json", "recipe.yaml", "plan.json", "env.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchBundle:
    """A bundle read back from disk."""

    root: Path
    manifest: dict[str, Any]
    recipe: Recipe
    plan: Plan


def to_json(data: Any) -> bytes:
    """Readable JSON that is the same on every machine."""
    return (json.dumps(data, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n").encode()


def to_yaml(data: Any) -> bytes:
    """YAML in the order given: floats that YAML 1.1 readers take as floats, text that every reader takes as that text.

    Raises:
        UnicodeEncodeError: text with half a surrogate pair, which no recipe holds.
    """
    text: str = yaml.dump(
        data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120, default_flow_style=False
    )
    return text.encode()


class _Dumper(yaml.SafeDumper):
    """Quotes what PyYAML would write bare although YAML 1.2 (and our own reader) takes it as a number: 1e5."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "'" if EXPONENT.fullmatch(text) else None
    if any(c in text for c in "\x85\u2028\u2029"):  # line breaks, which only an escape keeps
        style = '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def write_bundle(target: Path, files: Mapping[str, bytes], manifest: Mapping[str, Any]) -> None:
    """Writes ``files`` and the manifest (its ``files`` filled in here) at ``target``, all or nothing.

    Raises:
        RefusedInput: ``target`` exists: a bundle is never overwritten.
        EnvironmentFault: the disk is full or the folder not writable.
    """
    if target.exists():
        raise RefusedInput(f"{target} exists and a bundle is never overwritten; name another folder")
    hashes = {name: hashlib.sha256(data).hexdigest() for name, data in sorted(files.items())}
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise EnvironmentFault(f"cannot write a bundle at {target}: {error.strerror}") from error
    try:
        temporary.chmod(FOLDER_MODE)
        for name, data in {**files, MANIFEST: to_json({**manifest, "files": hashes})}.items():
            path = temporary / name
            if not path.parent.exists():
                path.parent.mkdir(parents=True)
                path.parent.chmod(FOLDER_MODE)
            with path.open("xb") as file:
                os.fchmod(file.fileno(), PROGRAM_MODE if name.endswith((".sh", ".sbatch")) else FILE_MODE)
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        # rename() onto an existing, non-empty folder fails: of two writers one wins.
        temporary.rename(target)
    except OSError as error:
        if target.exists():
            raise RefusedInput(f"{target} exists and a bundle is never overwritten; name another folder") from error
        raise EnvironmentFault(f"cannot write a bundle at {target}: {error.strerror}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def read_bundle(root: Path) -> LaunchBundle:
    """Reads and verifies a bundle.

    Raises:
        RefusedInput: no bundle, or one that was changed.
    """
    from colosseum.planning.plan import Plan
    from colosseum.recipe.schema import Recipe

    if problems := verify_bundle(root):
        raise RefusedInput(f"{root} is not a sound bundle: " + "; ".join(problems))
    manifest = read_object(root / MANIFEST)
    try:
        recipe = Recipe.from_data(yaml.safe_load(read_bytes(root / RECIPE)))
        plan = Plan.model_validate_json(read_bytes(root / PLAN))
    except (ValueError, TypeError, RecursionError, yaml.YAMLError, RefusedInput) as error:
        versions = manifest.get("versions")
        writer = versions.get("colosseum") if isinstance(versions, dict) else None
        raise RefusedInput(
            f"{root} was written by Colosseum {one_line(str(writer), 40)} and its recipe or plan is none that this "
            f"release, {__version__}, reads: {one_line(str(error), 300)}"
        ) from error
    return LaunchBundle(root=root, manifest=manifest, recipe=recipe, plan=plan)


def verify_bundle(root: Path) -> list[str]:
    """What differs from the manifest, one sentence each; empty = the bundle is as it was written."""
    try:
        manifest = read_object(root / MANIFEST)
    except FileNotFoundError:
        return [f"{MANIFEST} is missing"]
    except Unreadable as error:
        return [str(error)]
    if (schema := manifest.get("schema")) != MANIFEST_SCHEMA:
        return [f"{MANIFEST} has schema {str(schema)[:80]!r}, not {MANIFEST_SCHEMA!r}: another release wrote it"]
    expected = manifest.get("files")
    if not isinstance(expected, dict):
        return [f"{MANIFEST} names no files of a bundle"]
    problems = []
    present = {p.relative_to(root).as_posix() for p in root.rglob("*") if not p.is_dir()} - {MANIFEST}
    for name in sorted(present - expected.keys()):
        problems.append(f"{name} was added")
    for name, digest in sorted(expected.items()):
        if name not in present:
            problems.append(f"{name} is missing")
        elif (found := _digest(root / name)) != digest:
            problems.append(f"{name} was changed" if found else f"{name} is no regular file that can be read")
    return problems


def _digest(path: Path) -> str | None:
    """sha256 of a file; None if it is no regular file, is larger than any of ours, or may not be read."""
    try:
        return hashlib.sha256(read_bytes(path)).hexdigest()
    except (FileNotFoundError, Unreadable):
        return None
