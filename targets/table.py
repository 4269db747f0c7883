"""Typed access to one table of a TOML document, with errors that name the key."""

from __future__ import annotations

__all__ = ["Table"]

import re
from difflib import get_close_matches
from typing import TYPE_CHECKING, NoReturn

from targets.errors import BadProfileError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
"""Bytes in each unit that an amount of storage or memory may have."""


class Table:
    """A table whose keys are all known beforehand.

    Args:
        file: The document's file, for messages.
        path: The dotted key of this table, empty for the document itself.
        content: The table as parsed.
        keys: Every key that the table may have.

    Raises:
        BadProfileError: ``content`` is no table, or has a key that is not in ``keys``.
    """

    def __init__(self, file: str, path: str, content: object, keys: Sequence[str]) -> None:
        """Refuse unknown keys at once, since a misspelt one would else be silently ignored."""
        self._file = file
        self._path = path
        if not isinstance(content, dict):
            raise BadProfileError(file, path, "is no table", f"write it as [{path}]", content)
        self._content: Mapping[str, object] = content
        for key in content:
            if key not in keys:
                close = get_close_matches(key, keys, n=1)
                guess = f"rename it to {close[0]!r}" if close else "remove it"
                self.refuse(key, "is no key of a profile", f"{guess} (known: {', '.join(keys)})")

    def refuse(self, key: str, fault: str, remedy: str) -> NoReturn:
        """Raise the error about one key of this table."""
        raise BadProfileError(self._file, self.dotted(key), fault, remedy, self._content.get(key))

    def dotted(self, key: str) -> str:
        """Return the key with its table's path before it."""
        return f"{self._path}.{key}" if self._path else key

    def __contains__(self, key: str) -> bool:
        """Tell whether the table has the key."""
        return key in self._content

    def value(self, key: str) -> object:
        """Return the value of a key that must be there."""
        if key not in self._content:
            self.refuse(key, "is missing", "add it")
        return self._content[key]

    def text(self, key: str, pattern: str, example: str) -> str:
        """Return a text that matches a pattern from end to end."""
        value = self.value(key)
        if not isinstance(value, str) or re.fullmatch(pattern, value) is None:
            self.refuse(key, "has not the expected form", f"write it like {example!r}")
        return value

    def choice(self, key: str, choices: Sequence[str]) -> str:
        """Return a text that is one of the choices."""
        value = self.value(key)
        if not isinstance(value, str) or value not in choices:
            self.refuse(key, "is not known", f"use one of {', '.join(choices)}")
        return value

    def choices(self, key: str, choices: Sequence[str]) -> tuple[str, ...]:
        """Return a list of at least one of the choices, each at most once."""
        value = self.value(key)
        if not isinstance(value, list) or not value:
            self.refuse(key, "is no list of names", f"list some of {', '.join(choices)}")
        for item in value:
            if item not in choices:
                self.refuse(key, f"names {item!r}", f"use only {', '.join(choices)}")
        if len(set(value)) < len(value):
            self.refuse(key, "names one thing twice", "name it once")
        return tuple(value)

    def flag(self, key: str) -> bool:
        """Return a truth value."""
        value = self.value(key)
        if not isinstance(value, bool):
            self.refuse(key, "is neither true nor false", "write true or false without quotes")
        return value

    def integer(self, key: str, minimum: int = 1) -> int:
        """Return a whole number that is not below the minimum."""
        value = self.value(key)
        # bool is a subclass of int, and true is no number.
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            self.refuse(key, "is not possible", f"give a whole number from {minimum} up")
        return value

    def integers(self, key: str, minimum: int) -> tuple[int, ...]:
        """Return a list of different whole numbers that are not below the minimum; it may be empty."""
        value = self.value(key)
        whole = isinstance(value, list) and all(type(item) is int and item >= minimum for item in value)
        if not (isinstance(value, list) and whole and len(set(value)) == len(value)):
            self.refuse(key, "is not possible", f"list different whole numbers from {minimum} up")
        return tuple(value)

    def integer_choice(self, key: str, choices: Sequence[int]) -> int:
        """Return a whole number that is one of the choices."""
        value = self.value(key)
        if not isinstance(value, int) or isinstance(value, bool) or value not in choices:
            self.refuse(key, "is not possible", f"use one of {', '.join(map(str, choices))}")
        return value

    def amount(self, key: str) -> int:
        """Return an amount of bytes, written as a number and a binary unit (``512 MiB``)."""
        value = self.value(key)
        match = re.fullmatch(r"([0-9]+) ([A-Za-z]+)", value) if isinstance(value, str) else None
        if match is None:
            self.refuse(key, "is no amount", "write a whole number and a unit, like '512 MiB'")
        number, unit = match.groups()
        if unit not in UNITS:
            self.refuse(key, f"has the unknown unit {unit!r}", f"use one of {', '.join(UNITS)}")
        if number.startswith("0"):
            self.refuse(key, "is zero or starts with one", "give the amount, or remove the key")
        return int(number) * UNITS[unit]

    def table(self, key: str, keys: Sequence[str]) -> Table:
        """Return the table under a key."""
        return Table(self._file, self.dotted(key), self.value(key), keys)

    def tables(self, key: str, keys: Sequence[str]) -> list[Table]:
        """Return the list of tables under a key, which may be empty."""
        value = self.value(key)
        if not isinstance(value, list):
            self.refuse(key, "is no list of tables", f"write each as [[{self.dotted(key)}]]")
        return [
            Table(self._file, f"{self.dotted(key)}[{number}]", item, keys)
            for number, item in enumerate(value)
        ]
