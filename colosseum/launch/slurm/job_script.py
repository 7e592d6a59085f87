"""The job script of a Slurm run: the recipe's options and values, then ``job.bash``, which is always the same. Pure."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Sequence
from importlib import resources

from colosseum.engines.registry import engine_of
from colosseum.errors import Fault, RefusedInput
from colosseum.launch import environment
from colosseum.launch.slurm.gpus import gpu_option
from colosseum.planning.plan import Plan
from colosseum.planning.scaling import checkpoint_bytes
from colosseum.recipe.derived import image_field, image_of, nodes_and_ranks
from colosseum.recipe.schema import Recipe
from colosseum.units import parse_duration_s, slurm_time

_OPTION = re.compile(r"--([a-z][a-z-]*)(?:=(.*))?", re.DOTALL)
# Options that we set, and those that would change what the script relies on: tasks and GPUs by another name, which rank
# runs where, whether a job whose node fails is requeued, its limits, its cluster, that it is submitted at all.
_OWNED = """account array begin chdir cluster clusters constraint container container- dependency deadline distribution
    error exclude exclusive export export-file gpu-bind gpus gpus-per-node gpus-per-socket gpus-per-task gres input
    job-name kill-on-invalid-dep no-kill no-requeue nodes ntasks ntasks-per-core ntasks-per-gpu ntasks-per-node
    ntasks-per-socket ntasks-per-tres open-mode output parsable partition qos requeue reservation signal switches
    tasks-per-node test-only time time-min tres-per-task wait workdir"""
# A whole node (slurm.exclusive) already requests these; oversubscribe and its old name share would undo that.
_OF_EXCLUSIVE = "mem mem-per-cpu mem-per-gpu oversubscribe share"
_NO_HOME = "is in a home that does not exist"
# sbatch reads an option into 8 KiB; every character may need a backslash.
_LONGEST = 4000


def too_few_nodes(recipe: Recipe) -> str | None:
    """A sentence where the cluster file gives the cluster fewer nodes than the job takes."""
    wanted, cluster = nodes_and_ranks(recipe)[0], recipe.cluster
    if cluster.nodes is None or wanted <= cluster.nodes:
        return None
    return f"the job needs {wanted:,} nodes and cluster {cluster.name} has {cluster.nodes:,} (cluster.nodes)"


def faults(recipe: Recipe) -> list[Fault]:
    """Settings of the cluster section that a job script cannot have."""
    cluster, found = recipe.cluster, []
    slurm, container = cluster.slurm, cluster.container

    def fault(path: str, value: object, rule: str) -> None:
        found.append(Fault(path=f"cluster.{path}", value=value, rule=rule))

    gpus, per_node = recipe.resources.gpus, recipe.resources.gpus_per_node
    if gpus > per_node and gpus % per_node:
        below = gpus - gpus % per_node
        rule = f"must be a multiple of resources.gpus_per_node = {per_node}, or at most {per_node}"
        found.append(Fault(path="resources.gpus", value=gpus, rule=rule, nearest=(below, below + per_node)))
    for text in slurm.extra:
        match = _OPTION.fullmatch(text)
        if match is None:
            fault("slurm.extra", text, "an option must have the form --name or --name=value")
        elif owner := _meant(match[1], _OWNED):
            fault("slurm.extra", text, f"--{owner} is set from the recipe and the cluster file's own fields")
        elif slurm.exclusive and _meant(match[1], _OF_EXCLUSIVE):
            fault("slurm.extra", text, "slurm.exclusive already requests whole nodes with all their memory (--mem=0)")
    if slurm.switches_wait is not None and slurm.switches is None:
        fault("slurm.switches_wait", slurm.switches_wait, "needs slurm.switches: nothing else is waited for")
    if len(",".join(slurm.exclude)) > _LONGEST:
        fault("slurm.exclude", f"{len(slurm.exclude)} names", f"must be shorter than {_LONGEST} characters in all")
    if slurm.launch == "torchrun" and cluster.numa_binding:
        fault("numa_binding", True, "needs slurm.launch = srun: torchrun starts the ranks of a node itself")
    for mount in container.mounts if container else ():
        if "," in mount:
            fault("container.mounts", mount, "must not contain a comma: pyxis reads it as the start of the next mount")
        if mount.startswith("~"):
            fault("container.mounts", mount, _NO_HOME)
    if cluster.venv is not None and cluster.venv.startswith("~"):
        fault("venv", cluster.venv, _NO_HOME)
    image = image_of(cluster, recipe.engine)
    if container and image is None:
        fault("container.image", None, f"names no image of engine {recipe.engine} (nor does container.images)")
    if image is not None and (finding := _image_rule(image)):
        field = image_field(cluster, recipe.engine)
        found.append(Fault(path=field, value=image, rule=finding[0], nearest=finding[1]))
    if container and (cluster.venv or cluster.modules):
        fault("venv" if cluster.venv else "modules", cluster.venv or cluster.modules, "has no effect in a container")
    return found + environment.faults(recipe)


def _meant(name: str, options: str) -> str | None:
    """The first of the options that a name reaches: sbatch also takes an abbreviation (getopt_long)."""
    if name.startswith("container-"):  # a plugin's: pyxis has many
        name = "container-"
    return next((option for option in options.split() if option.startswith(name)), None)


def _image_rule(image: str) -> tuple[str, tuple[str, ...]] | None:
    """A fault of an image's name and the right spelling: pyxis takes all but ``/…`` and ``./…`` as a registry's.

    It would pull ``nvcr.io/nvidia/nemo`` from Docker Hub.
    """
    if image.startswith("/"):
        return None
    if image.startswith("~"):
        return _NO_HOME, ()
    host, slash, rest = image.removeprefix("docker://").partition("/")
    if "#" not in image and slash and ("." in host or ":" in host):
        return "a registry image must have the form REGISTRY#IMAGE", (f"{host}#{rest}",)
    return None


def render(recipe: Recipe, plan: Plan, argv: Sequence[str], *, stop_after_step: int = 0) -> str:
    """The text of ``bundle/job.sbatch``.

    Args:
        argv: what every rank runs, from inside the run folder.
        stop_after_step: the first attempt saves and leaves after this step, and is requeued; 0 = it runs to its end.
    """
    ours = resources.files("colosseum.launch")
    body = ours.joinpath("rank.bash").read_text() + "\n" + ours.joinpath("slurm", "job.bash").read_text()
    values = _values(recipe, plan, argv, stop_after_step)
    lines = ["#!/bin/bash", *_header(recipe, margin_s(recipe, plan)), "", *values, "", *_settings(recipe, plan), ""]
    return "\n".join(lines) + "\n" + body


def render_array(points: Sequence[tuple[Recipe, Plan]]) -> str:
    """The script of a job array whose folder has a link to the run folder of each recipe, named by its index.

    Raises:
        RefusedInput: one of them asks Slurm for something else than the first.
    """
    first = _header(points[0][0], 0)
    for index, (recipe, _) in enumerate(points):
        for ours, its in zip(first, _header(recipe, 0), strict=True):
            if ours != its:
                asks = f"point {index} has {its.removeprefix('#SBATCH ')} and the first "
                rule = f"all jobs of a sweep's array have the same options: {asks}{ours.removeprefix('#SBATCH ')}"
                raise RefusedInput([Fault(path="--sweep", value=None, rule=rule, where="command line")])
    header = _header(points[0][0], max(margin_s(recipe, plan) for recipe, plan in points))
    output = "#SBATCH --output="
    header = [f"{output}%a/{line.removeprefix(output)}" if line.startswith(output) else line for line in header]
    return "\n".join(["#!/bin/bash", *header, "", *_ARRAY, ""])


_ARRAY = (
    "# Every job of the array is a run of its own; its folder is linked here by its index.",
    'cd -P "$SLURM_ARRAY_TASK_ID" || exit 76',
    "exec bash bundle/job.sbatch",
)


def margin_s(recipe: Recipe, plan: Plan) -> int:
    """Seconds before the time limit at which the ranks get the signal to save and exit.

    What may come between the signal and the end: a step that has just begun (a batch of validation is shorter: its
    forward pass alone), a save under way and the last one at the cluster's bandwidth, and two minutes; ten minutes
    besides the step where the bandwidth is not known; never more than a quarter of the time limit. A slower save is
    measured, and the job script then leaves earlier (``watch_limit``).
    """
    rate = recipe.cluster.storage.write_bytes_per_s
    saves = 600 if rate is None else 2 * checkpoint_bytes(recipe) / rate + 120
    wanted = int(saves) + step_s(plan)
    return max(1, min(wanted, parse_duration_s(recipe.resources.time_limit) // 4, 65535))  # Slurm takes 16 bits


def step_s(plan: Plan) -> int:
    """Seconds that one step may take by the plan, rounded up; 0 = nothing to predict it from."""
    return math.ceil(max(plan.step_time_range_s or (plan.step_time_s or 0.0,)))


def _header(recipe: Recipe, margin: int) -> list[str]:
    slurm, (nodes, per_node) = recipe.cluster.slurm, nodes_and_ranks(recipe)
    gpus = min(recipe.resources.gpus, recipe.resources.gpus_per_node)
    options: list[tuple[str, str | None]] = [
        ("job-name", recipe.name),
        ("nodes", str(nodes)),
        ("ntasks-per-node", "1" if slurm.launch == "torchrun" else str(per_node)),
    ]
    if (asked := gpu_option(slurm.gpu_request, gpus)) is not None:
        options.append(asked)
    options.append(("time", slurm_time(parse_duration_s(recipe.resources.time_limit))))
    options += slurm.placement()
    if slurm.exclude:
        options.append(("exclude", ",".join(slurm.exclude)))
    if slurm.switches is not None:
        wait = "" if slurm.switches_wait is None else f"@{slurm_time(parse_duration_s(slurm.switches_wait))}"
        options.append(("switches", f"{slurm.switches}{wait}"))
    if slurm.exclusive:
        options += [("exclusive", None), ("mem", "0")]
    options += [
        ("output", "logs/job-%j.out"),
        ("open-mode", "append"),
        ("signal", f"B:USR1@{margin}"),
        ("requeue" if slurm.requeue else "no-requeue", None),
    ]
    for text in slurm.extra:
        name, _, value = text.removeprefix("--").partition("=")
        options.append((name, value if "=" in text else None))
    return [f"#SBATCH --{name}" if value is None else f"#SBATCH --{name}={_quoted(value)}" for name, value in options]


def _quoted(value: str) -> str:
    """A value as sbatch reads it: it knows quotes, backslashes and # (a comment), and expands nothing."""
    if re.fullmatch(r"[A-Za-z0-9_.,:@%/+=-]+", value):
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _values(recipe: Recipe, plan: Plan, argv: Sequence[str], stop_after_step: int) -> list[str]:
    """The shell variables that job.bash reads."""
    cluster, (nodes, per_node) = recipe.cluster, nodes_and_ranks(recipe)
    container, srun = cluster.container, []
    mounts: list[str] = []
    if cluster.slurm.mpi is not None:
        srun.append(f"--mpi={cluster.slurm.mpi}")
    if container is not None:
        ours = (cluster.paths.data, cluster.paths.scratch or "")
        mounts = [*container.mounts, *(f"{path}:{path}" for path in ours if path.startswith("/"))]
        srun += [f"--container-workdir={container.workdir}"] if container.workdir else []
        srun.append("--container-mount-home" if container.mount_home else "--no-container-mount-home")
        srun += ["--container-writable"] if container.writable else []
    words = {
        "umask": f"{cluster.paths.umask:04o}",
        "nodes": nodes,
        "gpus_per_node": per_node,
        "launch": cluster.slurm.launch,
        "numa_binding": int(cluster.numa_binding),
        "vboost": int(recipe.resources.vboost),
        "requeue": int(cluster.slurm.requeue),
        "max_restarts": cluster.slurm.max_restarts_without_progress,
        "margin_s": margin_s(recipe, plan),
        "step_s": step_s(plan),
        "stop_after_step": stop_after_step,
        "container": image_of(cluster, recipe.engine) or "",
        "image": engine_of(recipe.engine).about.image,
        "mounts": ",".join(mounts),
        "venv": cluster.venv or "",
        "scratch": cluster.paths.scratch or "",
    }
    lists = {"srun_options": srun, "modules": cluster.modules, "env_from": cluster.env_from, "argv": argv}
    return [f"{k}={shlex.quote(str(v))}" for k, v in words.items()] + [
        f"{name}=({' '.join(map(shlex.quote, items))})" for name, items in lists.items()
    ]


def _element(text: str) -> str:
    """A quoted element of a bash array; a bare comma would look like a slip to a reader."""
    quoted = shlex.quote(text)
    return f"'{text}'" if quoted == text and "," in text else quoted


def _settings(recipe: Recipe, plan: Plan) -> list[str]:
    """The environment of every rank, each with its reason; the site's own come last and win."""
    ours = environment.engine_settings(recipe, plan)
    lines = [f"  {_element(f'{s.name}={s.value}')}  # {s.reason}" for s in ours if s.name not in recipe.cluster.env]
    site = [f"  {_element(f'{name}={value}')}" for name, value in recipe.cluster.env.items()]
    if site:
        site.insert(0, f"  # of cluster {recipe.cluster.name}")
    return ["settings=(", *lines, *site, ")"]
