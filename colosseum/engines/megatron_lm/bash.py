"""A bash script followed as far as that is possible without running anything. Pure.

tree-sitter parses it; assignments, arrays, ``+=``, conditions and loops over known words, functions and ``eval`` are
followed as bash would. What only a run can tell (the environment, ``$(…)``, files) stays as its own text between two
private characters: ``is_plain`` says whether a word has such a part, ``shown`` gives the text back.
"""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import tree_sitter_bash
from tree_sitter import Language, Node, Parser, Tree

from colosseum.engines.megatron_lm import bash_values
from colosseum.engines.megatron_lm.bash_values import is_plain

MAX_CHARACTERS = 1_000_000
"""Characters of a script that are read, and characters that its variables may be expanded to in all."""
MAX_VALUE = 100_000
"""Characters of one variable."""
MAX_DEPTH = 40
"""Statements inside one another; functions and ``eval`` that call each other."""
MAX_TURNS = 64
"""Turns of a loop."""
MAX_STATEMENTS = 50_000
"""Statements that are followed, those of loops and functions again each time."""
PARSE_TIMEOUT_US = 3_000_000

_PROGRAM = re.compile(r"(?:^|[\s/\"'])pretrain_\w+\.py\b")
_LANGUAGE = Language(tree_sitter_bash.language())
_SET_BY_COMMAND = {"read": 1, "mapfile": 1, "readarray": 1, "getopts": 2}
"""Commands that set variables, and the first word that may be one."""
_CHANGED = re.compile(r"([A-Za-z_]\w*)\s*(?:[-+*/%]?=(?!=)|\+\+|--)|(?:\+\+|--)([A-Za-z_]\w*)")


@dataclass(slots=True)
class Variable:
    """A scalar (one word) or an array."""

    words: list[str]
    is_array: bool = False
    doubts: frozenset[str] = frozenset()
    """Conditions that only a run decides, under which the value was set."""


@dataclass(frozen=True, slots=True)
class Command:
    """A simple command after all expansions."""

    words: tuple[str, ...]
    doubts: frozenset[str] = frozenset()
    outer: tuple[str, ...] = ()
    """Words of the command that starts it: ``srun bash -c "…"``."""


@dataclass(slots=True)
class Script:
    """What was found in a script."""

    commands: list[Command] = field(default_factory=list)
    names: dict[str, Variable] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    """Places that could not be read as bash."""


class _Exit(Exception):
    """``exit``: what follows is not reached."""


def follow(text: str) -> Script:
    """All simple commands of a script, in the order of a run."""
    reader = _Reader()
    with contextlib.suppress(_Exit):
        reader.source(text[:MAX_CHARACTERS])
    return reader.script


def parsed(text: str) -> Tree | None:
    """The syntax tree; None where the parser did not finish in time."""
    with warnings.catch_warnings():  # its successor, progress_callback, crashes in 0.25
        warnings.simplefilter("ignore", DeprecationWarning)
        parser = Parser(_LANGUAGE, timeout_micros=PARSE_TIMEOUT_US)
    try:
        return parser.parse(text.encode())
    except ValueError:
        return None


class _Reader:
    def __init__(self) -> None:
        self.script = Script()
        self._functions: dict[str, tuple[Node, bytes]] = {}
        self._positional: list[str] | None = None
        self._values = bash_values.Values(self._variable, self._store, MAX_CHARACTERS)
        self._source = b""
        self._active: list[str] = []
        self._used: set[str] = set()
        self._outer: tuple[str, ...] = ()
        self._depth = 0
        self._left = MAX_STATEMENTS

    def source(self, text: str) -> None:
        tree = parsed(text)
        if tree is None:
            self.script.problems.append("the script is too deeply nested to be parsed")
            return
        root = tree.root_node
        if root.has_error:
            self.script.problems.append(f"line {_first_error(root)} is not understood as bash")
        outer, self._source = self._source, text.encode()
        try:
            self._run(root)
        finally:
            self._source = outer

    # --- statements ------------------------------------------------------------------------------------------

    def _run(self, node: Node) -> bool | None:
        """One statement; whether it succeeds (None: only a run can tell). Commands count as successful."""
        self._left -= 1
        if self._depth >= MAX_DEPTH or self._left < 0:
            self._problem(f"line {node.start_point[0] + 1}: too deeply nested, or too long, to be followed")
            return None
        self._depth += 1
        try:
            return self._statement(node)
        finally:
            self._depth -= 1

    def _statement(self, node: Node) -> bool | None:
        match node.type:
            case "variable_assignment":
                self._assign(node)
            case "command":
                return self._command(node)
            case "declaration_command":
                self._declare(node)
            case "unset_command":
                for child in node.named_children:
                    self.script.names.pop(self._text(child), None)
            case "test_command":
                return self._test(node)
            case "negated_command":
                truth = self._run(node.named_children[0]) if node.named_children else None
                return None if truth is None else not truth
            case "list":
                return self._list(node)
            case "if_statement":
                self._if(node)
            case "for_statement":
                self._for(node)
            case "while_statement" | "c_style_for_statement":
                self._in_doubt(node, [child for child in node.named_children if child.type == "do_group"])
            case "case_statement":
                self._case(node)
            case "function_definition":
                name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
                if name is not None and body is not None:
                    self._functions[self._text(name)] = (body, self._source)
            case "subshell" | "pipeline":
                before = dict(self.script.names)
                self._each(node)
                self.script.names = before
            case "redirected_statement":
                body = node.child_by_field_name("body")
                return None if body is None else self._run(body)
            case "compound_statement" if self._text(node).startswith("(("):
                return self._arithmetic_command(node)
            case "comment" | "heredoc_redirect" | "file_redirect":
                pass
            case _:
                self._each(node)
        return True

    def _each(self, node: Node) -> None:
        for child in node.named_children:
            self._run(child)

    def _list(self, node: Node) -> bool | None:
        operands = [child for child in node.named_children if child.type != "comment"]
        if len(operands) != 2:
            self._each(node)
            return None
        truth, wanted = self._run(operands[0]), any(child.type == "&&" for child in node.children)
        if truth is None:
            self._in_doubt(operands[0], operands[1:])
            return None
        return self._run(operands[1]) if truth == wanted else truth

    def _in_doubt(self, condition: Node, body: Sequence[Node]) -> None:
        """Statements that only a run decides about: read as if they ran, unless they end the script."""
        text = " ".join(self._text(condition).split())
        line = condition.start_point[0] + 1
        before = dict(self.script.names)
        self._active.append(f"line {line}: {text[:80]}")
        try:
            for child in body:
                self._run(child)
        except _Exit:
            self.script.names = before
        finally:
            self._active.pop()

    def _if(self, node: Node) -> None:
        """``if``, and each ``elif`` as an ``if`` in its ``else``."""
        conditions = node.children_by_field_name("condition")
        truth: bool | None = None
        for condition in conditions:
            if condition.is_named:
                truth = self._run(condition)
        first = conditions[-1].end_byte if conditions else node.start_byte
        after = [child for child in node.named_children if child.start_byte >= first and child not in conditions]
        others = [child for child in after if child.type in ("elif_clause", "else_clause")]
        body = [child for child in after if child not in others]
        if truth is None:
            self._in_doubt(conditions[0] if conditions else node, body)
        elif truth:
            for child in body:
                self._run(child)
        elif others:
            self._else(others)

    def _else(self, clauses: Sequence[Node]) -> None:
        first, *rest = clauses
        if first.type == "else_clause":
            self._each(first)
            return
        condition, *body = first.named_children
        truth = self._run(condition)
        if truth is None:
            self._in_doubt(condition, body)
        elif truth:
            for child in body:
                self._run(child)
        elif rest:
            self._else(rest)

    def _for(self, node: Node) -> None:
        name, body = node.child_by_field_name("variable"), node.child_by_field_name("body")
        if name is None or body is None:
            return
        words = [word for value in node.children_by_field_name("value") for word in self._words(value)]
        if not words or len(words) > MAX_TURNS or not all(map(is_plain, words)):
            self.script.names[self._text(name)] = Variable([bash_values.unread(f"${self._text(name)}")])
            self._in_doubt(name, [body])
            return
        for word in words:
            self.script.names[self._text(name)] = Variable([word])
            self._run(body)

    def _case(self, node: Node) -> None:
        value = node.child_by_field_name("value")
        word = " ".join(self._words(value)) if value is not None else ""
        for item in (child for child in node.named_children if child.type == "case_item"):
            patterns = item.children_by_field_name("value")
            body = [child for child in item.named_children if child not in patterns]
            texts = [self._text(pattern).strip("\"'") for pattern in patterns]
            if not is_plain(word) and "*" in texts:
                self._in_doubt(node, body)
                return
            if is_plain(word) and any(fnmatchcase(word, text) for text in texts):
                for child in body:
                    self._run(child)
                return

    # --- assignments -----------------------------------------------------------------------------------------

    def _declare(self, node: Node) -> None:
        associative = any(re.fullmatch(r"-\w*A\w*", self._text(child)) for child in node.named_children)
        for child in node.named_children:
            if child.type == "variable_assignment":
                self._assign(child)
                name = child.child_by_field_name("name")
                if associative and name is not None:
                    self._lose(self._text(name))

    def _assign(self, node: Node) -> None:
        target, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        if target is None:
            return
        self._used = set()
        more = any(child.type == "+=" for child in node.children)
        name = self._text(target.child_by_field_name("name") or target)
        before = self.script.names.get(name)
        array = value is not None and value.type == "array"
        words = self._array(value) if value is not None and array else [self._scalar(value)]
        index = target.child_by_field_name("index")
        found: Variable | None
        if index is not None:
            found = self._element(before, self._text(index), words[0], more=more)
        elif more and before is not None:
            old = before.words
            words = [*old, *words] if array else ["".join([*old[:1], *words]), *old[1:]]
            found = Variable(words, is_array=array or before.is_array)
            self._used |= before.doubts
        elif more and before is None and not array:
            found = Variable([bash_values.unread(f"${name}") + words[0]])
        else:
            found = Variable(words, is_array=array)
        if found is None or sum(map(len, found.words)) > MAX_VALUE:
            self._lose(name)
            return
        found.doubts = frozenset(self._used) | frozenset(self._active)
        self.script.names[name] = found

    def _element(self, before: Variable | None, index: str, word: str, *, more: bool) -> Variable | None:
        """``NAME[INDEX]=word``; None for an index that is not inside the array or next to it."""
        words = list(before.words) if before is not None else []
        at = self._values.arithmetic(index)
        if at is None or not 0 <= at <= len(words):
            return None
        words[at : at + 1] = [(words[at] if more and at < len(words) else "") + word]
        return Variable(words, is_array=True)

    def _array(self, node: Node) -> list[str]:
        elements = [child for child in node.named_children if child.type != "comment"]
        return [word for child in elements for word in self._words(child)]

    def _scalar(self, node: Node | None) -> str:
        return "" if node is None else bash_values.joined(self._values.parts(node, self._source, quoted=True))

    def _lose(self, name: str) -> None:
        """The variable's value is known only to a run."""
        self.script.names[name] = Variable([bash_values.unread(f"${name}")], doubts=frozenset(self._active))

    # --- commands --------------------------------------------------------------------------------------------

    def _command(self, node: Node) -> bool | None:
        self._lines_before(node)
        self._used = set()
        skipped = ("variable_assignment", "file_redirect", "herestring_redirect", "comment")
        words = [word for child in node.named_children if child.type not in skipped for word in self._words(child)]
        if not words:
            return True
        doubts = frozenset(self._used) | frozenset(self._active)
        name = words[0]
        if name in self._functions:
            self._call(name, words[1:])
        elif name in ("exit", "exec") and (name == "exit" or len(words) == 1):
            raise _Exit
        elif name == "eval":
            self._nested(" ".join(words[1:]))
        elif name in _SET_BY_COMMAND:
            for word in words[_SET_BY_COMMAND[name] :]:
                if re.fullmatch(r"[A-Za-z_]\w*", word):
                    self._lose(word)
        elif name in ("test", "["):
            return bash_values.simple_test([word for word in words[1:] if word != "]"])
        elif name in ("true", ":", "false"):
            return name != "false"
        else:
            self.script.commands.append(Command(tuple(words), doubts, self._outer))
            for i, word in enumerate(words):
                if _PROGRAM.search(word) and re.search(r"\s", word.strip()):
                    self._outer = tuple(words[:i])
                    self._nested(word)
                    self._outer = ()
        return True

    def _lines_before(self, node: Node) -> None:
        """Assignments on lines of their own, which the grammar counts to the command of the next line."""
        children = node.children
        assigned = [child for child in children if child.type == "variable_assignment"]
        ends = [child.start_byte for child in children if child not in assigned][:1] or [node.end_byte + 1]
        starts = [child.start_byte for child in assigned[1:]] + ends
        real = 0
        for i, (child, start) in enumerate(zip(assigned, starts, strict=False)):
            gap = self._source[child.end_byte : start].replace(b"\\\n", b"")
            if b"\n" in gap or start > node.end_byte:
                real = i + 1
        for child in assigned[:real]:
            self._assign(child)

    def _call(self, name: str, words: list[str]) -> None:
        body, source = self._functions[name]
        outer = self._positional, self._source
        self._positional, self._source = words, source
        try:
            self._run(body)
        finally:
            self._positional, self._source = outer

    def _nested(self, text: str) -> None:
        """A command in a word: ``bash -c "…"``, ``eval``."""
        if self._depth < MAX_DEPTH // 2:
            self._depth += 2
            try:
                self.source(text)
            finally:
                self._depth -= 2

    def _test(self, node: Node) -> bool | None:
        text = self._text(node)
        if text.startswith("(("):
            return self._arithmetic_command(node)
        inner = [child for child in node.named_children if child.type != "comment"]
        if len(inner) != 1:
            return None
        return self._values.test(inner[0], self._source, double=text.startswith("[["))

    def _arithmetic_command(self, node: Node) -> bool | None:
        text = self._text(node).removeprefix("((").removesuffix("))")
        for match in _CHANGED.finditer(text):
            self._lose(match[1] or match[2])
        value = self._values.arithmetic(text)
        return None if value is None else value != 0

    # --- words -----------------------------------------------------------------------------------------------

    def _words(self, node: Node) -> list[str]:
        if node.type == "command_name":
            node = node.named_children[0] if node.named_children else node
        return bash_values.split(self._values.parts(node, self._source, quoted=False))

    def _variable(self, name: str) -> tuple[list[str], bool] | None:
        """Words of a variable or ``$1``, and whether it is an array; None when a run alone knows them."""
        if name in ("@", "*"):
            return None if self._positional is None else (self._positional, True)
        if name.isdigit():
            at, given = int(name) - 1, self._positional
            return None if given is None or at < 0 else (given[at : at + 1] or [""], False)
        found = self.script.names.get(name)
        if found is None:
            return None
        self._used |= found.doubts
        return found.words, found.is_array

    def _store(self, name: str, word: str) -> None:
        self.script.names[name] = Variable([word], doubts=frozenset(self._used) | frozenset(self._active))

    def _text(self, node: Node) -> str:
        return self._source[node.start_byte : node.end_byte].decode(errors="replace")

    def _problem(self, text: str) -> None:
        if text not in self.script.problems:
            self.script.problems.append(text)


def _first_error(root: Node) -> int:
    """Line of the first place that the grammar does not know."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if node.is_error or node.is_missing:
            return int(node.start_point[0]) + 1
        waiting += [child for child in reversed(node.children) if child.has_error or child.is_missing]
    return int(root.start_point[0]) + 1
