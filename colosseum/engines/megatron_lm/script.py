"""Options of a Megatron-LM program, from an argument line or from a job script that holds one. Pure.

The script is read, never run: assignments of plain text, arrays of words and ``+=`` are filled in where they are used,
``${NAME:-text}`` gives its text where nothing is assigned, and every branch counts as taken. Nothing else is expanded:
what remains of ``$NAME``, ``$(…)`` or backquotes stays as it is written (``is_plain`` tells).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_ASSIGNMENT = re.compile(
    r"(?:^|;)[ \t]*(?:(?:export|readonly|local|declare(?:[ \t]+-\w+)*)[ \t]+)?(?P<name>[A-Za-z_]\w*)(?P<more>\+?)="
    r"(?:\((?P<array>(?:[^()]|\((?:[^()]|\([^()]*\))*\))*)\)"
    r'|"(?P<quoted>(?:[^"\\]|\\.)*)"'
    r"|'(?P<literal>[^']*)'"
    r"|(?P<plain>(?:\$\{[^}\n]{0,500}\}|[^\s\"'();&|])*))",
    re.MULTILINE | re.DOTALL,
)
_USE = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*|\d)(?:\[[@*]\])?(?::?[-=]([^}]{0,500}))?\})")
_PROGRAM = re.compile(r"pretrain_\w+\.py\b[\"']?")
_WORD = re.compile(r"#[^\n]*|(?:\"(?:[^\"\\]|\\.)*\"|'[^']*'|\\.|[^\s\"'])+", re.DOTALL)
_QUOTES = re.compile(r"\"((?:[^\"\\]|\\.)*)\"|'([^']*)'|\\(.)", re.DOTALL)
_COMMENT = re.compile(r"(^|\s)#[^\n]*")
_END = re.compile(r"\d?>.*|<.*|[|;&].*")
DEEPEST = 8
"""How often a value may name another."""
LONGEST = 1_000_000
"""Characters of a script that are read."""
LONGEST_LINE = 300_000
"""Characters that are filled into a line at a time."""
LONGEST_VALUE = 100_000
"""Characters of one assigned value."""


def options(text: str) -> dict[str, list[str]]:
    """Options and their values; the last of an option counts, as for argparse.

    In a script they are those of the words after ``pretrain_….py``, or after a variable that holds its path.
    """
    text = re.sub(r"\\\r?\n", " ", text[:LONGEST])
    names = _names(text)
    programs = [name for name, value in names.items() if _PROGRAM.fullmatch(value.rpartition("/")[2])]
    used = "|".join([_PROGRAM.pattern, *(rf"\$\{{?{name}\b\}}?[\"']?" for name in programs)])
    places = [match.end() for match in re.finditer(used, text)]
    if not places:
        return _options(_words(_filled(text, names)))
    # The program may also be named in a comment, a test or an assignment: the place that has options counts.
    return max((_options(_words(_filled(_rest(text, place), names))) for place in places[:DEEPEST]), key=len)


def is_plain(value: str) -> bool:
    """Whether nothing of a shell is left in a value."""
    return not re.search(r"[$`]", value)


def _names(text: str) -> dict[str, str]:
    """What is assigned, last assignment first to count; a value may use the former value of its own name."""
    names: dict[str, str] = {}
    for match in _ASSIGNMENT.finditer(text):
        name, array = match["name"], match["array"]
        value = _COMMENT.sub(" ", array) if array is not None else match["quoted"] or match["literal"] or match["plain"]
        value = _once(value or "", names, only=name)
        if match["more"]:
            value = names.get(name, "") + (" " if array is not None else "") + value
        if len(value) <= LONGEST_VALUE:
            names[name] = value.strip()
    return names


def _once(line: str, names: Mapping[str, str], only: str | None = None) -> str:
    """A line with the value of each name that it uses; else with its ``:-`` text; else as it was.

    Args:
        only: fill in this name alone.
    """
    room = LONGEST_LINE

    def value(match: re.Match[str]) -> str:
        nonlocal room
        name = match[1] or match[2]
        text = names.get(name) or match[3] if only in (None, name) else None
        if text is None or len(text) > room:
            return match[0]
        room -= len(text)
        return text

    return _USE.sub(value, line)


def _filled(line: str, names: Mapping[str, str]) -> str:
    for _ in range(DEEPEST):
        line, previous = _once(line, names), line
        if line == previous:
            break
    return line


def _rest(text: str, place: int) -> str:
    """From a place in a command to the command's end: its closing quote if it is inside of one, else its line's."""
    for match in _ASSIGNMENT.finditer(text):
        if match.start() < place <= match.end():
            return text[place : match.end()].rstrip("\"')")
    start = text.rfind("\n", 0, place) + 1
    for quote in "\"'":
        if len(re.findall(rf"(?<!\\){quote}", text[start:place])) % 2:
            end = re.search(rf"(?<!\\){quote}", text[place:])
            return text[place : place + end.start()] if end else text[place:]
    return text[place:].split("\n", 1)[0]


def _words(line: str) -> list[str]:
    """Words as a shell would split them, without comments; an unbalanced quote is left out."""
    words = (match[0] for match in _WORD.finditer(line) if not match[0].startswith("#"))
    return [_QUOTES.sub(lambda m: m[1] or m[2] or m[3] or "", word) for word in words]


def _options(words: list[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    option = ""
    for word in words:
        if _END.fullmatch(word):
            break
        if word.startswith("--") and len(word) > 2:
            option, equals, value = word.rstrip(";").partition("=")
            found[option] = [value] if equals else []
        elif option:
            found[option].append(word.strip("\"'").rstrip(";"))
        if word.endswith(";"):
            break
    return found
