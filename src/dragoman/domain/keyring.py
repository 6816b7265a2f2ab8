"""The secrets that open the doors now: the first one signs, all of them are accepted.

They can be changed while they are in use. Whoever holds the ring sees the change with the next token it reads; who
came in before is not asked again. An empty ring belongs to a door that asks nobody.
"""

from collections.abc import Iterable, Iterator
from hashlib import sha256


class Keyring:
    __slots__ = ("_secrets",)

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets = tuple(secret for secret in secrets if secret)

    def __iter__(self) -> Iterator[str]:
        return iter(self._secrets)

    def __len__(self) -> int:
        return len(self._secrets)

    @property
    def signing(self) -> str:
        return self._secrets[0]

    def change(self, secrets: Iterable[str]) -> bool:
        """Whether these are others, or in another order, than before. There is always one left."""
        fresh = tuple(secret for secret in secrets if secret)
        if not fresh or fresh == self._secrets:
            return False
        self._secrets = fresh
        return True

    def names(self) -> list[str]:
        """What the secrets can be told apart by in a log, and no more."""
        return [name_of(secret) for secret in self._secrets]


def name_of(secret: str) -> str:
    return sha256(b"dragoman secret " + secret.encode()).hexdigest()[:8]
