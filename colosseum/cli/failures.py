"""Output of a command that fails: one message on stderr, and with --json the refusal document on stdout."""

from __future__ import annotations

import errno
import json
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import typer

from colosseum.errors import ColosseumError, EnvironmentFault, Fault, RefusedInput

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
            return _show(EnvironmentFault(f"{error.filename}: {error.strerror}"), as_json)
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
    from colosseum.console import print_faults, print_sentence

    if isinstance(error, RefusedInput):
        print_faults(error.faults)
    else:
        print_sentence(str(error))
    return error.exit_code


def _usage(error: typer.TyperException, as_json: bool) -> int:
    """Errors of the argument parser, in the style of a refusal."""
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":  # the message is the help text
        if text := error.format_message():
            sys.stderr.write(f"{text}\n")
        return RefusedInput.exit_code
    rule = error.format_message()
    if hint := _hint(error):
        rule += f" {hint}"
    elif context is not None:
        rule += f" (see `{context.command_path} --help`)"
    return _show(RefusedInput([Fault(path="", value=None, rule=rule, where="")]), as_json)


def _hint(error: typer.TyperException) -> str:
    """What was meant by a word that is no command, or by a field that was written like an option."""
    from colosseum.recipe.describe import catalogue
    from colosseum.recipe.tasks import TASKS, command

    word = re.search(r"'(.+?)'|No such option: (\S+)", error.format_message())
    name = (word[1] or word[2]).lstrip("-").replace("-", "_") if word else ""
    if type(error).__name__ == "UsageError" and name in TASKS:
        return f"Use `{command(name)}`."
    if type(error).__name__ == "NoSuchOption":
        fields = [path for path in catalogue() if path == name or path.endswith(f".{name}")]
        if fields:
            return f"A recipe's field is set without dashes: {fields[0]}=VALUE."
    return ""


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


def _document(data: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(data, default=str) + "\n")
    sys.stdout.flush()
