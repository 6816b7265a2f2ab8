"""Chat tokens: JWTs signed with HS256, checked against the present and the previous secret.

Claims: `iss`, `iat`, `exp`, `uid` (number), `typ` (access or refresh), `sv` (session version, missing = 0) and `jti`
(by which it can be revoked; if it has none, by a digest). Others may make access tokens as well, so nothing beyond
these is asked of one, and claims that are not ours mean nothing; but for
`iat` and `nbf`: a token that says it is from tomorrow is not for today.
Whether a session version is still the present one is not written in a token: `Accounts` and the connection ask Redis.
`now` is wall-clock seconds. There is no leeway: a token is good until `exp` and not a moment longer. Only its beginning
has one, because whose clock is a little ahead makes tokens that begin a little late.
"""

import math
import secrets as random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import jwt

from dragoman.domain.revocation import RevocationList, token_name, user_name
from dragoman.domain.signing_keys import SigningKeys
from dragoman.protocol.chat import MAX_ID

AHEAD_S: Final = 60.0
JTI_BYTES: Final = 12

Typ = Literal["access", "refresh"]

_ONLY_THE_SIGNATURE: Final[Any] = {
    "verify_aud": False,
    "verify_exp": False,  # against `now`, below
    "verify_iat": False,
    "verify_jti": False,
    "verify_nbf": False,
    "verify_sub": False,
}


class BadToken(Exception):
    """Not a token of ours, or not any more; the sentence never quotes it."""

    def __init__(self, message: str, *, expired: bool = False, revoked: bool = False) -> None:
        super().__init__(message)
        self.expired, self.revoked = expired, revoked


@dataclass(frozen=True, slots=True)
class Access:
    uid: int
    sv: int
    exp: float
    token: str = field(default="", compare=False)  # the name by which it can be revoked


class Tokens:
    def __init__(
        self,
        secrets: Iterable[str],
        issuer: str,
        access_ttl_s: float,
        refresh_ttl_s: float,
        revoked: RevocationList | None = None,
    ) -> None:
        """`secrets`: the first signs, all of them are accepted; empty ones do not count."""
        self._revoked = revoked if revoked is not None else RevocationList()
        self.signing_keys = SigningKeys(secrets)
        if not self.signing_keys:
            raise ValueError("tokens need a secret to be signed with")
        self._issuer = issuer
        self.access_ttl_s, self.refresh_ttl_s = access_ttl_s, refresh_ttl_s

    def access(self, uid: int, sv: int, now: float) -> str:
        return self._make(uid, sv, "access", now, self.access_ttl_s)

    def refresh(self, uid: int, sv: int, now: float) -> str:
        return self._make(uid, sv, "refresh", now, self.refresh_ttl_s)

    def read_access(self, token: str, now: float) -> Access:
        return self._read(token, "access", now)

    def read_refresh(self, token: str, now: float) -> Access:
        return self._read(token, "refresh", now)

    def _make(self, uid: int, sv: int, typ: Typ, now: float, ttl_s: float) -> str:
        claims = {"iss": self._issuer, "iat": int(now), "exp": math.ceil(now + ttl_s), "uid": uid, "typ": typ, "sv": sv}
        claims["jti"] = random.token_urlsafe(JTI_BYTES)
        return jwt.encode(claims, self.signing_keys.signing, algorithm="HS256")

    def _read(self, token: str, typ: Typ, now: float) -> Access:
        claims = self._claims(token)
        if claims.get("typ") != typ:
            raise BadToken(f"the token is no {typ} token")
        uid, sv, exp = claims.get("uid"), claims.get("sv"), claims.get("exp")
        if type(uid) is not int or not 0 < uid <= MAX_ID:
            raise BadToken("the token names no user")
        if sv is None:
            sv = 0
        if type(sv) is not int or sv < 0:
            raise BadToken("the session version of the token is no number")
        if not isinstance(exp, int | float):
            raise BadToken("the token does not say when it expires")
        if not now < exp:
            raise BadToken("the token has expired", expired=True)
        if any(_is_after(claims.get(name), now + AHEAD_S) for name in ("iat", "nbf")):
            raise BadToken("the token is not valid yet")
        access = Access(uid, sv, exp, token_name(token, claims.get("jti")))
        if self._revoked.is_revoked(access.token, user_name(uid), now=now):
            raise BadToken("the token has been revoked", revoked=True)
        return access

    def is_user_revoked(self, uid: int, now: float) -> bool:
        return self._revoked.is_revoked(user_name(uid), now=now)

    def _claims(self, token: str) -> dict[str, Any]:
        for secret in self.signing_keys:
            try:
                return jwt.decode(token, secret, algorithms=["HS256"], issuer=self._issuer, options=_ONLY_THE_SIGNATURE)
            except (jwt.PyJWTError, ValueError, RecursionError):  # the last two: texts that were never a token
                continue
        raise BadToken("the token is not valid")


def _is_after(claim: object, when: float) -> bool:
    return isinstance(claim, int | float) and claim > when
