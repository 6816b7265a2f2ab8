"""How a burial ended."""

from enum import StrEnum


class Burial(StrEnum):
    DONE = "DONE"  # nothing of it is left
    LEFT = "LEFT"  # its inbox is: entries of a later release, or ones the full dead letters do not take
    NOT_OURS = "NOT_OURS"  # it lives, or somebody else is at it
