"""The problems of a configuration, collected so that all are reported at once.

A problem is a sentence for the operator. It names keys, types and limits, and never a secret.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """`keys` are the settings that it concerns; checks between settings skip them."""

    keys: tuple[str, ...]
    sentence: str


class ConfigError(Exception):
    """The configuration cannot be used. `sentences` holds every reason found."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        self.sentences = tuple(problem.sentence for problem in self.problems)
        super().__init__(self.sentences)

    def __str__(self) -> str:
        if len(self.sentences) == 1:
            return self.sentences[0]
        listed = "".join(f"\n  - {sentence}" for sentence in self.sentences)
        return f"the configuration has {len(self.sentences)} problems:{listed}"
