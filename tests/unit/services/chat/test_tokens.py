import base64
import json
from typing import Any

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.protocol.chat import MAX_ID
from dragoman.services.chat.tokens import Access, BadToken, Tokens

NOW = 1_700_000_000.5
SECRET = "a-secret-of-more-than-thirty-two-bytes"
OLD = "an-old-secret-of-more-than-thirty-two-bytes"
TOKENS = Tokens((SECRET, OLD), "mini-im", access_ttl_s=60, refresh_ttl_s=600)


def made(secret: str = SECRET, algorithm: str = "HS256", **claims: Any) -> str:
    """A token somebody else made, whatever it says; a claim that is None is left out."""
    all_claims = {"iss": "mini-im", "iat": int(NOW), "exp": int(NOW) + 60, "uid": 42, "typ": "access", "sv": 3} | claims
    payload = {name: value for name, value in all_claims.items() if value is not None}
    return jwt.api_jws.encode(json.dumps(payload).encode(), secret, algorithm=algorithm)


def refused(token: str, now: float = NOW) -> BadToken:
    with pytest.raises(BadToken) as error:
        TOKENS.read_access(token, now)
    return error.value


def unsigned(token: str) -> str:
    head = base64.urlsafe_b64encode(b'{"alg":"none","typ":"JWT"}').rstrip(b"=").decode()
    return f"{head}.{token.split('.')[1]}."


def test_a_token_is_read_as_it_was_made() -> None:
    assert TOKENS.read_access(TOKENS.access(42, 3, NOW), NOW) == Access(42, 3, 1_700_000_061)
    assert TOKENS.read_refresh(TOKENS.refresh(42, 3, NOW), NOW) == Access(42, 3, 1_700_000_601)


def test_the_claims_are_those_that_others_know() -> None:
    claims = jwt.decode(TOKENS.access(42, 3, NOW), options={"verify_signature": False})
    assert len(claims.pop("jti")) == 16
    assert claims == {
        "iss": "mini-im",
        "iat": 1_700_000_000,
        "exp": 1_700_000_061,
        "uid": 42,
        "typ": "access",
        "sv": 3,
    }


def test_a_token_is_good_until_it_expires_and_not_a_moment_longer() -> None:
    token = made()
    assert TOKENS.read_access(token, int(NOW) + 59.999).uid == 42
    assert refused(token, int(NOW) + 60).expired


def test_a_token_without_a_session_version_is_of_version_0() -> None:
    assert TOKENS.read_access(made(sv=None), NOW).sv == 0


def test_tokens_of_the_previous_secret_are_accepted_and_never_made() -> None:
    assert TOKENS.read_access(made(OLD), NOW).uid == 42
    with pytest.raises(BadToken):
        Tokens((OLD,), "mini-im", 60, 600).read_access(TOKENS.access(42, 3, NOW), NOW)


def test_secrets_that_are_changed_count_from_the_next_token_on() -> None:
    tokens = Tokens((OLD,), "mini-im", 60, 600)
    before = tokens.access(42, 3, NOW)
    assert tokens.signing_keys.change((SECRET, OLD))
    after = tokens.access(42, 3, NOW)
    assert TOKENS.read_access(after, NOW) == tokens.read_access(after, NOW) == tokens.read_access(before, NOW)
    assert tokens.signing_keys.change((SECRET,))
    with pytest.raises(BadToken):
        tokens.read_access(before, NOW)


def test_an_expired_token_of_the_previous_secret_is_expired() -> None:
    assert refused(made(OLD, exp=1)).expired


def test_claims_that_are_not_ours_mean_nothing() -> None:
    more = made(sub=42, aud="app", jti=7, nbf="soon", iat="soon", role=["admin"])
    assert TOKENS.read_access(more, NOW).uid == 42


@pytest.mark.parametrize("claim", ["iat", "nbf"])
def test_a_token_from_the_future_is_not_valid_yet_unless_a_clock_is_only_a_little_ahead(claim: str) -> None:
    tomorrow: dict[str, Any] = {claim: int(NOW) + 86_400}
    soon: dict[str, Any] = {claim: int(NOW) + 30}
    assert str(refused(made(**tomorrow))) == "the token is not valid yet"
    assert TOKENS.read_access(made(**soon), NOW).uid == 42


@pytest.mark.parametrize(
    "claims",
    [
        {"uid": "42"},
        {"uid": 42.0},
        {"uid": True},
        {"uid": None},
        {"uid": 0},
        {"uid": -1},
        {"uid": MAX_ID + 1},
        {"sv": "3"},
        {"sv": -1},
        {"sv": True},
        {"exp": None},
        {"exp": "tomorrow"},
        {"typ": "refresh"},
        {"typ": None},
        {"typ": ["access"]},
        {"iss": "somebody-else"},
        {"iss": None},
    ],
)
def test_a_token_with_a_claim_that_is_wrong_is_bad(claims: dict[str, Any]) -> None:
    assert not refused(made(**claims)).expired


def test_a_token_that_is_not_signed_is_bad() -> None:
    refused(unsigned(made()))
    refused(made().rpartition(".")[0] + ".")


def test_a_token_signed_with_another_secret_or_another_algorithm_is_bad() -> None:
    refused(made("another-secret-of-more-than-thirty-two-bytes"))
    refused(made(algorithm="HS512", secret=SECRET * 2))
    refused(jwt.api_jws.encode(b"{}", SECRET, algorithm="HS256"))


@given(st.text())
def test_any_text_is_bad(text: str) -> None:
    refused(text)


@given(st.integers(0), st.characters())
def test_a_token_with_any_letter_changed_is_bad_or_the_same(at: int, letter: str) -> None:
    token = TOKENS.access(42, 3, NOW)
    at %= len(token)
    changed = token[:at] + letter + token[at + 1 :]
    try:
        # The last letter of a signature has bits that mean nothing.
        assert TOKENS.read_access(changed, NOW).uid == 42
    except BadToken:
        assert changed != token


def test_a_refusal_does_not_quote_the_token() -> None:
    assert "eyJ" not in str(refused(made(exp=1)))


def test_without_a_secret_there_are_no_tokens() -> None:
    with pytest.raises(ValueError, match="need a secret"):
        Tokens(("", ""), "mini-im", 60, 600)
