"""``recipes/*.yaml`` -> Recipe: Hydra orders the files of a recipe, pydantic checks the values.

Only this file imports hydra. We use its defaults list only (which files, in which order, in which package). Files are
read by ``scan.py`` as data with size limits, so no ``_target_``, resolver, search path or plugin can run.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from hydra._internal.config_repository import ConfigRepository
from hydra._internal.defaults_list import DefaultsList, create_defaults_list
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.types import Override, OverrideType, ValueType
from hydra.errors import HydraException, MissingConfigException
from hydra.plugins.config_source import ConfigResult, ConfigSource
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from colosseum.errors import Fault, RefusedInput
from colosseum.recipe import site
from colosseum.recipe.check import check, with_location
from colosseum.recipe.cluster import Cluster
from colosseum.recipe.derived import image_field
from colosseum.recipe.override import (
    COMMAND_LINE,
    DEFAULT,
    GROUPS,
    Overrides,
    change,
    merge,
    nearest,
    parse_overrides,
    resolve_references,
)
from colosseum.recipe.provenance import Provenance, Setting, default_of
from colosseum.recipe.scan import Scanned, read_text, scan
from colosseum.recipe.schema import Recipe

__all__ = ["Loaded", "Setting", "cluster_names", "describe_recipe", "load", "shipped_recipes"]

MAX_FILES = 100
CLUSTER_VARIABLE = "COLOSSEUM_CLUSTER"
_PRIMARY = "_recipe_"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*(?:/[A-Za-z0-9_][A-Za-z0-9._-]*)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A valid recipe and the origin of each of its values."""

    recipe: Recipe
    origins: Mapping[str, tuple[Setting, ...]]
    """Dotted leaf path -> every setting of it, in order; the last one wins."""
    warnings: tuple[str, ...]


def load(name: str, overrides: Sequence[str] = (), *, cluster: str | None = None) -> Loaded:
    """Compose one recipe, apply the overrides, resolve references and check it.

    Args:
        name: a shipped recipe (``family/stem``) or a path ending in .yaml or .yml.
        overrides: ``key=VALUE``, ``group=name`` and ``~key`` arguments.
        cluster: name of a cluster file; default COLOSSEUM_CLUSTER, then the recipe's own, then ``local``.

    Raises:
        RefusedInput: with every fault found.
    """
    try:
        return _load(name, overrides, cluster)
    except RefusedInput as refused:
        raise RefusedInput([site.without_secret(fault) for fault in refused.faults], subject=refused.subject) from None


def _load(name: str, overrides: Sequence[str], cluster: str | None) -> Loaded:
    words, faults = parse_overrides(overrides)
    chosen = words.choices.get("cluster")
    if cluster is not None and chosen is not None and cluster != chosen:
        faults.append(Fault(path="cluster", value=chosen, rule=f"contradicts --cluster {cluster}", where=COMMAND_LINE))
    choices = dict(words.choices)
    places = dict.fromkeys(choices, COMMAND_LINE)
    if wanted := chosen or cluster or os.environ.get(CLUSTER_VARIABLE):
        choices["cluster"] = wanted
        places["cluster"] = COMMAND_LINE if chosen or cluster else f"${CLUSTER_VARIABLE}"
    repository = _Repository(_search_path(name), _user_file(name))
    data, provenance = _compose(repository, _config_name(name, repository), choices, places, faults)
    notes = _apply(words, data, provenance, faults)
    faults += [
        with_location(fault, provenance) for fault in resolve_references(data, lambda path: default_of(path, data))
    ]
    try:
        recipe = check(data, provenance, faults)
    except RefusedInput as refused:
        raise RefusedInput([_as_typed(f, words.typed) for f in refused.faults], subject=refused.subject) from None
    origins = provenance.origins()
    if ineffective := _ineffective_image(recipe, origins):
        raise RefusedInput([ineffective])
    return Loaded(recipe=recipe, origins=origins, warnings=(*repository.warnings, *notes))


def _ineffective_image(recipe: Recipe, origins: Mapping[str, tuple[Setting, ...]]) -> Fault | None:
    """``cluster.container.image`` on the command line, where the cluster file names the engine's own image."""
    typed, used = "cluster.container.image", image_field(recipe.cluster, recipe.engine)
    if used == typed or typed not in origins or origins[typed][-1].where != COMMAND_LINE:
        return None
    if origins[used][-1].where == COMMAND_LINE:
        return None
    rule = f"has no effect with engine {recipe.engine}: set {used}"
    return Fault(path=typed, value=origins[typed][-1].value, rule=rule, where=COMMAND_LINE)


def load_cluster(name: str | None = None) -> Cluster:
    """Read a cluster file; None = COLOSSEUM_CLUSTER, else ``local``.

    Raises:
        RefusedInput: the file does not exist or is not valid.
    """
    return load("generic", cluster=name).recipe.cluster


def shipped_recipes() -> tuple[str, ...]:
    """``family/stem`` of every shipped recipe (and ``generic``), sorted, without campaigns."""
    root = _recipes()
    names = (p.relative_to(root).with_suffix("").as_posix() for p in root.rglob("*.yaml"))
    return tuple(sorted(n for n in names if not n.startswith("campaigns/")))


def cluster_names() -> tuple[str, ...]:
    """Shipped cluster files and the user's own."""
    found: set[str] = set()
    for root in (_conf(), _user_config()):
        try:
            found |= {p.stem for p in (root / "cluster").glob("*.yaml")}
        except OSError:  # unreadable home directory
            continue
    return tuple(sorted(found))


def describe_recipe(name: str) -> str:
    """The first comment of a recipe's file that is not a ``# @package`` line; empty when it has none."""
    path = _user_file(name) or _recipes() / f"{name}.yaml"
    for line in read_text(path, _shown(path)).splitlines():
        text = line.strip()
        if text and not text.startswith("#"):
            return ""
        comment = text.lstrip("#").strip()
        if comment and not comment.startswith("@"):
            return comment
    return ""


# --- files -------------------------------------------------------------------------------------------------------


def _conf() -> Path:
    return Path(str(files("colosseum.conf")))


def _recipes() -> Path:
    return Path(str(files("colosseum.recipes")))


def _user_config() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")  # noqa: PTH111, PTH118
    return Path(base) / "colosseum"


def _user_file(name: str) -> Path | None:
    return Path(name) if name.endswith((".yaml", ".yml")) else None


def _search_path(name: str) -> list[Path]:
    """Folders that hold recipes and groups other than ``cluster``, first match wins."""
    user = _user_file(name)
    return [*([user.parent] if user else []), _conf(), _recipes()]


def _config_name(name: str, repository: _Repository) -> str:
    if repository.primary is not None:
        return _PRIMARY
    if name not in shipped_recipes():
        name = name[:200]
        rule = f"{name!r}: no such recipe; `colosseum recipes` lists them; the path of your own file must end in .yaml"
        raise RefusedInput([Fault(path="", value=name, rule=rule, nearest=nearest(name, shipped_recipes()))])
    return name


def _shown(path: Path) -> str:
    """The name of a file in messages: ``conf/…`` or ``recipes/…`` for shipped files, else the path as given."""
    for root, label in ((_conf(), "conf"), (_recipes(), "recipes")):
        if path.is_relative_to(root):
            return f"{label}/{path.relative_to(root).as_posix()}"
    return str(path)


class _Repository(ConfigRepository):  # type: ignore[misc]  # untyped in hydra
    """Hydra's view of our folders; each file is read once, as data with size limits."""

    def __init__(self, roots: list[Path], primary: Path | None) -> None:
        self.roots = roots
        self.primary = primary
        self.lenient = False
        self.loads = 0
        self.scanned: dict[str, Scanned] = {}
        self.names: dict[str, str] = {}
        self.results: dict[str, ConfigResult] = {}
        self.warnings: list[str] = []

    def find(self, config_path: str) -> Path | None:
        """The file of ``group/name``."""
        if config_path == _PRIMARY:
            return self.primary
        if not _NAME.fullmatch(config_path):
            return None
        found: list[Path] = []
        for root in self._roots_of(config_path.partition("/")[0]):
            path = root / f"{config_path}.yaml"
            if _is_file(path):
                found.append(path)
        shipped = (_conf(), _recipes())
        if len(found) > 1 and not any(found[0].is_relative_to(root) for root in shipped):
            warning = f"{_shown(found[0])} is used instead of the shipped {_shown(found[1])}"
            if warning not in self.warnings and any(found[1].is_relative_to(root) for root in shipped):
                self.warnings.append(warning)
        return found[0] if found else None

    def folder(self, config_path: str) -> Path:
        """Where the file of ``group/name`` lies."""
        found = self.find(config_path)
        assert found is not None, config_path
        return found.parent.absolute()

    def _roots_of(self, group: str) -> list[Path]:
        """Cluster files come from the user's configuration folder or conf/; other groups never from the former."""
        if group == "cluster":
            return [_user_config(), _conf()]
        return [root for root in self.roots if root != _user_config()]

    def config_exists(self, config_path: str) -> bool:
        return self.find(config_path) is not None

    def group_exists(self, config_path: str) -> bool:
        return config_path.lstrip("/") in GROUPS

    def get_group_options(self, group_name: str, results_filter: ObjectType | None = ObjectType.CONFIG) -> list[str]:
        options: set[str] = set()
        for root in self._roots_of(group_name):
            try:
                options |= {p.stem for p in (root / group_name).glob("*.yaml")}
            except OSError:
                continue
        return sorted(options)

    def get_sources(self) -> list[ConfigSource]:
        return []

    def load_config(self, config_path: str) -> ConfigResult | None:
        """Called by Hydra for every entry of a defaults list."""
        self.loads += 1
        if self.loads > 4 * MAX_FILES:
            raise RefusedInput("the defaults list includes itself, or more than 100 files")
        if config_path not in self.results:
            path = self.find(config_path)
            if path is None:
                return self._result(config_path, None, []) if self.lenient else None
            self.results[config_path] = self._read(config_path, path)
        return self.results[config_path]

    def _read(self, config_path: str, path: Path) -> ConfigResult:
        shown = _shown(path)
        text = read_text(path, shown)
        scanned = scan(text, shown)
        data = {} if scanned.data is None else scanned.data
        if not isinstance(data, dict):
            rule = "a recipe or group file must be a section of keys"
            raise RefusedInput([Fault(path="", value=None, rule=rule, where=f"{shown}:1")])
        faults = list(scanned.faults)
        line = scanned.lines.get(("defaults",), 0) + 1
        for key in data:
            if key.startswith("hydra"):
                where = f"{shown}:{scanned.lines.get((key,), 0) + 1}"
                faults.append(Fault(path=key, value=None, rule="keys that start with hydra are refused", where=where))
        defaults = data.pop("defaults", [])
        faults += _defaults_faults(defaults, f"{shown}:{line}")
        if any(fault.path.split(".")[0] == "defaults" for fault in faults):
            raise RefusedInput(faults)
        self.scanned[config_path] = Scanned(data=data, lines=scanned.lines, faults=tuple(faults))
        self.names[config_path] = shown
        try:
            package = ConfigSource._get_header_dict(text)["package"]
        except ValueError as error:
            raise RefusedInput([Fault(path="", value=None, rule=str(error)[:200], where=f"{shown}:1")]) from None
        return self._result(config_path, package, defaults)

    def _result(self, config_path: str, package: str | None, defaults: list[Any]) -> ConfigResult:
        if defaults and "_self_" not in defaults:
            defaults = [*defaults, "_self_"]  # Hydra does the same, with a warning
        return ConfigResult(
            provider="colosseum",
            path=config_path,
            config=OmegaConf.create({}),
            header={"package": package},
            defaults_list=self._create_defaults_list(config_path, OmegaConf.create(defaults)),
        )


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _defaults_faults(defaults: Any, where: str) -> list[Fault]:
    """A defaults list may hold names and ``group: name`` pairs only, no Hydra syntax."""
    rule = "a defaults list holds `name` and `group: name` entries of letters, digits, dots, - and _"
    if not isinstance(defaults, list):
        return [Fault(path="defaults", value=None, rule=rule, where=where)]
    faults = []
    for i, entry in enumerate(defaults):
        pairs = list(entry.items()) if isinstance(entry, dict) else [("", entry)]
        ok = len(pairs) == 1 and _legal_entry(*pairs[0])
        if not ok:
            faults.append(Fault(path=f"defaults.{i}", value=str(entry)[:200], rule=rule, where=where))
    return faults


def _legal_entry(key: str, value: Any) -> bool:
    group = re.sub(r"^(?:(?:optional|override) )*/?", "", key)
    if group and not re.fullmatch(r"[A-Za-z0-9_/-]+(?:@[A-Za-z0-9_.]+)?", group):
        return False
    if value is None and group:
        return True
    if not isinstance(value, str) or not re.fullmatch(r"/?[A-Za-z0-9_./-]+(?:@[A-Za-z0-9_.]+)?", value):
        return False
    return ".." not in value and not group.startswith("hydra") and not value.lstrip("/").startswith("hydra")


# --- composing ---------------------------------------------------------------------------------------------------


def _compose(
    repository: _Repository, config: str, choices: dict[str, str], places: Mapping[str, str], faults: list[Fault]
) -> tuple[dict[str, Any], Provenance]:
    """Merge the files of the defaults list in Hydra's order; unknown choices are added to ``faults``."""
    repository.lenient = True
    known = _defaults_list(repository, config, []).overrides.known_choices
    repository.lenient = False
    if known.get("cluster") is None:
        choices.setdefault("cluster", "local")
    if repository.primary is not None:
        cluster = choices.get("cluster") or str(known["cluster"])
        faults += site.cluster_file_beside(repository.primary.parent, cluster, (_user_config(), _conf()))
    picks = []
    for group, name in choices.items():
        if not _NAME.fullmatch(name) or repository.find(f"{group}/{name}") is None:
            options = repository.get_group_options(group)
            rule = f"no such {group}; available: {', '.join(options)}" if options else f"no such {group}"
            place = places.get(group, "")
            faults.append(Fault(path=group, value=name[:200], rule=rule, nearest=nearest(name, options), where=place))
            continue
        kind, key = (OverrideType.CHANGE, group) if group in known else (OverrideType.ADD, f"/{group}")
        picks.append(Override(kind, key, ValueType.ELEMENT, name, input_line=f"{group}={name}"))
    data: dict[str, Any] = {}
    provenance = Provenance()
    added = {group for group in choices if group not in known}
    layers = _defaults_list(repository, config, picks).defaults
    # A group that the recipe does not list is merged first: the recipe's own values override it, as for a listed group.
    for default in sorted(layers, key=lambda layer: layer.override_key not in added):
        scanned = repository.scanned[default.config_path]
        shown = repository.names[default.config_path]
        prefix = tuple(filter(None, (default.package or "").split(".")))
        layer: Any = scanned.data
        for part in reversed(prefix):
            layer = {part: layer}
        if not site.is_cluster_file(default.config_path):
            faults += site.remove_cluster_section(layer, prefix, scanned.lines, shown)
        elif isinstance(layer, dict):
            site.anchor(layer.get("cluster"), repository.folder(default.config_path))
        merge(data, layer)
        provenance.record(prefix, scanned.data, {p: f"{shown}:{line + 1}" for p, line in scanned.lines.items()})
    for scanned in repository.scanned.values():
        faults += scanned.faults
    return data, provenance


def _defaults_list(repository: _Repository, config: str, picks: list[Override]) -> DefaultsList:
    """The files of a recipe in order, each with its package; the only call of Hydra's internals.

    Raises:
        RefusedInput: a file is missing or not valid, or the list contradicts itself.
    """
    repository.loads = 0
    try:
        return create_defaults_list(
            repo=repository, config_name=config, overrides_list=picks, prepend_hydra=False, skip_missing=False
        )
    except MissingConfigException as error:
        missing = str(error.missing_cfg_file)
        if config == missing:
            rule, value, near = "no such file", str(repository.primary), nearest("", ())
        else:
            rule, value = "the defaults list names a file that does not exist", missing
            group, _, stem = missing.rpartition("/")
            near = nearest(stem, error.options or repository.get_group_options(group))
        raise RefusedInput([Fault(path="defaults", value=value[:200], rule=rule, nearest=near)]) from None
    except RecursionError:
        raise RefusedInput("the defaults list includes itself") from None
    except (HydraException, OmegaConfBaseException, ValueError, TypeError, AssertionError) as error:
        reason = (str(error) or type(error).__name__).replace(_PRIMARY, str(repository.primary)).splitlines()[0]
        raise RefusedInput(
            [Fault(path="defaults", value=None, rule=f"the defaults list is wrong: {reason[:300]}")]
        ) from None


def _as_typed(fault: Fault, typed: Mapping[str, str]) -> Fault:
    """The fault with the text from the command line, not with the number that YAML reads from it."""
    if fault.where != COMMAND_LINE or typed.get(fault.path) in (None, str(fault.value)):
        return fault
    return dataclasses.replace(fault, value=typed[fault.path])


def _apply(words: Overrides, data: dict[str, Any], provenance: Provenance, faults: list[Fault]) -> list[str]:
    """Applies the command line; returns notes on what follows from it."""
    before = data.get("optimizer")
    lr, min_lr = (before.get(name) if isinstance(before, dict) else None for name in ("lr", "min_lr"))
    for path, value in words.changes:
        try:
            change(data, path, value)
        except RefusedInput as refused:
            faults += refused.faults
            continue
        if value is DEFAULT:
            provenance.forget(path)
        else:
            provenance.record(path, value, COMMAND_LINE)
    paths = [".".join(path) for path, _ in words.changes]
    if "optimizer.lr" not in paths or {"optimizer", "optimizer.min_lr"} & {*paths}:
        return []
    return _keep_ratio(lr, min_lr, data["optimizer"], provenance)


def _keep_ratio(lr: Any, min_lr: Any, optimizer: dict[str, Any], provenance: Provenance) -> list[str]:
    """Scales ``min_lr`` with an ``lr`` that was set alone: a schedule that ends at a tenth of its peak still does.

    Args:
        lr: of the recipe's files, as is ``min_lr``.
    """
    old, floor, new = (_number(value) for value in (lr, min_lr, optimizer.get("lr")))
    if old is None or floor is None or new is None or not 0 < floor <= old or not 0 < new < math.inf or new == old:
        return []
    optimizer["min_lr"] = float(f"{floor / old * new:.6g}")
    provenance.record(("optimizer", "min_lr"), optimizer["min_lr"], f"{COMMAND_LINE} (ratio to lr)")
    ratio = f"its ratio to optimizer.lr, {floor / old:.3g}"
    return [f"optimizer.min_lr = {optimizer['min_lr']:g} keeps {ratio}; set it as well to choose another value"]


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
