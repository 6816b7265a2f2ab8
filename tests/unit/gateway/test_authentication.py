import base64
import json
import time
from itertools import product
from typing import Any

import jwt
import pytest

from dragoman.domain.revocation import Revocation, RevocationList, SigningKeys
from dragoman.domain.rooms import Role, RoomClaim
from dragoman.gateway.authentication import LOCAL, REVOKED, Authenticator, Kind, Principal, Unauthorized, token_of
from dragoman.services.chat.credentials import Tokens
from support.tables import for_each

SECRET = "a-secret-of-more-than-thirty-two-bytes"
OLD = "the-secret-before-that-one-was-long-too"
KINDS: tuple[Kind, ...] = ("client", "node", "operator")


@pytest.fixture
def authenticator() -> Authenticator:
    return Authenticator((SECRET, OLD), "us")


def token(secret: str = SECRET, algorithm: str = "HS256", **claims: Any) -> str:
    payload = {"iss": "us", "exp": time.time() + 60, "typ": "operator", "sub": "olga"} | claims
    return jwt.encode({name: value for name, value in payload.items() if value is not None}, secret, algorithm)


def refusal(authenticator: Authenticator, kind: Kind, given: str | None) -> str:
    with pytest.raises(Unauthorized) as refused:
        authenticator.identify(kind, given)
    if given:
        assert given not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize("kind", KINDS)
def test_a_token_of_the_kind_names_its_principal(authenticator: Authenticator, kind: Kind) -> None:
    assert authenticator.identify(kind, token(typ=kind)) == Principal(kind, "olga", "default")
    assert authenticator.identify(kind, token(typ=kind, tenant="acme")) == Principal(kind, "olga", "acme")


@pytest.mark.parametrize("kind", KINDS)
def test_a_token_of_another_kind_is_refused(authenticator: Authenticator, kind: Kind) -> None:
    for other in {*KINDS, None} - {kind}:
        a = "an" if kind == "operator" else "a"
        assert refusal(authenticator, kind, token(typ=other)) == f"the token is not one for {a} {kind}"


def test_previous_secret_is_accepted_and_any_other_is_not(authenticator: Authenticator) -> None:
    assert authenticator.identify("operator", token(OLD)).subject == "olga"
    assert (
        refusal(authenticator, "operator", token("somebody-elses-secret-of-enough-bytes")) == "the token is not valid"
    )
    assert refusal(Authenticator((SECRET, ""), "us"), "operator", token(OLD)) == "the token is not valid"


@for_each(product(KINDS, [None, "t-1"]))
def test_revoked_token_is_refused_and_others_of_its_principal_are_not(kind: Kind, jti: str | None) -> None:
    revoked = RevocationList()
    authenticator = Authenticator((SECRET,), "us", revoked=revoked)
    stolen, other = token(typ=kind, jti=jti), token(typ=kind, jti="t-2")
    found = authenticator.revocable(stolen)
    assert found is not None
    revoked.change(1, found[0], Revocation(1))
    assert refusal(authenticator, kind, stolen) == REVOKED
    assert authenticator.identify(kind, other).subject == "olga"


def test_signature_written_in_another_way_does_not_save_a_revoked_token() -> None:
    revoked = RevocationList()
    authenticator = Authenticator((SECRET,), "us", revoked=revoked)
    stolen = token()
    name, _ = authenticator.revocable(stolen) or ("", 0)
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    same = [stolen[:-1] + letters[letters.index(stolen[-1]) // 4 * 4 + low] for low in range(4)]  # 2 bits mean nothing
    assert stolen in same
    revoked.change(1, name, Revocation(1))
    assert {refusal(authenticator, "operator", text) for text in same} <= {REVOKED, "the token is not valid"}


@for_each(KINDS)
def test_revoked_principal_is_refused_and_one_of_another_class_or_tenant_is_not(kind: Kind) -> None:
    revoked = RevocationList()
    authenticator = Authenticator((SECRET,), "us", revoked=revoked)
    revoked.change(1, authenticator.identify(kind, token(typ=kind)).name, Revocation(1))
    assert refusal(authenticator, kind, token(typ=kind)) == REVOKED
    assert authenticator.identify(kind, token(typ=kind, tenant="acme")).tenant == "acme"
    for other in set(KINDS) - {kind}:
        assert authenticator.identify(other, token(typ=other)).subject == "olga"


def test_revoked_chat_user_is_refused_as_a_client() -> None:
    revoked = RevocationList()
    tokens = Tokens((SECRET,), "mini-im", 60, 600, revoked)
    authenticator = Authenticator((SECRET,), "us", chat=tokens, revoked=revoked)
    access = tokens.access(7, 0, time.time())
    revoked.change(1, authenticator.identify("client", access).name, Revocation(1))
    assert refusal(authenticator, "client", access) == REVOKED
    assert authenticator.identify("client", token(typ="client", sub="7")).subject == "7"


def test_client_without_a_token_is_not_revoked_by_the_name_of_another() -> None:
    revoked = RevocationList()
    authenticator = Authenticator((), "us", revoked=revoked)
    revoked.replace(1, [("client:default/local", Revocation(1)), ("client:~anonymous/local", Revocation(1))])
    assert authenticator.identify("client", None).anonymous


def test_a_token_without_a_signature_is_refused(authenticator: Authenticator) -> None:
    assert refusal(authenticator, "operator", token("", "none")) == "the token is not valid"
    head, body, _ = token().split(".")
    assert refusal(authenticator, "operator", f"{head}.{body}.") == "the token is not valid"


def test_another_algorithm_is_refused_even_with_our_secret(authenticator: Authenticator) -> None:
    longer = "a-secret-of-more-than-sixty-four-bytes-because-that-is-asked-for-by-hs512"
    assert refusal(Authenticator((longer,), "us"), "operator", token(longer, "HS512")) == "the token is not valid"


def test_expired_token_is_refused_as_expired_outside_the_leeway(authenticator: Authenticator) -> None:
    late = token(exp=time.time() - 10)
    assert refusal(authenticator, "operator", late) == "the token has expired"
    assert Authenticator((SECRET,), "us", leeway_s=60).identify("operator", late).subject == "olga"


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"exp": None}, "the token has no exp"),
        ({"iss": None}, "the token has no iss"),
        ({"iss": "them"}, "the token is of another issuer"),
        ({"nbf": time.time() + 86_400}, "the token is not valid yet"),
        ({"iat": time.time() + 86_400}, "the token is not valid yet"),
        ({"exp": "tomorrow"}, "the token is not valid"),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_own_token_that_is_not_valid_is_refused_with_the_reason(
    authenticator: Authenticator, kind: Kind, claims: dict[str, Any], why: str
) -> None:
    assert refusal(authenticator, kind, token(typ=kind, **claims)) == why
    stranger = token("somebody-elses-secret-of-enough-bytes", typ=kind, **claims)
    assert refusal(authenticator, kind, stranger) == "the token is not valid"


@pytest.mark.parametrize("tenant", ["", "a/b", "a b", "\n", "x" * 65, "é"])
def test_tenant_that_could_pass_for_another_is_refused(authenticator: Authenticator, tenant: str) -> None:
    assert refusal(authenticator, "client", token(typ="client", tenant=tenant)).startswith(
        "the token's tenant is not a name"
    )
    assert authenticator.identify("client", token(typ="client", sub="b/c", tenant="a")).owner == "a/b/c"


def test_subject_that_is_too_long_is_refused(authenticator: Authenticator) -> None:
    assert refusal(authenticator, "client", token(typ="client", sub="x" * 257)).endswith("its subject is too long")


def test_changed_secrets_apply_to_the_next_token() -> None:
    ring = SigningKeys((OLD,))
    authenticator = Authenticator(ring, "us")
    assert refusal(authenticator, "operator", token(SECRET))
    ring.change((SECRET, OLD))
    assert authenticator.identify("operator", token(SECRET)) == authenticator.identify("operator", token(OLD))
    ring.change((SECRET,))
    assert authenticator.identify("operator", token(SECRET)).subject == "olga"
    assert refusal(authenticator, "operator", token(OLD)) == "the token is not valid"


@pytest.mark.parametrize("claims", [{"sub": 7}, {"tenant": 7}, {"tenant": None, "sub": []}])
def test_token_whose_names_are_not_texts_is_refused(authenticator: Authenticator, claims: dict[str, Any]) -> None:
    assert refusal(authenticator, "node", token(typ="node", **claims)).startswith("the token")


@pytest.mark.parametrize("sub", [None, "", "a{b}", "a b", "a|b", "x" * 65])
def test_a_nodes_token_names_its_id(authenticator: Authenticator, sub: str | None) -> None:
    assert refusal(authenticator, "node", token(typ="node", sub=sub)) == "the token names no node id in its subject"
    assert authenticator.identify("client", token(typ="client", sub=sub)).subject == (sub or "")


def test_token_with_the_subject_local_is_not_anonymous(authenticator: Authenticator) -> None:
    assert authenticator.identify("node", token(typ="node", sub=LOCAL)) == Principal("node", LOCAL, anonymous=False)


@pytest.mark.parametrize(
    "given",
    [
        "x",
        "a.b.c",
        "....",
        "\udcff",
        "é" * 10,
        "\x00",
        "a" * 100_000,
        f"{base64.urlsafe_b64encode(b'[' * 100_000).decode()}.e30.x",
        f"{base64.urlsafe_b64encode(json.dumps({'alg': ['HS256']}).encode()).decode()}.e30.x",
    ],
)
def test_malformed_token_is_refused_like_a_wrong_one(authenticator: Authenticator, given: str) -> None:
    assert refusal(authenticator, "operator", given) == "the token is not valid"


def test_connection_without_a_token_is_refused(authenticator: Authenticator) -> None:
    for given in (None, ""):
        assert refusal(authenticator, "client", given) == "a token is needed"


def test_anonymous_clients_and_nodes_may_be_allowed_but_no_operators() -> None:
    authenticator = Authenticator((SECRET,), "us", allow_anonymous=True)
    assert authenticator.identify("client", None) == Principal("client", LOCAL, anonymous=True)
    assert authenticator.identify("node", None) == Principal("node", LOCAL, anonymous=True)
    assert refusal(authenticator, "operator", None) == "a token is needed"
    assert refusal(authenticator, "client", "wrong") == "the token is not valid"


@for_each(KINDS)
def test_clients_are_local_when_no_secret_is_set(kind: Kind) -> None:
    authenticator = Authenticator(("", ""), "us")
    assert (
        authenticator.identify(kind, None)
        == authenticator.identify(kind, "anything")
        == Principal(kind, LOCAL, anonymous=True)
    )


@for_each(
    [
        ({"authorization": "Bearer abc"}, {}, "abc"),
        ({"authorization": "bearer  abc "}, {}, "abc"),
        ({"authorization": "Basic abc"}, {}, None),
        ({"authorization": "Bearer"}, {"token": "q"}, "q"),
        ({"authorization": "Bearer h"}, {"token": "q"}, "h"),
        ({}, {}, None),
    ]
)
def test_token_is_read_from_the_header_or_from_the_query(
    headers: dict[str, str], query: dict[str, str], found: str | None
) -> None:
    assert token_of(headers, query) == found


def test_chat_user_may_open_a_speech_session_and_nothing_else() -> None:
    tokens = Tokens((SECRET,), "mini-im", 60, 60)
    authenticator = Authenticator((SECRET,), "us", chat=tokens)
    access = tokens.access(42, 0, time.time())
    assert authenticator.identify("client", access) == Principal("client", "42", chat_user=True)
    assert refusal(authenticator, "node", access)
    assert refusal(authenticator, "operator", access)


def test_expired_chat_tokens_and_refresh_tokens_open_no_speech_session() -> None:
    tokens = Tokens((SECRET,), "mini-im", 60, 60)
    authenticator = Authenticator((SECRET,), "us", chat=tokens)
    assert refusal(authenticator, "client", tokens.access(42, 0, time.time() - 61))
    assert refusal(authenticator, "client", tokens.refresh(42, 0, time.time()))


def test_a_chat_user_and_a_client_token_with_its_id_as_subject_own_different_things() -> None:
    tokens = Tokens((SECRET,), "mini-im", 60, 60)
    authenticator = Authenticator((SECRET,), "us", chat=tokens)
    user = authenticator.identify("client", tokens.access(7, 0, time.time()))
    others = [
        authenticator.identify("client", token(typ="client", sub=sub)) for sub in ("7", "chat:7", "chat/7", user.owner)
    ]
    assert user.owner not in {other.owner for other in others}
    assert user not in others


def test_an_anonymous_client_and_a_client_token_with_the_subject_local_own_different_things() -> None:
    authenticator = Authenticator((SECRET,), "us", allow_anonymous=True)
    anonymous, named = (
        authenticator.identify("client", None),
        authenticator.identify("client", token(typ="client", sub=LOCAL)),
    )
    assert anonymous.owner != named.owner


def test_client_is_a_gateway_if_its_token_says_so_and_no_other_kind_is(authenticator: Authenticator) -> None:
    assert authenticator.identify("client", token(typ="client", gateway=True)).gateway
    for said in ("true", 1, None, False):
        assert not authenticator.identify("client", token(typ="client", gateway=said)).gateway
    assert not authenticator.identify("operator", token(typ="operator", gateway=True)).gateway


def test_anonymous_client_is_a_gateway_only_where_this_machine_alone_reaches_the_server() -> None:
    assert Authenticator((), "dragoman", local=True).identify("client", None).gateway
    assert not Authenticator((), "dragoman", local=False).identify("client", None).gateway
    guarded = Authenticator((SECRET,), "dragoman", allow_anonymous=True, local=True)
    assert not guarded.identify("client", None).gateway


# ---------------------------------------------------------------- tokens for one room


def test_a_client_token_may_be_for_one_room(authenticator: Authenticator) -> None:
    found = authenticator.identify("client", token(typ="client", room="r-1", role="listener"))
    assert found.room_claim == RoomClaim("r-1", Role.LISTENER)
    assert authenticator.identify("client", token(typ="client", room="r-1")).room_claim == RoomClaim(
        "r-1", Role.SPEAKER
    )
    assert authenticator.identify("client", token(typ="client")).room_claim is None


@pytest.mark.parametrize(
    "claims",
    [{"room": 7}, {"room": ""}, {"room": "a/b"}, {"room": "r", "role": "king"}, {"room": "r", "role": 1}],
)
def test_a_token_with_a_bad_room_or_role_is_refused(authenticator: Authenticator, claims: dict[str, Any]) -> None:
    assert "the token's room" in refusal(authenticator, "client", token(typ="client", **claims))


def test_a_guest_gets_a_token_for_one_room_and_keeps_its_name_when_it_is_renewed(authenticator: Authenticator) -> None:
    first, guest = authenticator.sign_guest("r-1", Role.SPEAKER, "acme")
    assert authenticator.identify("client", first) == guest
    assert guest.subject.startswith("guest-")
    assert (guest.tenant, guest.room_claim) == ("acme", RoomClaim("r-1", Role.SPEAKER))
    again, same = authenticator.sign_guest("r-1", Role.SPEAKER, "acme", guest.subject)
    assert again != first
    assert same == guest
    assert authenticator.sign_guest("r-1", Role.SPEAKER, "acme")[1] != guest
