"""The LaunchBundle on disk: a folder that holds all a run needs but data, checkpoint and image. Never changes."""

from __future__ import annotations

import hashlib
import itertools
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
from colosseum.recipe.scan import EXPONENT, scan
from colosseum.records import whole
from colosseum.terminal import one_line

if TYPE_CHECKING:  # who lists a thousand runs opens no bundle
    from colosseum.planning.plan import Plan
    from colosseum.recipe.schema import Recipe

MANIFEST_SCHEMA = "colosseum.manifest/1"
MANIFEST, RECIPE, PLAN, ENV = "manifest.json", "recipe.yaml", "plan.json", "env.json"
ENV_SCHEMA = "colosseum.env/1"
LOCAL_SCRIPT, SLURM_SCRIPT = SCRIPTS = ("launch.sh", "job.sbatch")
_MAX_FILES = 64
"""Files and folders of a bundle; ours have about ten."""
MAX_NODES_WRITTEN = 100_000
"""Values of recipe.yaml, which holds all defaults besides what a recipe's files say."""
_SHOWN = 10


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


def write_bundle(target: Path, files: Mapping[str, bytes], manifest: Mapping[str, Any], *, umask: int = 0o027) -> None:
    """Writes ``files`` and the manifest (its ``files`` filled in here) at ``target``, all or nothing.

    Args:
        umask: mode bits that nothing of it has, whatever the process' own umask (``cluster.paths.umask``).

    Raises:
        RefusedInput: ``target`` exists: a bundle is never overwritten.
        EnvironmentFault: the disk is full or the folder not writable.
    """
    if target.exists():
        raise RefusedInput(f"{target} exists and bundles are never overwritten; choose another folder")
    hashes = {name: hashlib.sha256(data).hexdigest() for name, data in sorted(files.items())}
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise EnvironmentFault(f"cannot write a bundle at {target}: {error.strerror}") from error
    try:
        temporary.chmod(0o777 & ~umask)
        for name, data in {**files, MANIFEST: to_json({**manifest, "files": hashes})}.items():
            path = temporary / name
            for folder in reversed(path.relative_to(temporary).parents[:-1]):
                if not (temporary / folder).exists():
                    (temporary / folder).mkdir()
                    (temporary / folder).chmod(0o777 & ~umask)
            with path.open("xb") as file:
                os.fchmod(file.fileno(), (0o777 if name.endswith((".sh", ".sbatch")) else 0o666) & ~umask)
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        # rename() onto an existing, non-empty folder fails: of two writers one wins.
        temporary.rename(target)
    except OSError as error:
        if target.exists():
            raise RefusedInput(f"{target} exists and bundles are never overwritten; choose another folder") from error
        raise EnvironmentFault(f"cannot write a bundle at {target}: {error.strerror}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def read_bundle(root: Path) -> LaunchBundle:
    """Reads and verifies a bundle.

    Raises:
        RefusedInput: no bundle, one that was changed, or one whose files are not what they must be.
    """
    from colosseum.planning.plan import Plan
    from colosseum.recipe.schema import Recipe

    if problems := verify_bundle(root):
        raise RefusedInput(f"{root} is not a valid bundle: " + "; ".join(problems))
    manifest = read_object(root / MANIFEST)
    name = RECIPE
    try:
        text = read_bytes(root / RECIPE).decode()
        scanned = scan(text, RECIPE, max_nodes=MAX_NODES_WRITTEN)
        if scanned.faults:
            raise RefusedInput(scanned.faults)
        recipe = Recipe.from_data(scanned.data)
        name = PLAN
        plan = Plan.model_validate_json(read_bytes(root / PLAN))
        name = ENV
        if not _is_env(read_object(root / ENV)):
            raise ValueError("it does not contain a list of variables")
    except (ValueError, RefusedInput, Unreadable) as error:
        raise RefusedInput(f"{root}: {name} cannot be read{_by_whom(manifest)}: {_first(error)}") from error
    return LaunchBundle(root=root, manifest=manifest, recipe=recipe, plan=plan)


def _by_whom(manifest: Mapping[str, Any]) -> str:
    """The release that wrote a bundle, where it is another one."""
    writer = manifest["versions"].get("colosseum")
    if writer == __version__:
        return ""
    return f" (the bundle was written by Colosseum {one_line(str(writer), 40)}; this release is {__version__})"


def _first(error: Exception) -> str:
    """The first of what is wrong with a document, in one line."""
    from pydantic import ValidationError

    from colosseum.recipe.wording import first_of

    if isinstance(error, RefusedInput):
        return one_line(error.faults[0].sentence(), 300)
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8"
    if isinstance(error, ValidationError):
        return first_of(error)
    return one_line(str(error), 300)


def verify_bundle(root: Path) -> list[str]:
    """What differs from the manifest, one sentence each; empty = every file is there and has its checksum.

    Links are not followed and only regular files are opened. Whether the scripts are those of the recipe is for
    ``launch/bundles/verify.py`` to say.
    """
    try:
        present, problems = _walk(root)
        manifest = read_object(root / MANIFEST)
    except FileNotFoundError:
        return [f"{MANIFEST} is missing"]
    except Unreadable as error:
        return [str(error)]
    if (schema := manifest.get("schema")) != MANIFEST_SCHEMA:
        shown = one_line(repr(schema), 80)
        return [f"{MANIFEST} has schema {shown}, not {MANIFEST_SCHEMA!r}: another release wrote it"]
    if (wrong := _wrong_field(manifest)) is not None:
        return [f"{MANIFEST} is damaged: {wrong}"]
    expected = manifest["files"]
    needed = {RECIPE, PLAN, ENV, *(SCRIPTS if not expected.keys() & set(SCRIPTS) else ())}
    if missing := sorted(needed - expected.keys()):
        problems.append(f"{MANIFEST} does not list {' or '.join(missing)}, which every bundle has")
    for name in sorted(present - expected.keys() - {MANIFEST}):
        problems.append(f"{one_line(name, 100)} was added")
    for name, digest in sorted(expected.items()):
        if name not in present:
            problems.append(f"{one_line(name, 100)} is missing")
        elif (found := _digest(root / name)) != digest:
            problems.append(f"{one_line(name, 100)} {'was changed' if found else 'cannot be read'}")
    more = len(problems) - _SHOWN
    return problems if more <= 0 else [*problems[:_SHOWN], f"and {more:,} more"]


def _walk(root: Path) -> tuple[set[str], list[str]]:
    """Names of the regular files of a bundle, and a sentence for each thing that is neither file nor folder.

    Raises:
        Unreadable: a folder cannot be read, or there are more files or levels than a bundle has.
    """
    present, problems, waiting, seen = set[str](), list[str](), [root], 0
    while waiting:
        folder = waiting.pop()
        try:
            entries = list(itertools.islice(os.scandir(folder), _MAX_FILES + 1))
        except OSError as error:
            raise Unreadable(f"{folder.name} cannot be read: {error.strerror}") from error
        seen += len(entries)
        for entry in entries:
            path = Path(entry.path)
            name = path.relative_to(root).as_posix()
            if entry.is_dir(follow_symlinks=False):
                waiting.append(path)
            elif entry.is_file(follow_symlinks=False):
                present.add(name)
            else:
                kind = "a link" if entry.is_symlink() else "no regular file"
                problems.append(f"{one_line(name, 100)} is {kind}: a bundle contains regular files only")
        if seen > _MAX_FILES:
            raise Unreadable(f"it has more than {_MAX_FILES} files and folders, too many for a bundle")
    return present, sorted(problems)


def _wrong_field(manifest: Mapping[str, Any]) -> str | None:
    """What of a manifest is not of the form in docs/contracts.md; None = nothing."""

    def texts(value: Any) -> bool:
        return isinstance(value, dict) and all(v is None or isinstance(v, str) for v in value.values())

    def record(value: Any, **types: type) -> bool:
        return isinstance(value, dict) and {k: type(v) for k, v in value.items()} == types

    lineage, git, steps = manifest.get("lineage"), manifest.get("git"), manifest.get("total_steps")
    holds = {
        "files": texts(manifest.get("files")) and None not in manifest["files"].values(),
        "recipe_hash": isinstance(manifest.get("recipe_hash"), str),
        "versions": texts(manifest.get("versions")),
        "git": git is None or record(git, commit=str, dirty=bool),
        "container": manifest.get("container") is None or texts(manifest["container"]),
        "lineage": lineage is None or (record(lineage, run=str, step=int) and whole(lineage["step"]) is not None),
        "total_steps": steps is None or whole(steps) is not None,
    }
    return next((f"{name} is missing or not of the expected form" for name, right in holds.items() if not right), None)


def _is_env(found: Mapping[str, Any]) -> bool:
    """Whether env.json has its form: a list of name, value and reason."""
    variables = found.get("variables")
    return (
        found.get("schema") == ENV_SCHEMA
        and isinstance(variables, list)
        and all(
            isinstance(v, dict)
            and v.keys() == {"name", "value", "reason"}
            and all(isinstance(t, str) for t in v.values())
            for v in variables
        )
    )


def _digest(path: Path) -> str | None:
    """sha256 of a file; None if it is no regular file, is larger than any of ours, or may not be read."""
    try:
        return hashlib.sha256(read_bytes(path)).hexdigest()
    except (FileNotFoundError, Unreadable):
        return None
