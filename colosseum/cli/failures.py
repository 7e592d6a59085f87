"""Output of a command that fails: one message on stderr, and with --json the refusal document on stdout."""

from __future__ import annotations

import errno
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import typer

from colosseum.errors import ColosseumError, EnvironmentFault, Fault, RefusedInput
from colosseum.terminal import clean

ERROR_SCHEMA = "colosseum.error/1"
EXIT_BUG, EXIT_INTERRUPTED, EXIT_PIPE = 1, 130, 141
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)
"""What a write says, without the file's name, where the disk or stdout takes no more."""
DEBUG = "COLOSSEUM_DEBUG"


def guarded(command: Callable[[], Any], words: Sequence[str]) -> int:
    """Calls ``command`` and turns whatever happens into an exit code and a message.

    Args:
        words: the command line; --json is searched in it, even if the parser rejects the rest.
    """
    as_json = "--json" in words
    try:
        result = command()
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except ColosseumError as error:
        return _show(error, as_json)
    except typer.TyperException as error:
        return _usage(error, as_json)
    except (KeyboardInterrupt, typer.Abort):
        sys.stderr.write("interrupted\n")
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _leave_stdout()
        return EXIT_PIPE
    except OSError as error:
        if error.filename:
            return _show(EnvironmentFault(_sentence_of(error)), as_json)
        if error.errno in UNWRITABLE:
            _leave_stdout()
            return _show(EnvironmentFault(f"the output could not be written: {error.strerror}"), as_json=False)
        return _bug(error, as_json)
    except SystemExit:
        raise
    except BaseException as error:  # a panic of a library in Rust is no Exception
        return _bug(error, as_json)


def _leave_stdout() -> None:
    """The reader of our output has gone; a flush at exit must not raise either."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _show(error: ColosseumError, as_json: bool) -> int:
    if as_json:
        known = {"schema": ERROR_SCHEMA, "exit_code": error.exit_code, "message": str(error)}
        _document(error.as_json() if isinstance(error, RefusedInput) else known)
    from colosseum.cli.output import stderr

    console = stderr()
    if isinstance(error, RefusedInput):
        _print_faults(console, error.faults)
    else:
        _sentence(console, str(error))
    return error.exit_code


def _usage(error: typer.TyperException, as_json: bool) -> int:
    """Errors of the argument parser, in the style of a refusal."""
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":  # the message is the help text
        if text := error.format_message():
            sys.stderr.write(f"{text}\n")
        return RefusedInput.exit_code
    rule = error.format_message()
    if context is not None:
        rule += f" (see `{context.command_path} --help`)"
    return _show(RefusedInput([Fault(path="", value=None, rule=rule, where="")]), as_json)


def _bug(error: BaseException, as_json: bool) -> int:
    """A bug of ours: one sentence, and the path of the traceback."""
    text = "".join(traceback.format_exception(error))
    if os.environ.get(DEBUG):
        sys.stderr.write(text)
        where = "the traceback is above"
    else:
        where = f"run the command again with {DEBUG}=1 to see the traceback"
        try:
            descriptor, path = tempfile.mkstemp(prefix="colosseum-bug-", suffix=".txt")
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
            where = f"the traceback is in {path}"
        except OSError:
            pass
    message = f"this is a bug of Colosseum ({type(error).__name__}); {where}"
    if as_json:
        _document({"schema": ERROR_SCHEMA, "exit_code": EXIT_BUG, "message": message})
    sys.stderr.write(f"error: {message}\n")
    return EXIT_BUG


def _print_faults(console: Any, faults: Sequence[Fault]) -> None:
    """One fault is a sentence; several are a numbered list, each with its place under it."""
    from rich.padding import Padding
    from rich.text import Text

    if len(faults) > 1:
        console.print(Text(f"error: {len(faults)} faults", style="bold red"))
    for fault in faults:
        head = Text("" if len(faults) > 1 else "error: ", style="bold red")
        if fault.path:
            value = "" if fault.value is None else f" = {_value(fault.value)}"
            head.append(f"{clean(fault.path)}{value}", style="bold default")
            head.append(": ")
        head.append(clean(fault.rule), style="not bold default")
        console.print(Padding(head, (0, 0, 0, 2), expand=False) if len(faults) > 1 else head)
        below = Text(style="default")
        if fault.nearest:
            below.append("nearest: " + ", ".join(_value(n) for n in fault.nearest), style="green")
        if fault.where:
            below.append(("  " if fault.nearest else "") + f"[{clean(fault.where)}]", style="dim")
        if below.plain:
            console.print(Padding(below, (0, 0, 0, 6 if len(faults) > 1 else 4), expand=False))


def _sentence(console: Any, text: str) -> None:
    from rich.text import Text

    first, *rest = clean(text).split("\n")
    console.print(Text("error: ", style="bold red").append(first, style="not bold default"))
    for line in rest:  # paths and lines of logs, to be copied whole
        console.print(Text(line), soft_wrap=True)


def _value(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    text = clean(text)
    return text if len(text) <= 100 else text[:97] + "..."


def _sentence_of(error: OSError) -> str:
    return f"{error.filename}: {error.strerror}"


def _document(data: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(data, default=str) + "\n")
    sys.stdout.flush()
