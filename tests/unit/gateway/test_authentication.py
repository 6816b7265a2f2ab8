import base64
import json
import time
from typing import Any

import jwt
import pytest

from dragoman.domain.revocation import Revocation, RevocationList
from dragoman.domain.signing_keys import SigningKeys
from dragoman.gateway.authentication import LOCAL, REVOKED, Authenticator, Kind, Principal, Unauthorized, token_of
from dragoman.services.chat.tokens import Tokens

SECRET = "a-secret-of-more-than-thirty-two-bytes"
OLD = "the-secret-before-that-one-was-long-too"
KINDS: tuple[Kind, ...] = ("client", "node", "operator")


@pytest.fixture
def keeper() -> Authenticator:
    return Authenticator((SECRET, OLD), "us")


def token(secret: str = SECRET, algorithm: str = "HS256", **claims: Any) -> str:
    told = {"iss": "us", "exp": time.time() + 60, "typ": "operator", "sub": "olga"} | claims
    return jwt.encode({name: value for name, value in told.items() if value is not None}, secret, algorithm)


def refusal(keeper: Authenticator, kind: Kind, given: str | None) -> str:
    with pytest.raises(Unauthorized) as refused:
        keeper.identify(kind, given)
    if given:
        assert given not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize("kind", KINDS)
def test_a_token_of_the_kind_names_its_principal(keeper: Authenticator, kind: Kind) -> None:
    assert keeper.identify(kind, token(typ=kind)) == Principal(kind, "olga", "default")
    assert keeper.identify(kind, token(typ=kind, tenant="acme")) == Principal(kind, "olga", "acme")


@pytest.mark.parametrize("kind", KINDS)
def test_a_token_of_another_kind_is_refused(keeper: Authenticator, kind: Kind) -> None:
    for other in {*KINDS, None} - {kind}:
        a = "an" if kind == "operator" else "a"
        assert refusal(keeper, kind, token(typ=other)) == f"the token is not one for {a} {kind}"


def test_the_secret_before_still_opens_and_any_other_does_not(keeper: Authenticator) -> None:
    assert keeper.identify("operator", token(OLD)).subject == "olga"
    assert refusal(keeper, "operator", token("somebody-elses-secret-of-enough-bytes")) == "the token is not valid"
    assert refusal(Authenticator((SECRET, ""), "us"), "operator", token(OLD)) == "the token is not valid"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("jti", [None, "t-1"])
def test_revoked_token_is_refused_and_others_of_its_principal_are_not(kind: Kind, jti: str | None) -> None:
    revoked = RevocationList()
    keeper = Authenticator((SECRET,), "us", revoked=revoked)
    stolen, other = token(typ=kind, jti=jti), token(typ=kind, jti="t-2")
    found = keeper.revocable(stolen)
    assert found is not None
    revoked.change(1, found[0], Revocation(1))
    assert refusal(keeper, kind, stolen) == REVOKED
    assert keeper.identify(kind, other).subject == "olga"


def test_signature_written_in_another_way_does_not_save_a_revoked_token() -> None:
    revoked = RevocationList()
    keeper = Authenticator((SECRET,), "us", revoked=revoked)
    stolen = token()
    name, _ = keeper.revocable(stolen) or ("", 0)
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    same = [stolen[:-1] + letters[letters.index(stolen[-1]) // 4 * 4 + low] for low in range(4)]  # 2 bits mean nothing
    assert stolen in same
    revoked.change(1, name, Revocation(1))
    assert {refusal(keeper, "operator", text) for text in same} <= {REVOKED, "the token is not valid"}


@pytest.mark.parametrize("kind", KINDS)
def test_revoked_principal_is_refused_and_one_of_another_class_or_tenant_is_not(kind: Kind) -> None:
    revoked = RevocationList()
    keeper = Authenticator((SECRET,), "us", revoked=revoked)
    revoked.change(1, keeper.identify(kind, token(typ=kind)).name, Revocation(1))
    assert refusal(keeper, kind, token(typ=kind)) == REVOKED
    assert keeper.identify(kind, token(typ=kind, tenant="acme")).tenant == "acme"
    for other in set(KINDS) - {kind}:
        assert keeper.identify(other, token(typ=other)).subject == "olga"


def test_revoked_chat_user_is_refused_as_a_client() -> None:
    revoked = RevocationList()
    tokens = Tokens((SECRET,), "mini-im", 60, 600, revoked)
    keeper = Authenticator((SECRET,), "us", chat=tokens, revoked=revoked)
    access = tokens.access(7, 0, time.time())
    revoked.change(1, keeper.identify("client", access).name, Revocation(1))
    assert refusal(keeper, "client", access) == REVOKED
    assert keeper.identify("client", token(typ="client", sub="7")).subject == "7"


def test_client_without_a_token_is_not_revoked_by_the_name_of_another() -> None:
    revoked = RevocationList()
    keeper = Authenticator((), "us", revoked=revoked)
    revoked.replace(1, [("client:default/local", Revocation(1)), ("client:~anonymous/local", Revocation(1))])
    assert keeper.identify("client", None).anonymous


def test_a_token_without_a_signature_is_refused(keeper: Authenticator) -> None:
    assert refusal(keeper, "operator", token("", "none")) == "the token is not valid"
    head, body, _ = token().split(".")
    assert refusal(keeper, "operator", f"{head}.{body}.") == "the token is not valid"


def test_another_algorithm_is_refused_even_with_our_secret(keeper: Authenticator) -> None:
    longer = "a-secret-of-more-than-sixty-four-bytes-because-that-is-asked-for-by-hs512"
    assert refusal(Authenticator((longer,), "us"), "operator", token(longer, "HS512")) == "the token is not valid"


def test_expired_token_is_refused_as_expired_outside_the_leeway(keeper: Authenticator) -> None:
    late = token(exp=time.time() - 10)
    assert refusal(keeper, "operator", late) == "the token has expired"
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
    keeper: Authenticator, kind: Kind, claims: dict[str, Any], why: str
) -> None:
    assert refusal(keeper, kind, token(typ=kind, **claims)) == why
    stranger = token("somebody-elses-secret-of-enough-bytes", typ=kind, **claims)
    assert refusal(keeper, kind, stranger) == "the token is not valid"


@pytest.mark.parametrize("tenant", ["", "a/b", "a b", "\n", "x" * 65, "é"])
def test_a_tenant_is_a_name_so_that_none_can_pass_for_another(keeper: Authenticator, tenant: str) -> None:
    assert refusal(keeper, "client", token(typ="client", tenant=tenant)).startswith("the token's tenant is not a name")
    assert keeper.identify("client", token(typ="client", sub="b/c", tenant="a")).owner == "a/b/c"


def test_a_subject_has_an_end(keeper: Authenticator) -> None:
    assert refusal(keeper, "client", token(typ="client", sub="x" * 257)).endswith("its subject is too long")


def test_secrets_that_are_changed_count_from_the_next_token_on() -> None:
    ring = SigningKeys((OLD,))
    keeper = Authenticator(ring, "us")
    assert refusal(keeper, "operator", token(SECRET))
    ring.change((SECRET, OLD))
    assert keeper.identify("operator", token(SECRET)) == keeper.identify("operator", token(OLD))
    ring.change((SECRET,))
    assert keeper.identify("operator", token(SECRET)).subject == "olga"
    assert refusal(keeper, "operator", token(OLD)) == "the token is not valid"


@pytest.mark.parametrize("claims", [{"sub": 7}, {"tenant": 7}, {"tenant": None, "sub": []}])
def test_the_names_in_a_token_are_texts(keeper: Authenticator, claims: dict[str, Any]) -> None:
    assert refusal(keeper, "node", token(typ="node", **claims)).startswith("the token")


@pytest.mark.parametrize("sub", [None, "", "a{b}", "a b", "a|b", "x" * 65])
def test_a_nodes_token_names_its_id(keeper: Authenticator, sub: str | None) -> None:
    assert refusal(keeper, "node", token(typ="node", sub=sub)) == "the token names no node id in its subject"
    assert keeper.identify("client", token(typ="client", sub=sub)).subject == (sub or "")


def test_a_token_for_one_called_local_is_not_an_anonymous_one(keeper: Authenticator) -> None:
    assert keeper.identify("node", token(typ="node", sub=LOCAL)) == Principal("node", LOCAL, anonymous=False)


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
def test_malformed_token_is_refused_like_a_wrong_one(keeper: Authenticator, given: str) -> None:
    assert refusal(keeper, "operator", given) == "the token is not valid"


def test_connection_without_a_token_is_refused(keeper: Authenticator) -> None:
    for given in (None, ""):
        assert refusal(keeper, "client", given) == "a token is needed"


def test_anonymous_clients_and_nodes_may_be_allowed_but_no_operators() -> None:
    keeper = Authenticator((SECRET,), "us", allow_anonymous=True)
    assert keeper.identify("client", None) == Principal("client", LOCAL, anonymous=True)
    assert keeper.identify("node", None) == Principal("node", LOCAL, anonymous=True)
    assert refusal(keeper, "operator", None) == "a token is needed"
    assert refusal(keeper, "client", "wrong") == "the token is not valid"


@pytest.mark.parametrize("kind", KINDS)
def test_clients_are_local_when_no_secret_is_set(kind: Kind) -> None:
    keeper = Authenticator(("", ""), "us")
    assert keeper.identify(kind, None) == keeper.identify(kind, "anything") == Principal(kind, LOCAL, anonymous=True)


@pytest.mark.parametrize(
    ("headers", "query", "found"),
    [
        ({"authorization": "Bearer abc"}, {}, "abc"),
        ({"authorization": "bearer  abc "}, {}, "abc"),
        ({"authorization": "Basic abc"}, {}, None),
        ({"authorization": "Bearer"}, {"token": "q"}, "q"),
        ({"authorization": "Bearer h"}, {"token": "q"}, "h"),
        ({}, {}, None),
    ],
)
def test_a_token_comes_in_the_header_or_in_the_query(
    headers: dict[str, str], query: dict[str, str], found: str | None
) -> None:
    assert token_of(headers, query) == found


def test_chat_user_may_open_a_speech_session_and_nothing_else() -> None:
    tokens = Tokens((SECRET,), "mini-im", 60, 60)
    keeper = Authenticator((SECRET,), "us", chat=tokens)
    access = tokens.access(42, 0, time.time())
    assert keeper.identify("client", access) == Principal("client", "42", chat_user=True)
    assert refusal(keeper, "node", access)
    assert refusal(keeper, "operator", access)


def test_expired_chat_tokens_and_refresh_tokens_open_no_speech_session() -> None:
    tokens = Tokens((SECRET,), "mini-im", 60, 60)
    keeper = Authenticator((SECRET,), "us", chat=tokens)
    assert refusal(keeper, "client", tokens.access(42, 0, time.time() - 61))
    assert refusal(keeper, "client", tokens.refresh(42, 0, time.time()))


def test_a_chat_user_and_a_client_token_with_its_id_as_subject_own_different_things() -> None:
    tokens = Tokens((SECRET,), "mini-im", 60, 60)
    keeper = Authenticator((SECRET,), "us", chat=tokens)
    user = keeper.identify("client", tokens.access(7, 0, time.time()))
    others = [keeper.identify("client", token(typ="client", sub=sub)) for sub in ("7", "chat:7", "chat/7", user.owner)]
    assert user.owner not in {other.owner for other in others}
    assert user not in others


def test_an_anonymous_client_and_a_client_token_with_the_subject_local_own_different_things() -> None:
    keeper = Authenticator((SECRET,), "us", allow_anonymous=True)
    anonymous, named = keeper.identify("client", None), keeper.identify("client", token(typ="client", sub=LOCAL))
    assert anonymous.owner != named.owner


def test_client_is_a_gateway_if_its_token_says_so_and_no_other_kind_is(keeper: Authenticator) -> None:
    assert keeper.identify("client", token(typ="client", gateway=True)).gateway
    for said in ("true", 1, None, False):
        assert not keeper.identify("client", token(typ="client", gateway=said)).gateway
    assert not keeper.identify("operator", token(typ="operator", gateway=True)).gateway


def test_anonymous_client_is_a_gateway_only_where_this_machine_alone_reaches_the_server() -> None:
    assert Authenticator((), "dragoman", local=True).identify("client", None).gateway
    assert not Authenticator((), "dragoman", local=False).identify("client", None).gateway
    guarded = Authenticator((SECRET,), "dragoman", allow_anonymous=True, local=True)
    assert not guarded.identify("client", None).gateway
