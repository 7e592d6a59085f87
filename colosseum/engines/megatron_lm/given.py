"""Options of a command as typed values; what cannot be read becomes a finding and no field."""

from __future__ import annotations

from collections.abc import Mapping

from colosseum.engines.foreign_options import megatron_options
from colosseum.engines.importing import DECIDE, HARMLESS, REFUSED, UNREAD, Imported
from colosseum.engines.megatron_lm.bash_values import is_plain, shown


class Given:
    """Looks options up and remembers which were used."""

    def __init__(self, found: Imported, words: Mapping[str, list[str]]) -> None:
        self.words = words
        self.used: set[str] = set()
        self._found = found

    def flag(self, option: str) -> bool:
        """Whether an option is given."""
        self.used.add(option)
        return option in self.words

    def text(self, option: str) -> str | None:
        """Its value; Megatron-LM's default where it is not given; None where neither is known."""
        self.used.add(option)
        if option not in self.words:
            known = megatron_options()
            return (known[option]["default"] or None) if option in known else None
        values = self.words[option]
        if not values or not is_plain(values[0]):
            self.unread(option)
            return None
        choices = megatron_options()[option]["choices"]
        if choices and values[0] not in choices.split(","):
            self.unread(option, f"Megatron-LM takes {choices}")
            return None
        return values[0]

    def integer(self, option: str) -> int | None:
        """A whole number, with underscores as Python has them."""
        text = self.text(option)
        if text is None:
            return None
        try:
            return int(text)
        except ValueError:
            self.unread(option)
            return None

    def rate(self, option: str) -> float | None:
        """A number."""
        text = self.text(option)
        number = None if text is None else self.as_rate(text)
        if text is not None and number is None:
            self.unread(option)
        return number

    @staticmethod
    def as_rate(text: str) -> float | None:
        """A number, if the text is one."""
        try:
            return float(text)
        except ValueError:
            return None

    def refuse(self, option: str, reason: str) -> None:
        """It makes another model, or another task."""
        self._say(option, REFUSED, reason)

    def decide(self, option: str, reason: str) -> None:
        """It changes the training, and no field says it."""
        self._say(option, DECIDE, reason)

    def harmless(self, option: str, reason: str) -> None:
        """It changes nothing."""
        self._say(option, HARMLESS, reason)

    def unread(self, option: str, reason: str = "") -> None:
        """Its value is not known here."""
        self._say(option, UNREAD, reason)

    def _say(self, option: str, kind: str, reason: str) -> None:
        self.used.add(option)
        if all(finding.key != option for finding in self._found.findings):
            self._found.add(option, " ".join(map(shown, self.words.get(option, []))), kind, reason)
