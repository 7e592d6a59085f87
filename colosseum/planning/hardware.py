"""What a transfer or a kernel can get from a hardware file. Rates are bytes/s of one device, one direction."""

from __future__ import annotations

from typing import Any

import numpy as np

from colosseum.planning.constants import Constants
from colosseum.planning.flops import Array
from colosseum.recipe.cluster import Hardware


def local_rate(hardware: Hardware, constants: Constants) -> float:
    """Between two devices of one NVLink domain; PCIe where there is no NVLink."""
    return (hardware.nvlink_bytes_per_s or hardware.pcie_bytes_per_s) * constants.nvlink_efficiency


def network_rate(hardware: Hardware, constants: Constants) -> float:
    """Between nodes."""
    return hardware.nic_bytes_per_s * constants.network_efficiency


def link_rate(hardware: Hardware, constants: Constants, span: Any) -> Array:
    """Point to point inside a group of ``span`` consecutive ranks: NVLink when it lies in one domain."""
    inside = np.asarray(span) <= hardware.nvlink_domain
    return np.where(inside, local_rate(hardware, constants), network_rate(hardware, constants))


def ring_rate(hardware: Hardware, constants: Constants, span: Any, stride: Any) -> Array:
    """Bus bandwidth of a ring collective over the ranks ``stride`` apart inside ``span`` consecutive ones.

    Between domains every member inside a domain brings its own NIC, and NCCL's rings use them all: k local members
    reach k NICs, never more than NVLink gives.
    """
    span, stride = np.asarray(span, dtype=np.float64), np.asarray(stride, dtype=np.float64)
    members = np.maximum(1.0, np.minimum(span, hardware.nvlink_domain) / stride)
    across = np.minimum(members * network_rate(hardware, constants), local_rate(hardware, constants))
    return np.where(span <= hardware.nvlink_domain, local_rate(hardware, constants), across)


def latency(hardware: Hardware, constants: Constants, span: Any) -> Array:
    """Seconds before the first byte."""
    inside = np.asarray(span) <= hardware.nvlink_domain
    return np.where(inside, constants.nvlink_latency_s, constants.network_latency_s)


USABLE = 0.94
"""Share of the memory that the driver reports which a plan fills; the rest is room for uneven ranks and the allocator.
Published H100 runs fill up to 93.4% (DGX Cloud's Nemotron4-15B: 68.0 GiB allocated, about 74.4 on the device)."""


def usable_bytes(hardware: Hardware) -> float:
    """Memory a rank may fill."""
    return hardware.memory_bytes * USABLE
