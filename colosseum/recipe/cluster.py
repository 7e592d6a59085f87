"""Where a recipe runs: the accelerator and the cluster."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from colosseum.recipe.base import Count, Duration, EngineName, EnvName, Name, Positive, Section, Text

GpuRequest = Annotated[str, StringConstraints(pattern=r"^(none|(gres|gpus-per-node)(:[A-Za-z0-9_.-]{1,64})?)$")]
"""How a job requests GPUs: ``gres:h100`` is ``--gres=gpu:h100:8``; likewise ``gpus-per-node:h100``."""


class PeakFlops(Section):
    """Dense peak FLOP/s of one device."""

    bf16: Positive
    fp8: Positive | None = Field(None, description="null = no FP8 tensor cores")
    fp32: Positive


class Hardware(Section):
    """One accelerator and its links; all rates are per device."""

    name: Name
    kind: Literal["gpu", "cpu"]
    compute_capability: Positive | None = Field(None, description="CUDA's, such as 9.0; null = unknown or no GPU")
    peak_flops: PeakFlops
    memory_bytes: Count = Field(description="memory as the driver reports it")
    memory_bytes_per_s: Positive
    nvlink_bytes_per_s: Positive | None = Field(None, description="one direction; null = none (PCIe)")
    nvlink_domain: Count = Field(8, description="devices that reach each other over NVLink")
    pcie_bytes_per_s: Positive = Field(64e9, description="one direction, host or peer")
    nic_bytes_per_s: Positive = Field(50e9, description="one direction")
    sms: Count = 1


class Paths(Section):
    data: Text = "data"
    runs: Text = "runs"
    scratch: Text | None = None
    readable_by: Literal["owner", "group", "all"] = Field(
        "group", description="who may read runs; only the owner writes"
    )

    @property
    def umask(self) -> int:
        """Permission bits to clear in run folders and their files."""
        return {"owner": 0o077, "group": 0o027, "all": 0o022}[self.readable_by]


class Container(Section):
    """A pyxis/enroot container; null in the cluster file = bare metal."""

    image: Text | None = Field(None, description="REGISTRY#IMAGE or a file; of the engines that images does not name")
    images: dict[EngineName, Text] = Field(default={}, description="image by engine")
    mounts: tuple[Text, ...] = Field((), description="src:dst[:flags]")
    workdir: Text | None = None
    mount_home: bool = False
    writable: bool = False


class Storage(Section):
    write_bytes_per_s: Positive | None = Field(None, description="aggregate bandwidth of a job")
    read_bytes_per_s: Positive | None = None
    quota_bytes: Count | None = None


class Slurm(Section):
    partition: Text | None = None
    account: Text | None = None
    qos: Text | None = None
    reservation: Text | None = None
    constraint: Text | None = None
    exclude: tuple[Text, ...] = ()
    switches: Count | None = Field(None, description="leaf switches that a job may span; null = any number")
    switches_wait: Duration | None = Field(None, description="after which it takes any number; null = the site's limit")
    gpu_request: GpuRequest = Field("gpus-per-node", description="none, gres or gpus-per-node; with a type: gres:h100")
    exclusive: bool = True
    mpi: Text | None = Field(None, description="srun --mpi plugin; null = the site's default")
    launch: Literal["srun", "torchrun"] = Field("srun", description="one task per GPU, or torchrun: one per node")
    requeue: bool = True
    max_restarts_without_progress: Count = 3
    extra: tuple[Text, ...] = Field((), description="additional #SBATCH options, e.g. --comment=x")

    def placement(self) -> list[tuple[str, str | None]]:
        """Where a job goes: sbatch's options and their values."""
        names = ("partition", "account", "qos", "reservation", "constraint")
        return [(name, value) for name in names if (value := getattr(self, name)) is not None]


class Cluster(Section):
    """A cluster or machine. Site facts only: nothing here changes the numerics of a run."""

    name: Name
    scheduler: Literal["local", "slurm"]
    nodes: Count | None = Field(None, description="maximum nodes per job; null = unknown")
    gpus_per_node: Count = 8
    paths: Paths = Paths()
    slurm: Slurm = Slurm()
    container: Container | None = None
    venv: Text | None = Field(None, description="bare metal: virtual environment to activate")
    modules: tuple[Text, ...] = Field((), description="bare metal: environment modules to load")
    env: dict[EnvName, Text] = Field(default={}, description="site variables: NCCL_IB_*, NCCL_SOCKET_IFNAME, …")
    env_from: tuple[EnvName, ...] = Field(
        (), description="variables (secrets) that a job must inherit from the environment it is submitted from"
    )
    numa_binding: bool = False
    storage: Storage = Storage()
    price_per_gpu_hour: Positive | None = None
    currency: Name = "USD"
    node_mtbf_hours: Positive | None = Field(None, description="mean time between failures of one node")
