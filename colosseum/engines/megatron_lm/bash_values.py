"""Words of bash: expansions, splitting, arithmetic and tests, for ``bash``. Pure.

A word is made of parts. Text that only a run can tell is kept between ``_OPEN`` and ``_CLOSE``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from tree_sitter import Node

_OPEN, _CLOSE = "\ue000", "\ue001"
_HEX = re.compile(f"{_OPEN}([0-9a-f]*){_CLOSE}")
_EXPANSION = re.compile(r"([#!]?)([A-Za-z_]\w*|\d+|[@*?$!#-])(\[[^\]]*\])?(:?[-=+?]|%%?|##?|//?|:|\^\^?|,,?|@)?")
_BRACES = re.compile(r"\{[^{}\s]*(?:,|\.\.)[^{}\s]*\}")
_ANSI = {"n": "\n", "t": "\t", "\\": "\\", "'": "'", '"': '"', "r": "\r"}
MAX_ARITHMETIC = 200
"""Characters of an arithmetic expression."""
MAX_NESTED = 60
"""Expansions inside one another."""
Lookup = Callable[[str], tuple[list[str], bool] | None]


@dataclass(frozen=True, slots=True)
class Part:
    """Fields of one word, which may be several; ``splits``: white space in them separates words."""

    fields: tuple[str, ...]
    splits: bool = False


def unread(text: str) -> str:
    """Text that only a run can tell; written in hexadecimal, so that bash's characters in it mean nothing."""
    return f"{_OPEN}{shown(text).encode().hex()}{_CLOSE}"


def is_plain(word: str) -> bool:
    """Whether nothing of a word is left to a run."""
    return _OPEN not in word


def shown(word: str) -> str:
    """A word as text for people: unread parts as the script has them."""
    return _HEX.sub(lambda match: bytes.fromhex(match[1]).decode(errors="replace"), word)


def split(parts: Iterable[Part]) -> list[str]:
    """Words of the parts of one word, as bash splits them."""
    words: list[str] = []
    current: str | None = None
    for part in parts:
        for i, text in enumerate(part.fields):
            if i and current is not None:
                words.append(current)
                current = None
            if not part.splits:
                current = (current or "") + text
                continue
            pieces = text.split()
            if not text or not pieces:
                if text and current is not None:
                    words.append(current)
                    current = None
                continue
            if text[0].isspace() and current is not None:
                words.append(current)
                current = None
            words += [(current or "") + pieces[0], *pieces[1:]]
            current = None if text[-1].isspace() else words.pop()
    if current is not None:
        words.append(current)
    return words


def joined(parts: Iterable[Part]) -> str:
    """Parts as one text, as in an assignment."""
    return "".join(" ".join(part.fields) for part in parts)


class Values:
    """Expansions with the variables that ``lookup`` knows."""

    def __init__(self, lookup: Lookup, store: Callable[[str, str], None], room: int) -> None:
        """``store``: for ``${NAME:=text}``; ``room``: characters that variables may be expanded to in all."""
        self._lookup, self._store = lookup, store
        self._room = room
        self._depth = 0

    def parts(self, node: Node, source: bytes, *, quoted: bool) -> list[Part]:
        """Parts of a word's node."""
        if self._depth >= MAX_NESTED:
            return [Part((unread(_text(node, source)),))]
        self._depth += 1
        try:
            return self._parts(node, source, quoted)
        finally:
            self._depth -= 1

    def _parts(self, node: Node, source: bytes, quoted: bool) -> list[Part]:
        text = _text(node, source)
        match node.type:
            case "string":
                inside = self._mixed(node, source, node.start_byte + 1, node.end_byte - 1, quoted=True)
                return inside if inside or text != '""' else [Part(("",))]
            case "translated_string":
                return [part for child in node.named_children for part in self.parts(child, source, quoted=quoted)]
            case "raw_string":
                return [Part((text[1:-1],))]
            case "ansi_c_string":
                return [Part((re.sub(r"\\(.)", lambda match: _ANSI.get(match[1], match[0]), text[2:-1]),))]
            case "concatenation":
                return self._mixed(node, source, node.start_byte, node.end_byte, quoted=quoted)
            case "simple_expansion":
                return self._value(text[1:], None, text, quoted)
            case "expansion":
                return self._braced(node, source, text, quoted)
            case "arithmetic_expansion":
                value = self.arithmetic(text[2:-1] if text.startswith("$[") else text[3:-2])
                return [Part((unread(text) if value is None else str(value),))]
            case "word" | "number" | "variable_name" | "extglob_pattern" | "regex" | "test_operator":
                if not quoted and _BRACES.search(text) and is_plain(text):
                    return [Part((unread(text),))]
                return [Part((_unescaped(text),))]
        return [Part((unread(text),))]

    def _mixed(self, node: Node, source: bytes, start: int, end: int, *, quoted: bool) -> list[Part]:
        """Expansions with the plain text between them."""
        found: list[Part] = []

        def plain(upto: int) -> None:
            if upto > start:
                text = source[start:upto].decode(errors="replace")
                found.append(Part((_unescaped_in_quotes(text) if quoted else _unescaped(text),)))

        for child in node.named_children:
            if child.start_byte < start or child.end_byte > end or child.type in ("string_content", "comment"):
                continue
            plain(_start(child, source))
            found += self.parts(child, source, quoted=quoted)
            start = child.end_byte
        plain(end)
        return found

    def _value(self, name: str, index: str | None, text: str, quoted: bool) -> list[Part]:
        """Parts of ``$NAME``, ``${NAME[@]}``, ``${NAME[2]}``."""
        found = self._lookup(name)
        if found is None:
            return [Part((unread(text),))]
        words = found[0]
        every = index in ("@", "*") or name in ("@", "*")
        if not every:
            at = 0 if index is None else self.arithmetic(index)
            if at is None or at < -len(words):
                return [Part((unread(text),))]
            words = [words[at]] if at < len(words) else [""]
        self._room -= sum(map(len, words))
        if self._room < 0:
            return [Part((unread(text),))]
        if quoted and not (every and "@" in (index, name)):
            return [Part((" ".join(words),))]
        return [Part(tuple(words), splits=not quoted)]

    def _braced(self, node: Node, source: bytes, text: str, quoted: bool) -> list[Part]:
        """``${…}``."""
        match = _EXPANSION.match(text, 2)
        if match is None:
            return [Part((unread(text),))]
        prefix, name, index, operator = match[1], match[2], (match[3] or "[]")[1:-1] or None, match[4] or ""
        found = self._lookup(name)
        if prefix == "#" and found is not None and not operator:
            length = len(found[0]) if index in ("@", "*") else len(found[0][0] if found[0] else "")
            return [Part((str(length),))]
        if prefix or (not operator and text[match.end() :] != "}"):
            return [Part((unread(text),))]
        if not operator:
            return self._value(name, index, text, quoted)
        begin = _start(node, source) + len(text[: match.end()].encode())
        argument = self._mixed(node, source, begin, node.end_byte - 1, quoted=quoted)
        empty = found is None or not any(found[0])
        if operator.strip(":") in ("-", "="):
            missing = empty if operator[0] == ":" else found is None
            if missing and operator[-1] == "=":
                self._store(name, joined(argument))
            return [*_splitting(argument, quoted)] if missing else self._value(name, index, text, quoted)
        if operator.strip(":") == "+":
            return [] if empty else [*_splitting(argument, quoted)]
        return self._trimmed(found, operator, joined(argument), text, quoted)

    def _trimmed(
        self, found: tuple[list[str], bool] | None, operator: str, pattern: str, text: str, quoted: bool
    ) -> list[Part]:
        """``${NAME#pattern}``, ``${NAME%pattern}`` and their greedy forms, of a scalar."""
        if found is None or found[1] or operator not in ("#", "##", "%", "%%") or not is_plain(pattern):
            return [Part((unread(text),))]
        word = found[0][0] if found[0] else ""
        places = range(len(word) + 1)
        front = operator[0] == "#"
        for at in places if (operator in ("#", "%%")) else reversed(places):
            if fnmatchcase(word[:at] if front else word[at:], pattern):
                return [Part((word[at:] if front else word[:at],), splits=not quoted)]
        return [Part((word,), splits=not quoted)]

    # --- numbers and conditions ------------------------------------------------------------------------------

    def arithmetic(self, text: str) -> int | None:
        """The value of whole-number arithmetic; None where a run alone knows it, or for what is rarely used."""

        def number(match: re.Match[str]) -> str:
            found = self._lookup(match[1] or match[2] or match[3])
            word = found[0][0] if found is not None and found[0] else ""
            return word if re.fullmatch(r"-?(?:0|[1-9]\d{0,17})", word) else "unknown"

        if len(text) > MAX_ARITHMETIC or "**" in text or '"' in text:
            return None
        filled = re.sub(r"\$\{([A-Za-z_]\w*)\}|\$([A-Za-z_]\w*)|\b([A-Za-z_]\w*)\b", number, text.strip())
        filled = filled.replace("&&", " and ").replace("||", " or ")
        try:
            return _computed(ast.parse(filled, mode="eval").body)
        except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
            return None

    def test(self, node: Node, source: bytes, *, double: bool) -> bool | None:
        """An expression inside ``[ ]`` or ``[[ ]]`` (``double``)."""
        if node.type == "parenthesized_expression" and len(node.named_children) == 1:
            return self.test(node.named_children[0], source, double=double)
        if node.type == "negation_expression" or (node.type == "unary_expression" and node.children[0].type == "!"):
            truth = self.test(node.named_children[-1], source, double=double)
            return None if truth is None else not truth
        if node.type == "binary_expression" and len(node.named_children) >= 2:
            return self._binary(node, source, double)
        if node.type == "unary_expression" and len(node.named_children) == 2:
            return simple_test([_text(node.children[0], source), self._word(node.named_children[1], source)])
        if node.type in ("unary_expression", "binary_expression"):
            return None
        return simple_test([self._word(node, source)])

    def _binary(self, node: Node, source: bytes, double: bool) -> bool | None:
        left, right = node.named_children[0], node.named_children[-1]
        operator = node.child_by_field_name("operator")
        sign = _text(operator, source) if operator is not None else _text(node.children[1], source)
        if sign in ("&&", "||"):
            both = [self.test(child, source, double=double) for child in (left, right)]
            decides = sign == "||"
            return decides if decides in both else None if None in both else not decides
        pattern = _text(right, source)
        word, other = self._word(left, source), self._word(right, source)
        if double and sign in ("=", "==", "!=") and not pattern.startswith(("'", '"')) and is_plain(word + other):
            return fnmatchcase(word, other) == (sign != "!=")
        return simple_test([word, sign, other])

    def _word(self, node: Node, source: bytes) -> str:
        return joined(self.parts(node, source, quoted=True))


_COMPARED: dict[str, Callable[[int, int], bool]] = {
    "-eq": lambda a, b: a == b,
    "-ne": lambda a, b: a != b,
    "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b,
    "-gt": lambda a, b: a > b,
    "-ge": lambda a, b: a >= b,
}


def simple_test(words: Sequence[str]) -> bool | None:
    """``test`` with one to three words; None where a run alone can tell."""
    if not all(map(is_plain, words)):
        return None
    match words:
        case ["!", *rest]:
            truth = simple_test(rest)
            return None if truth is None else not truth
        case ["-z", word]:
            return not word
        case ["-n", word] | [word]:
            return bool(word)
        case [word, "=" | "==", other]:
            return word == other
        case [word, "!=", other]:
            return word != other
        case [word, sign, other] if sign in _COMPARED and word.lstrip("-").isdigit() and other.lstrip("-").isdigit():
            return _COMPARED[sign](int(word), int(other))
    return None


def _computed(node: ast.expr) -> int:
    """Whole-number arithmetic as C does it.

    Raises:
        ValueError: something else, or a number beyond 63 bits.
    """
    value: int
    match node:
        case ast.Constant(value=bool()):
            raise ValueError
        case ast.Constant(value=int(number)):
            value = number
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            value = -_computed(operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            value = _computed(operand)
        case ast.BinOp(left=left, op=operator, right=right):
            value = _binary_number(operator, _computed(left), _computed(right))
        case ast.BoolOp(op=ast.And(), values=values):
            value = int(all(_computed(item) for item in values))
        case ast.BoolOp(op=ast.Or(), values=values):
            value = int(any(_computed(item) for item in values))
        case ast.Compare(left=left, ops=[operator_], comparators=[right]):
            value = int(_compared_number(operator_, _computed(left), _computed(right)))
        case _:
            raise ValueError
    if abs(value) >= 2**63:
        raise ValueError
    return value


def _binary_number(operator: ast.operator, a: int, b: int) -> int:
    match operator:
        case ast.Add():
            return a + b
        case ast.Sub():
            return a - b
        case ast.Mult():
            return a * b
        case ast.Div():
            return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
        case ast.Mod():
            return abs(a) % abs(b) * (-1 if a < 0 else 1)
    raise ValueError


def _compared_number(operator: ast.cmpop, a: int, b: int) -> bool:
    match operator:
        case ast.Eq():
            return a == b
        case ast.NotEq():
            return a != b
        case ast.Lt():
            return a < b
        case ast.LtE():
            return a <= b
        case ast.Gt():
            return a > b
        case ast.GtE():
            return a >= b
    raise ValueError


def _splitting(parts: Iterable[Part], quoted: bool) -> Iterable[Part]:
    return parts if quoted else (Part(part.fields, splits=True) for part in parts)


def _unescaped(text: str) -> str:
    return re.sub(r"\\(\r?\n|.)", lambda match: "" if match[1].endswith("\n") else match[1], text, flags=re.DOTALL)


def _unescaped_in_quotes(text: str) -> str:
    return re.sub(r"\\([$`\"\\]|\r?\n)", lambda match: "" if match[1].endswith("\n") else match[1], text)


def _start(node: Node, source: bytes) -> int:
    """Where a node begins; the grammar counts white space before an expansion in quotes to the expansion."""
    begin: int = node.start_byte
    text = source[begin : node.end_byte]
    is_expansion = node.type.endswith(("expansion", "substitution"))
    return begin + len(text) - len(text.lstrip()) if is_expansion else begin


def _text(node: Node, source: bytes) -> str:
    return source[_start(node, source) : node.end_byte].decode(errors="replace")
