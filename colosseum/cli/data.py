"""``colosseum data …``: prepare and check training data."""

from __future__ import annotations

import typer

from colosseum.cli.data_blend import blend
from colosseum.cli.data_ledger import ledger
from colosseum.cli.data_rows import lint, mask
from colosseum.cli.data_tokenize import tokenize

app = typer.Typer(help="Prepare and check training data.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Prepare and check training data."""


app.command()(tokenize)
app.command()(blend)
app.command()(ledger)
app.command()(lint)
app.command()(mask)
