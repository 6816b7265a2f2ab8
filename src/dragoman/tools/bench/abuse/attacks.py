"""All attacks, in the order they are run."""

from dragoman.tools.bench.abuse import accounts, crowds, doors, frames, messages, sessions
from dragoman.tools.bench.abuse.attack import Attack

ATTACKS: tuple[Attack, ...] = (
    *messages.ATTACKS,
    *sessions.ATTACKS,
    *frames.ATTACKS,
    *doors.ATTACKS,
    *accounts.ATTACKS,
    *crowds.ATTACKS,
)
BY_NAME = {attack.name: attack for attack in ATTACKS}
