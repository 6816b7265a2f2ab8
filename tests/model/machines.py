"""Hypothesis machines that drive a script on a real Redis beside a pure model of it, step by step.

One connection and one loop serve all examples of a test; every example has keys of its own. `now` is a number here,
and lives are long against the time a test takes, so nothing expires but by the model's own clock.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.errors import Flaky
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

import dragoman.store
from dragoman.store.keys import Keys
from dragoman.store.redis import Redis
from dragoman.store.script import Script, read_sources

START_MS = 1_700_000_000_000  # as large as real ones: numbers must survive Lua
SLACK_MS = 60_000  # what one example may take at most


class Bench:
    """A client, its loop, and names that no other example has."""

    def __init__(self, runner: asyncio.Runner, redis: Redis, keys: Keys) -> None:
        self.redis, self.keys = redis, keys
        self._loop = runner.get_loop()
        self._names = 0

    def do(self, asked: Awaitable[Any]) -> Any:
        return self._loop.run_until_complete(asked)

    def call(self, command: str, key: str, *args: Any) -> Any:
        return self.do(self.redis.call(command, key, *args))

    def hash(self, key: str) -> dict[str, str]:
        flat = self.call("HGETALL", key)
        return {name.decode(): value.decode() for name, value in zip(flat[::2], flat[1::2], strict=True)}

    def lives(self, key: str, ttl_ms: int) -> bool:
        """Whether the key has that life, less the time the example has taken."""
        return ttl_ms - SLACK_MS < int(self.call("PTTL", key)) <= ttl_ms

    def fresh_name(self) -> str:
        self._names += 1
        return f"x{self._names}"


# Hypothesis asks for a class and takes anything that makes a machine.
Machine = Callable[[], RuleBasedStateMachine]


def check(machine: Machine, examples: int = 40, steps: int = 30) -> None:
    """Run a machine, with so many of every 100 examples of the profile; the same examples every time."""
    share = max(1, examples * settings().max_examples // 100)
    run_state_machine_as_test(cast(Any, machine), settings=_settings(share, steps))


def planted(bugs: Collection[str], *in_every_run: str) -> list[Any]:
    """The bugs as parameters of a test; those that are not named here are long."""
    assert {*in_every_run} <= {*bugs}
    return [bug if bug in in_every_run else pytest.param(bug, marks=pytest.mark.long) for bug in bugs]


def finds_a_difference(machine: Machine, examples: int = 300, steps: int = 30) -> bool:
    """Whether script and model part ways in one of the examples; it is not made small.

    If one run of an example differs from the one before, Hypothesis stops with Flaky. That is no finding: the search
    starts again.
    """
    for _ in range(3):
        try:
            run_state_machine_as_test(cast(Any, machine), settings=_settings(examples, steps, Phase.generate))
        except AssertionError:
            return True
        except Flaky:
            continue
        return False
    return False


def _settings(examples: int, steps: int, *phases: Phase) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        phases=phases or (Phase.generate, Phase.shrink),
        derandomize=True,
        database=None,
        deadline=None,
        print_blob=False,
        suppress_health_check=list(HealthCheck),
    )


def with_bug(name: str, right: str, wrong: str) -> Script:
    """A script of ours with one thing wrong in it, or in what it uses; `name` may have its folder before it."""
    sources = read_sources(Path(dragoman.store.__file__).parent / f"{name}.lua")
    assert sum(source.count(right) for source in sources) == 1, f"{name}.lua does not say {right!r} once"
    *uses, source = (source.replace(right, wrong) for source in sources)
    return Script(Path(name).name, source, uses=uses, register=False)
