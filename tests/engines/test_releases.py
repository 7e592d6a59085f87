"""The image of a cluster by engine, and its release against those that the engine was verified with."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from colosseum.engines.registry import ENGINES
from colosseum.engines.releases import image_warnings, release_of
from colosseum.errors import RefusedInput
from colosseum.launch.runs.submit import prepare
from colosseum.recipe.base import EngineName
from colosseum.recipe.derived import image_of
from colosseum.recipe.load import load, load_cluster

CPT = ("checkpoint.load=[weights]", "tokenizer.kind=tokenizer_json", "tokenizer.path=/t/tokenizer.json")


@pytest.mark.parametrize(
    ("image", "release"),
    [
        ("nvcr.io#nvidia/nemo:25.04", "25.04"),
        ("docker://nvcr.io#nvidia/nemo:25.04.02", "25.04"),
        ("nvcr.io#nvidia/nemo:25.11.nemotron_3_nano", "25.11"),
        ("nvcr.io#nvidia/nemo:25.02@sha256:" + 64 * "0", "25.02"),
        ("/images/nvidia+nemo+24.07.sqsh", "24.07"),  # as enroot names it
        ("/images/nemo-26.02.sqsh", "26.02"),
        ("/images/nemo.sqsh", None),
        ("nvcr.io#nvidia/nemo:dev", None),
        ("nvcr.io#nvidia/nemo-curator:26.02", None),
        ("nvcr.io#nvidia/pytorch:25.09-py3", None),
        ("/images/mynemo-26.02.sqsh", None),
    ],
)
def test_a_nemo_image_says_its_release(image: str, release: str | None) -> None:
    assert release_of(image) == release


def test_every_shipped_image_is_of_a_verified_release() -> None:
    cluster = load_cluster("dgx-h100")
    for engine in get_args(EngineName):
        releases, image = ENGINES[engine].about.releases, image_of(cluster, engine)
        assert image is not None
        if releases is not None:
            assert release_of(image) in releases
            assert release_of(ENGINES[engine].about.image) in releases
    assert release_of(str(image_of(cluster, "mcore"))) is None, "NVIDIA's images do not hold this package"


@pytest.mark.parametrize(
    ("engine", "release", "warned"),
    [
        ("nemo1", "25.04", True),
        ("nemo1", "24.05", True),
        ("nemo1", "24.07", False),
        ("nemo1", "25.02", False),
        ("nemo2", "25.11", False),
        ("nemo2", "26.02", True),
        ("megatron-lm", "25.04", True),
        ("mcore", "25.04", False),
    ],
)
def test_a_release_outside_the_verified_ones_is_one_line_that_names_both(
    engine: str, release: str, warned: bool
) -> None:
    image = f"nvcr.io#nvidia/nemo:{release}"
    words = [f"engine={engine}", *CPT, "~cluster.container.images", f"cluster.container.image={image}"]
    found = image_warnings(load("generic", words, cluster="dgx-h100").recipe)
    assert len(found) == warned
    if warned:
        assert image in found[0] and str(ENGINES[engine].about.releases) in found[0]


def test_each_engine_s_job_starts_from_its_own_image(tmp_path: Path) -> None:
    images = {}
    for engine in get_args(EngineName):
        words = [f"engine={engine}", *CPT, "~cluster.container.images"]
        words.append("cluster.container.images={nemo1: nvcr.io#a/nemo1, nemo2: b/nemo2}")
        made = prepare(load("generic", words, cluster="dgx-h100").recipe, tmp_path)
        (images[engine],) = re.findall(r"^container=(.*)$", made.script, re.MULTILINE)
        assert made.manifest["container"]["image"] == images[engine].strip("'")
    ours = "/lustre/colosseum/images/colosseum-mcore.sqsh"
    assert images == {
        "mcore": ours,
        "megatron-lm": ours,
        "bridge": ours,
        "nemo1": "'nvcr.io#a/nemo1'",
        "nemo2": "b/nemo2",
    }


def test_an_image_on_the_command_line_that_the_engine_s_own_hides_is_refused() -> None:
    for word in ("cluster.container.image=a", "cluster.container={image: a}"):
        assert load("generic", [word], cluster="dgx-h100").recipe.cluster.container
        with pytest.raises(RefusedInput, match=r"no effect with engine nemo1: set cluster\.container\.images\.nemo1"):
            load("generic", ["engine=nemo1", *CPT, word], cluster="dgx-h100")
