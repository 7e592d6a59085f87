"""``colosseum preflight``: checks of this machine or of a cluster's nodes, and the hooks that run them in Slurm."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from colosseum.cli.output import Cluster, Json, Runs, emit, say
from colosseum.errors import EnvironmentFault, Fault, RefusedInput, RunFailed
from colosseum.health import records
from colosseum.health.exclude import FOLDER
from colosseum.health.finding import Site
from colosseum.health.preflight import FULL, FULL_S, LIGHT, LIGHT_S
from colosseum.health.preflight import preflight as run_checks
from colosseum.health.report import checks_text
from colosseum.launch.runs.jobs import runs_folder


def preflight(
    nodes: Annotated[
        str | None,
        typer.Option("--nodes", metavar="LIST", help="Nodes of the cluster, such as n[1-4]; `idle` = all idle ones."),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Also DCGM's quick diagnostic.")] = False,
    gpus: Annotated[int | None, typer.Option("--gpus", min=0, help="GPUs that each node must have.")] = None,
    local: Annotated[Path | None, typer.Option("--local", metavar="DIR", help="Local disk. Default: /tmp.")] = None,
    image: Annotated[Path | None, typer.Option("--image", metavar="FILE", help="Container image to look for.")] = None,
    install_prolog: Annotated[
        Path | None,
        typer.Option("--install-prolog", metavar="DIR", help="Write prolog.sh and epilog.sh for slurm.conf there."),
    ] = None,
    cluster: Cluster = None,
    runs: Runs = None,
    as_json: Json = False,
) -> None:
    """Check CPUs, memory, clock, disks, GPUs and links: of this machine, or of a cluster's nodes. Takes under 10 s."""
    root = runs_folder(runs, cluster).absolute()
    site = Site(local=local or Site().local, shared=root if root.is_dir() else None, image=image, gpus=gpus)
    health = root / FOLDER if root.is_dir() else None
    words = _words(site, health, full=full)
    if install_prolog is not None:
        _install(install_prolog, words)
        return
    found = _here(site, health, full=full) if nodes is None else _there(nodes, cluster, words)
    failed = [report["node"] for report in found if any(f["passed"] is False for f in report["findings"])]
    failure = RunFailed(f"a check failed on {', '.join(failed)}") if failed else None
    result = {"schema": "colosseum.preflight/1", "passed": not failed, "nodes": found}
    emit(as_json, result, lambda: checks_text(found), failure)


def _words(site: Site, health: Path | None, *, full: bool) -> list[str]:
    words = ["--local", str(site.local)]
    words += ["--shared", str(site.shared)] if site.shared else []
    words += ["--health", str(health)] if health else []
    words += ["--image", str(site.image)] if site.image else []
    words += ["--gpus", str(site.gpus)] if site.gpus is not None else []
    return [*words, *(["--full"] if full else [])]


def _install(folder: Path, words: list[str]) -> None:
    from colosseum.health.hooks import install

    try:
        written = install(folder, words)
    except OSError as error:
        raise EnvironmentFault(f"cannot write in {folder}: {error.strerror}") from error
    for path in written:
        say(f"wrote {path}")
    say(f"slurm.conf: Prolog={written[0]} Epilog={written[1]} SchedulerParameters=nohold_on_prolog_fail")


def _here(site: Site, health: Path | None, *, full: bool) -> list[dict[str, Any]]:
    before = records.figures_before(health, os.uname().nodename)
    known = Site(local=site.local, shared=site.shared, image=site.image, gpus=site.gpus, before=before)
    report = run_checks(known, FULL if full else LIGHT, FULL_S if full else LIGHT_S)
    if health is not None:
        try:
            records.write(health, report)
        except OSError as error:
            raise EnvironmentFault(f"cannot write in {health}: {error.strerror}") from error
    return [report.as_json()]


def _there(nodes: str, cluster: str | None, words: list[str]) -> list[dict[str, Any]]:
    from colosseum.launch.slurm.node_checks import check_nodes, names
    from colosseum.recipe.load import load_cluster

    if "--shared" not in words:
        rule = "the folder of runs does not exist: nodes keep their history there"
        raise RefusedInput([Fault(path="--runs", value=nodes, rule=rule, where="command line")])
    site = load_cluster(cluster)
    return check_nodes(site, names(site, None if nodes == "idle" else nodes), words)
