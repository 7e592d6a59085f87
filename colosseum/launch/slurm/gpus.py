"""How a job asks Slurm for GPUs: the cluster file's ``slurm.gpu_request``."""

from __future__ import annotations


def gpu_option(request: str, gpus: int) -> tuple[str, str] | None:
    """Name and value of the option that requests ``gpus`` on each node (``slurm.gpu_request``); None = no option."""
    option, _, kind = request.partition(":")
    if option == "none":
        return None
    count = f"{kind}:{gpus}" if kind else str(gpus)
    return (option, f"gpu:{count}" if option == "gres" else count)
