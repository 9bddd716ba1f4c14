"""Random sequences of calls, by Hypothesis's state machines, and random values.

``HYPOTHESIS_EXAMPLES=5000`` runs that many random sequences; without it the same few run every time.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

__all__ = ["on_any_machine", "run_machine"]

#: For tests with values by Hypothesis: however slow the machine is at the moment.
on_any_machine = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def run_machine(machine: type[RuleBasedStateMachine], *, examples: int, steps: int) -> None:
    """Run sequences of a machine's rules; fail with the smallest that breaks it.

    Args:
        machine: its class.
        examples: how many, unless the environment wants another number.
        steps: calls in each at most.
    """
    wanted = int(os.environ.get("HYPOTHESIS_EXAMPLES") or 0)
    profile = settings(
        max_examples=wanted or examples,
        stateful_step_count=steps,
        derandomize=not wanted,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    run_state_machine_as_test(machine, settings=profile)
