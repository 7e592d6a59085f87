"""A secret in a site fact is refused by its name or by its value, and shown nowhere."""

from __future__ import annotations

import time

import pytest

from colosseum.errors import RefusedInput
from colosseum.launch import environment
from colosseum.recipe.load import load

SECRETS = {
    "DATABASE_URL": "postgres://db/runs",
    "https_proxy": "http://user:pw-1@proxy:3128",
    "GITHUB_PAT": "abcd1234",
    "A": "hf_abcdefghij",
    "B": "ghp_abcdefgh1234",
    "C": "sk-proj-abcdefgh",
    "D": "AKIAIOSFODNN7EXAMPLE",
    "E": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "F": "-----BEGIN OPENSSH PRIVATE KEY----- abc",
    "G": "user:pw-1@host",
    "H": "postgresql://h/db?password=abcd",
    "I": "Bearer abcdefgh12",
    "WANDB_API_KEY": "x1y2",
}
HARMLESS = [
    "=mlx5_0,mlx5_3:1",
    "/usr/bin:/bin",
    "http://proxy:3128",
    "localhost,127.0.0.1,.site",
    "/a:/b@c",
    "22",
    "eth0",
]
HARMLESS += [
    "docker://user@nvcr.io#nvidia/nemo:25.04",
    "disk-abcdefghij",
    "a1" * 32,
    "/lustre/Projects1/abcdefghijklmnopqr/AB",
    "run:x@latest",
    "nemo:25.04@sha256:0123456789abcdef",
]


@pytest.mark.parametrize(("name", "value"), SECRETS.items(), ids=SECRETS.keys())
def test_a_secret_is_refused_and_not_shown(name: str, value: str) -> None:
    with pytest.raises(RefusedInput, match="looks like a secret") as caught:
        load("debug/cpt-4k-bf16", [f"cluster.env.{name}='{value}'"], cluster="local")
    (fault,) = caught.value.faults
    assert (fault.path, fault.where) == (f"cluster.env.{name}", "command line")
    assert value not in str(caught.value.as_json())


@pytest.mark.parametrize(
    "word",
    [
        "slurm.extra=['--comment=hf_abcdefghij']",
        "container={image: 'docker://u:pw-1@r#i'}",
        "container={images: {nemo1: 'docker://u:pw-1@r#i'}}",
    ],
)
def test_other_site_facts_hold_none_either(word: str) -> None:
    with pytest.raises(RefusedInput, match="looks like a secret"):
        load("debug/cpt-4k-bf16", [f"cluster.{word}"], cluster="local")


@pytest.mark.parametrize(
    "word",
    [
        "cluster.envs.WANDB_API_KEY=abcd1234",
        "cluster.environment={WANDB_API_KEY: abcd1234, A: 1}",
        "cluster.env=[ghp_abcd12345678]",
        "cluster.env.A=[ghp_abcd12345678]",
        "cluster.env_from=[ghp_abcd12345678]",
        "cluster.token=abcd12345678",
        "enviroment.A=ghp_abcd12345678",
        "tokenizer.eod='ghp_abcd12345678{{${'",
    ],
)
def test_a_secret_of_a_key_that_is_none_is_not_shown(word: str) -> None:
    """Whatever is wrong with the key or the type of the value: its path is told, what stands there is not."""
    with pytest.raises(RefusedInput) as caught:
        load("debug/cpt-4k-bf16", [word], cluster="local")
    assert "abcd1234" not in str(caught.value) + str(caught.value.as_json())


@pytest.mark.parametrize("value", ["run:x@latest", "run:20261203-120000-mine-ab12@last", "stage:sft@10"])
@pytest.mark.parametrize("key", ["checkpoint.from", "checkpoint.form"])
def test_a_reference_to_a_run_is_no_password(key: str, value: str) -> None:
    """What was typed wrongly is quoted, with the form that is right."""
    with pytest.raises(RefusedInput) as caught:
        load("debug/sft", [f"{key}={value}"], cluster="local")
    (fault,) = caught.value.faults
    assert (fault.path, fault.value) == (key, value)


def test_a_variable_is_set_or_taken_from_the_environment() -> None:
    words = ["cluster.env.A=x", "cluster.env_from=[A]"]
    recipe = load("debug/cpt-4k-bf16", words, cluster="local").recipe
    (fault,) = environment.faults(recipe)
    assert (fault.path, fault.value, fault.rule) == (
        "cluster.env_from",
        "A",
        "is set in cluster.env too, which overrides it",
    )


def test_harmless_values_are_taken() -> None:
    words = [f"cluster.env.X{i}='{value}'" for i, value in enumerate(HARMLESS)]
    assert list(load("debug/cpt-4k-bf16", words, cluster="local").recipe.cluster.env.values()) == HARMLESS


@pytest.mark.parametrize("unit", ["a", "eyJ", "a:", "aA1/", "A ", "://", "://a:"])
def test_a_crafted_value_is_judged_quickly(unit: str) -> None:
    start = time.perf_counter()
    load("debug/cpt-4k-bf16", [f"cluster.env.X='{(unit * 4000)[:4000]}.'"], cluster="local")
    assert time.perf_counter() - start < 2
