"""The secrets of tokens: the first one signs, all of them are accepted.

They can be changed while they are in use: every holder of the object uses the new secrets from the next token on. An
empty object means that no token is needed.
"""

from collections.abc import Iterable, Iterator
from hashlib import sha256


class SigningKeys:
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
        """Replace the secrets; False if they are the same, in the same order, or if there are none."""
        fresh = tuple(secret for secret in secrets if secret)
        if not fresh or fresh == self._secrets:
            return False
        self._secrets = fresh
        return True

    def names(self) -> list[str]:
        """A short digest of each secret, for the log."""
        return [name_of(secret) for secret in self._secrets]


def name_of(secret: str) -> str:
    return sha256(b"dragoman secret " + secret.encode()).hexdigest()[:8]
