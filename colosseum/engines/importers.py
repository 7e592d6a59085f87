"""Which foreign configurations can be read into a recipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from colosseum.engines.importing import Imported
from colosseum.engines.megatron_lm import importer as megatron_lm
from colosseum.engines.nemo1 import importer as nemo1

IMPORTERS: Mapping[str, Callable[[str, str], Imported]] = {
    "nemo1": nemo1.from_text,
    "megatron-args": megatron_lm.from_text,
}
"""Text of a file and its name -> recipe data; RefusedInput when the text is no such configuration."""
