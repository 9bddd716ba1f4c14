"""The table of the changes, against the methods of `LimitControl` and the commands that are made from it."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import get_args

import click
import pytest

from celery_throttle.control.cli.group import throttle
from celery_throttle.control.limit_control import LimitControl
from celery_throttle.control.verbs import DROP, VERBS, Ending, Verb
from celery_throttle.store.limit_status import LimitStatus

every_verb = pytest.mark.parametrize("verb", [*VERBS.values(), DROP], ids=lambda verb: verb.name)


def test_changes_that_end_another_one_are_those_of_the_type() -> None:
    assert {name for name, verb in VERBS.items() if verb.ends} == set(get_args(Ending))
    assert {what for verb in VERBS.values() for what in verb.ends} <= {each.name for each in fields(LimitStatus)}


@every_verb
def test_method_takes_what_the_table_says(verb: Verb) -> None:
    taken = set(inspect.signature(getattr(LimitControl, verb.method)).parameters) - {"self"}
    numbers = {"permits", "rate", "burst"} if verb.permits else set()
    wanted = {"by", "why"} | numbers | ({"until"} if verb.lasts else set()) | ({"dry_run"} if verb is DROP else set())
    assert taken == wanted


@every_verb
def test_method_begins_with_the_words_of_the_table(verb: Verb) -> None:
    words = " ".join(inspect.getdoc(getattr(LimitControl, verb.method)).split())  # type: ignore[union-attr]
    assert words.startswith(verb.help.rstrip("."))


@pytest.mark.parametrize("verb", VERBS.values(), ids=lambda verb: verb.name)
def test_command_takes_what_the_table_says(verb: Verb) -> None:
    command = throttle.get_command(click.Context(throttle), verb.name)
    assert command
    taken = {each.name for each in command.params} - {"as_json", "url", "prefix"}
    numbers = {"permits", "rate", "burst"} if verb.permits else set()
    effect = {"dry_run"} if verb.permits or verb.ends else set()
    assert taken == {"limit", "key", "by", "why"} | numbers | effect | ({"lasts"} if verb.lasts else set())
    assert str(command.help).startswith(verb.help)
