"""Habits of writing that make readers stop, counted in prose: docs, docstrings and comments."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["HABITS", "LONGEST", "Finding", "findings", "prose"]

#: Words in a sentence: above this a sentence counts.
LONGEST = 30
#: Each habit with the words that it is made of. The names of tasks, workers and calls do instead.
HABITS: dict[str, re.Pattern[str]] = {
    "a pronoun for a thing": re.compile(
        r"\b(?:whoever|nobody|somebody|anybody|whom|whichever|whatever)\b", re.IGNORECASE
    ),
    "who without a noun": re.compile(r"(?:^|[.,:;(] ?|\b(?:of|for|to|by|than|and|or|from|with) )who\b", re.IGNORECASE),
    "what as a noun": re.compile(
        r"\b(?:of|for|with|from|to|by|in|on|than|and|all|but) what\b|(?:^|[.;:] )what\b", re.IGNORECASE
    ),
    "programs that talk": re.compile(
        r"\b(?:is|are|was|were|be|been) (?:said|told|heard)\b|\bhears?\b|\bsays so\b", re.IGNORECASE
    ),
}
# A field of a list stands on a line of its own, a little to the right.
_SENTENCE = re.compile(r"(?<=[.!?:;])\s+|\n\s*\n|\n\s*[-*|#]|\n {1,4}(?=\S)|\n(?=KEYS|ARGV)")
_LUA_COMMENT = re.compile(r"--\s?(.*)$")
_CODE_IN_PROSE = re.compile(r"^```.*?^```|``[^`]*``|`[^`\n]*`", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Finding:
    """A habit in a file; ``text``: the words around it."""

    path: Path
    habit: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}: {self.habit}: {self.text}"


def findings(path: Path) -> list[Finding]:
    """Return each habit that a file has."""
    text = _CODE_IN_PROSE.sub("`code`", prose(path))
    found = [
        Finding(path, habit, _around(text, match)) for habit, words in HABITS.items() for match in words.finditer(text)
    ]
    long = (sentence for sentence in _SENTENCE.split(text) if len(sentence.split()) > LONGEST)
    return found + [Finding(path, "a long sentence", " ".join(sentence.split()[:12]) + " ...") for sentence in long]


def prose(path: Path) -> str:
    """Return the prose of a file: all of a document, the comments and docstrings of code."""
    text = path.read_text("utf-8")
    if path.suffix == ".py":
        return "\n\n".join(_python(text))
    if path.suffix == ".lua":
        return "\n".join(_lua(text))
    return text


def _python(text: str) -> Iterator[str]:
    comments: list[str] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            comments.append(token.string.lstrip("#:").strip())
        elif token.type not in (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT) and comments:
            yield "\n".join(comments)
            comments = []
    yield "\n".join(comments)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value


def _lua(text: str) -> Iterator[str]:
    for line in text.splitlines():
        comment = _LUA_COMMENT.search(line)
        yield comment.group(1) if comment else ""


def _around(text: str, match: re.Match[str]) -> str:
    return " ".join(text[max(match.start() - 30, 0) : match.end() + 30].split())
