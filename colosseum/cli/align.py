"""``colosseum align sft|dpo|generate-rejected``."""

from __future__ import annotations

import typer

from colosseum.cli.rejected import generate_rejected
from colosseum.cli.train import command_of

app = typer.Typer(no_args_is_help=True)


@app.callback()
def _align() -> None:
    """Fine-tune a model: SFT, DPO."""


app.command("sft", help="Supervised fine-tuning; loss on the responses only.")(command_of("sft"))
app.command()(generate_rejected)
app.command("dpo", help="Direct preference optimisation on preference pairs.")(command_of("dpo"))
