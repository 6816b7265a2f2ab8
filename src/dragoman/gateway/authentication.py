"""Identifies clients, nodes and operators by their tokens; without a secret everybody is `local`.

Tokens are signed with HS256. Two secrets are valid at a time, so that one can be replaced without a pause. Nothing
listens beyond loopback without a secret unless `security.insecure_allow_anonymous` is set. A refusal says what is wrong
with a token only if its signature is valid. With `security.chat_tokens_for_speech` an access token of chat counts as
that of a client. Its principal is a chat user, never the client whose token happens to have the same number as its
subject.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from secrets import token_hex, token_urlsafe
from time import time
from typing import Any, Final, Literal

import jwt

from dragoman.domain.revocation import CHAT_OWNER, RevocationList, SigningKeys, token_name, user_name
from dragoman.domain.rooms import Role, RoomClaim
from dragoman.services.chat.credentials import Access, BadToken, Tokens

Kind = Literal["client", "node", "operator"]
# An owner is written as tenant/subject: a tenant with a slash in it could pass for another one.
TENANT: Final = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
MAX_SUBJECT: Final = 256
_SIGNATURE_ONLY: Final[Any] = {f"verify_{claim}": False for claim in ("aud", "exp", "iat", "iss", "jti", "nbf", "sub")}
JTI_BYTES: Final = 12  # of the id that revokes a token
GUEST_LIFETIME_S: Final = 3600
ROOM_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
NODE_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")  # it becomes part of Redis keys


@dataclass(frozen=True, slots=True)
class Principal:
    kind: Kind
    subject: str
    tenant: str = "default"
    anonymous: bool = False  # without a token; a token may have the subject "local"
    chat_user: bool = False  # `subject` is the id of a chat user
    gateway: bool = False  # it serves many clients: its sessions may outlive their connections
    room_claim: RoomClaim | None = None  # of a client's token for one room
    token: str = field(default="", compare=False)  # the name by which its token can be revoked

    @property
    def owner(self) -> str:
        """Owner of a session or node. No tenant can be named `~chat` or `~anonymous`, so the three never collide."""
        if self.anonymous or self.chat_user:
            return f"{'~anonymous/' if self.anonymous else CHAT_OWNER}{self.subject}"
        return f"{self.tenant}/{self.subject}"

    @property
    def name(self) -> str:
        """The name by which it can be revoked."""
        return user_name(self.subject) if self.chat_user else f"{self.kind}:{self.owner}"


LOCAL = "local"
REVOKED = "the token, or the principal it names, has been revoked"


class Unauthorized(Exception):
    """There is no token, or it is not valid; the sentence never quotes it."""


class Authenticator:
    def __init__(
        self,
        secrets: Iterable[str],
        issuer: str,
        *,
        leeway_s: float = 0.0,
        allow_anonymous: bool = False,
        local: bool = False,
        chat: Tokens | None = None,
        chat_tokens_for_speech: bool = True,
        revoked: RevocationList | None = None,
    ) -> None:
        """`local`: only this machine can reach the server, and no secret is set."""
        self._chat, self._chat_tokens_for_speech, self._local = chat, chat_tokens_for_speech, local
        # Shared, not copied: the secrets may change.
        self._signing_keys = secrets if isinstance(secrets, SigningKeys) else SigningKeys(secrets)
        self._issuer, self._leeway_s, self._allow_anonymous = issuer, leeway_s, allow_anonymous
        self._revoked = revoked if revoked is not None else RevocationList()

    @property
    def has_secret(self) -> bool:
        """Whether tokens can be checked at all."""
        return bool(self._signing_keys)

    def identify(self, kind: Kind, token: str | None) -> Principal:
        """The principal of a token of this kind."""
        if not self._signing_keys:
            return Principal(kind, LOCAL, anonymous=True, gateway=self._local and kind == "client")
        if not token:
            if self._allow_anonymous and kind != "operator":
                return Principal(kind, LOCAL, anonymous=True)
            raise Unauthorized("a token is needed")
        user = self._chat_user(token) if kind == "client" else None
        if user is not None and not self._chat_tokens_for_speech:
            raise Unauthorized(
                "a chat token does not open speech sessions: use a client token, or set security.chat_tokens_for_speech"
            )
        if user is not None:
            return Principal(kind, str(user.uid), chat_user=True, token=user.token)
        principal = self._principal(kind, token, self._claims(token))
        if self.is_revoked(principal):
            raise Unauthorized(REVOKED)
        return principal

    def is_revoked(self, principal: Principal) -> bool:
        return not principal.anonymous and self._revoked.is_revoked(principal.token, principal.name, now=time())

    @staticmethod
    def _principal(kind: Kind, token: str, claims: Mapping[str, object]) -> Principal:
        if claims.get("typ") != kind:
            raise Unauthorized(f"the token is not one for {'an' if kind == 'operator' else 'a'} {kind}")
        subject, tenant = claims.get("sub", ""), claims.get("tenant", "default")
        if not isinstance(subject, str) or not isinstance(tenant, str):
            raise Unauthorized("the token's subject or tenant is not a text")
        if not TENANT.fullmatch(tenant) or len(subject) > MAX_SUBJECT:
            raise Unauthorized("the token's tenant is not a name, or its subject is too long")
        if kind == "node" and not NODE_ID.fullmatch(subject):
            raise Unauthorized("the token names no node id in its subject")
        gateway, name = kind == "client" and claims.get("gateway") is True, token_name(token, claims.get("jti"))
        room_claim = _room_claim(claims) if kind == "client" else None
        return Principal(kind, subject, tenant, gateway=gateway, room_claim=room_claim, token=name)

    def sign_guest(self, room: str, role: Role, tenant: str, subject: str = "") -> tuple[str, Principal]:
        """A token for a guest of one room, for `GUEST_LIFETIME_S`; without a subject, for a new guest."""
        claim, subject = RoomClaim(room, role), subject or f"guest-{token_hex(8)}"
        secret = self._signing_keys.signing
        token = signed_token(secret, self._issuer, "client", subject, GUEST_LIFETIME_S, tenant, room_claim=claim)
        return token, Principal("client", subject, tenant, room_claim=claim)

    def revocable(self, token: str) -> tuple[str, float] | None:
        """The name by which a token of any class can be revoked, and the time until which it is accepted; None: it is
        not signed by this cluster, or has no expiry."""
        for secret in self._chat.signing_keys if self._chat is not None else self._signing_keys:
            try:
                claims = jwt.decode(token, secret, algorithms=["HS256"], options=_SIGNATURE_ONLY)
            except (jwt.PyJWTError, ValueError, RecursionError):
                continue
            expires_s = claims.get("exp")
            if isinstance(expires_s, int | float) and isfinite(expires_s):
                return token_name(token, claims.get("jti")), expires_s + self._leeway_s
        return None

    def _chat_user(self, token: str) -> Access | None:
        if self._chat is None:
            return None
        try:
            return self._chat.read_access(token, time())
        except BadToken as bad:
            if bad.revoked:
                raise Unauthorized(REVOKED) from None
            return None

    def _claims(self, token: str) -> dict[str, object]:
        why = "the token is not valid"
        for secret in self._signing_keys:
            try:
                return dict(
                    jwt.decode(
                        token,
                        secret,
                        algorithms=["HS256"],
                        issuer=self._issuer,
                        leeway=self._leeway_s,
                        options={"require": ["exp", "iss"]},
                    )
                )
            except jwt.ExpiredSignatureError:
                why = "the token has expired"
            except jwt.ImmatureSignatureError:
                why = "the token is not valid yet"
            except jwt.InvalidIssuerError:
                why = "the token is of another issuer"
            except jwt.MissingRequiredClaimError as missing:
                why = f"the token has no {missing.claim}"
            except (jwt.PyJWTError, ValueError, RecursionError):  # the last two: texts that were never a token
                continue
        raise Unauthorized(why)


def _room_claim(claims: Mapping[str, object]) -> RoomClaim | None:
    room, role = claims.get("room"), claims.get("role", Role.SPEAKER.value)
    if room is None:
        return None
    if not isinstance(room, str) or not ROOM_ID.fullmatch(room) or not isinstance(role, str) or role not in list(Role):
        raise Unauthorized("the token's room is not the id of a room, or its role not host, speaker or listener")
    return RoomClaim(room, Role(role))


def signed_token(
    secret: str,
    issuer: str,
    kind: Kind,
    subject: str,
    lifetime_s: float,
    tenant: str = "",
    *,
    gateway: bool = False,
    room_claim: RoomClaim | None = None,
) -> str:
    now = int(time())
    claims: dict[str, object] = {"iss": issuer, "typ": kind, "sub": subject, "iat": now, "exp": now + int(lifetime_s)}
    claims["jti"] = token_urlsafe(JTI_BYTES)
    if tenant:
        claims["tenant"] = tenant
    if gateway:
        claims["gateway"] = True
    if room_claim is not None:
        claims |= {"room": room_claim.room, "role": room_claim.role.value}
    return jwt.encode(claims, secret, algorithm="HS256")


def token_of(headers: Mapping[str, str], query: Mapping[str, str]) -> str | None:
    """A token in the handshake: `Authorization: Bearer …`, or `?token=…` for browsers."""
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and value.strip():
        return value.strip()
    return query.get("token")


def chat_token_of(headers: Mapping[str, str], query: Mapping[str, str]) -> str | None:
    """The same for chat, whose clients may call it `?accessToken=…`."""
    return token_of(headers, query) or query.get("accessToken")
