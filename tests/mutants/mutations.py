"""Mutants of the shared Lua files: in each a line is gone, or a condition is inverted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files

__all__ = ["JUDGED", "SHARED", "Mutant", "mutants", "mutants_of"]

#: Where the shared files are, from the root of the repository.
SHARED = "celery_throttle/store/lua/gate/shared"

#: Mutants that change nothing that can be seen from outside the scripts, and why, by file and line without the space
#: before it. A new one is judged by hand.
JUDGED = {
    ("needs", "state.needs[text] = needs"): "a text is read once more, to the same needs, and only that takes longer",
    ("next_starts", "state.oldest[section] = found"): "it is read once more, to the same, and only that takes longer",
    ("starts", "if state.adds_ends then reap_ends(4) end"): "inverted, the other calls clear some: only costs change",
}

_CONDITION = re.compile(r"^(\s*(?:if|elseif|while) )(.+)( then(?: .*)?| do)$")
_UNTIL = re.compile(r"^(\s*until )(.+)()$")
#: Without these a file is no Lua any more, or another function takes the name.
_KEPT = re.compile(r"^\s*(?:local|return|if|for|while|elseif|until)\b|^\s*--")
_WHOLE = re.compile(r"^\s*(?:[\w.\[\]#+, :-]+ = .+|[\w.]+\(.*\))(?: -- .*)?$")


@dataclass(frozen=True)
class Mutant:
    """One change of one line: of a shared file, by its name without ``.lua``, and of a line, counted from 1 on."""

    file: str
    line: int
    what: str  # "without" the statement, or the condition "inverted"
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.file}.lua:{self.line} {self.what}: {self.before.strip()}"

    @property
    def key(self) -> tuple[str, str]:
        """The file and the line, without the space before it."""
        return self.file, self.before.strip()

    def applied(self, text: str) -> str:
        """Return the text of the file with this change."""
        lines = text.split("\n")
        if lines[self.line - 1] != self.before:
            raise ValueError(f"{self}: the file has another line there")
        lines[self.line - 1] = self.after
        return "\n".join(lines)


def mutants() -> list[Mutant]:
    """Return all mutants of all shared files, by file and line."""
    folder = files("celery_throttle.store") / "lua" / "gate" / "shared"
    named = sorted((each.name.removesuffix(".lua"), each.read_text("utf-8")) for each in folder.iterdir())
    return [mutant for name, text in named if name != "begin" for mutant in mutants_of(name, text)]


def mutants_of(file: str, text: str) -> Iterator[Mutant]:
    """Yield the mutants of a text. Tables and statements of several lines stay as they are."""
    depth = 0
    for number, line in enumerate(text.split("\n"), 1):
        inside = depth > 0
        code = re.sub(r"'[^'\n]*'", "''", line).split("--")[0]
        depth += sum(code.count(each) for each in "{(") - sum(code.count(each) for each in "})")
        if inside or depth > 0:
            continue
        condition = _CONDITION.match(line) or _UNTIL.match(line)
        if condition:
            head, asked, tail = condition.groups()
            yield Mutant(file, number, "inverted", line, f"{head}not ({asked}){tail}")
        elif _WHOLE.match(line) and not _KEPT.match(line):
            yield Mutant(file, number, "without", line, "")
