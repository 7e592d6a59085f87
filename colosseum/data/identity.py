"""Identity of a dataset: cheap to compute for terabytes, and different after the dataset was rebuilt."""

from __future__ import annotations

from pathlib import Path

from colosseum.data.indexed import bin_path, idx_path

BLOCK = 1 << 22
SAMPLES = 64
SAMPLE_BYTES = 4096


def dataset_identity(prefix: Path) -> str:
    """Hash of a pair's whole .idx, the .bin's size and 64 evenly spaced blocks of it, including both ends.

    Raises:
        OSError: a file cannot be read.
    """
    import xxhash

    digest = xxhash.xxh3_128()
    with idx_path(prefix).open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    size = bin_path(prefix).stat().st_size
    digest.update(size.to_bytes(8, "little"))
    last = max(0, size - SAMPLE_BYTES)
    with bin_path(prefix).open("rb") as file:
        for offset in sorted({last * i // (SAMPLES - 1) for i in range(SAMPLES)}):
            file.seek(offset)
            digest.update(file.read(SAMPLE_BYTES))
    return str(digest.hexdigest())
