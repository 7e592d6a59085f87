"""A chart of a blend: shares by tag beside those of the base."""

from __future__ import annotations

from pathlib import Path

from colosseum.atomic import replacing
from colosseum.data.blending.report import Report
from colosseum.errors import INSTALL_DATA, EnvironmentFault, Fault, RefusedInput
from colosseum.terminal import clean

TAGS = 25
SUFFIXES = (".png", ".svg", ".pdf")


def write_picture(report: Report, path: Path) -> None:
    """Raises RefusedInput: the suffix is not of a picture. EnvironmentFault: matplotlib is missing, or no room."""
    if path.suffix not in SUFFIXES:
        raise RefusedInput([Fault(path="--picture", value=str(path), rule="must end in", nearest=SUFFIXES)])
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise EnvironmentFault(f"a picture needs matplotlib: {INSTALL_DATA}") from error
    tags = list(report.tags.items())[:TAGS]
    figure = Figure(figsize=(8, 1.4 + 0.42 * len(tags)), layout="constrained")
    axes = figure.subplots()
    places = range(len(tags))
    axes.barh([p - 0.2 for p in places], [100 * s for _, (_, s, _) in tags], 0.4, label="blend", color="#1f6feb")
    axes.barh([p + 0.2 for p in places], [100 * b for _, (_, _, b) in tags], 0.4, label="base", color="#b8c4d0")
    # "$" would begin a formula.
    axes.set_yticks(places, [clean(tag)[:40].replace("$", r"\$") for tag, _ in tags])
    axes.invert_yaxis()
    axes.set_xlabel("share of tokens [%]")
    kl = "infinite" if report.kl_nats is None else f"{report.kl_nats:.4f} nats"
    axes.set_title(f"{report.tokens / 1e9:,.4g} B tokens, KL(blend || base) {kl}", fontsize=11)
    axes.legend(loc="lower right", frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    try:
        with replacing(path) as temporary:
            figure.savefig(temporary, dpi=150)
    except OSError as error:
        raise EnvironmentFault(f"cannot write {path}: {error.strerror or error}") from error
