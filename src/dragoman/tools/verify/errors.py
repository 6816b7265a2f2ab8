"""Why a verification could not be made: one sentence. A promise that does not hold is no error but a finding."""


class CannotRun(Exception):
    """Something that verify itself needs did not start, or did not do what it was told."""
