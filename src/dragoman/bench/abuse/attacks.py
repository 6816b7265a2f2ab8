"""All attacks, in the order they are run."""

from dragoman.bench.abuse import crowds, doors, frames, messages, sessions
from dragoman.bench.abuse.attack import Attack

ATTACKS: tuple[Attack, ...] = (
    *messages.ATTACKS,
    *sessions.ATTACKS,
    *frames.ATTACKS,
    *doors.ATTACKS,
    *crowds.ATTACKS,
)
BY_NAME = {attack.name: attack for attack in ATTACKS}
