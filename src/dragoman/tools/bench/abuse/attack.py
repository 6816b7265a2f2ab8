"""One way to misbehave: what it is called, one round of it, and the answers that are good ones."""

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from dragoman.tools.bench.abuse.scene import Scene

Answers = Counter[str]


@dataclass(frozen=True, slots=True)
class Attack:
    name: str
    title: str
    run: Callable[[Scene], Awaitable[Answers]]
    answers: frozenset[str]  # every one of them is seen, and no other
    may: frozenset[str] = frozenset()  # further ones that depend on who is faster

    def wrong(self, seen: Answers) -> list[str]:
        """What is not as it should be, in words."""
        if not seen:
            return ["no answer at all"]
        strange = [
            f"{answer} ({times} times)" for answer, times in seen.items() if answer not in self.answers | self.may
        ]
        return strange + [f"never {answer}" for answer in sorted(self.answers - seen.keys())]


# Who is being written to as fast as it can write, on a machine that does not let it read in time, may find the socket
# gone before it has read why.
CUT_OFF = frozenset({"cut off"})


def good(*answers: str) -> frozenset[str]:
    return frozenset(answers)
