"""The list of revoked tokens and principals: names, lives, and copies that must not miss a change."""

import pytest

from dragoman.domain.revocation import Revocation, RevocationList, token_name

NOW = 1_700_000_000.0
FOREVER = Revocation(1)


def until(seconds: float) -> Revocation:
    return Revocation(1, "olga", int((NOW + seconds) * 1000))


def test_token_is_named_by_its_jti() -> None:
    assert token_name("head.body.signature", "abc-1") == "token:abc-1"


@pytest.mark.parametrize("jti", [None, "", 7, "x" * 65, "a b", "a\n", "ä", ["a"]])
def test_token_without_a_usable_jti_is_named_by_a_digest_of_what_is_signed(jti: object) -> None:
    name = token_name("head.body.signature", jti)
    assert name.startswith("token:sha256-")
    assert len(name) == len("token:sha256-") + 64
    assert name == token_name("head.body.another-way-to-write-it", jti)
    assert name != token_name("head.other.signature", jti)


def test_name_is_revoked_until_the_end_of_its_entry() -> None:
    revoked = RevocationList()
    assert not revoked.is_revoked("token:a", "client:default/ann", now=NOW)
    revoked.replace(1, [("token:a", until(10)), ("client:default/ann", FOREVER)])
    assert revoked.is_revoked("token:a", now=NOW + 9.9)
    assert not revoked.is_revoked("token:a", now=NOW + 10)
    assert revoked.is_revoked("token:b", "client:default/ann", now=NOW + 10**9)
    assert [name for name, _ in revoked.entries(NOW)] == ["client:default/ann", "token:a"]
    assert [name for name, _ in revoked.entries(NOW + 10)] == ["client:default/ann"]


def test_change_that_follows_is_applied_and_one_that_is_known_changes_nothing() -> None:
    revoked = RevocationList()
    assert revoked.change(1, "token:a", FOREVER)
    assert revoked.change(2, "token:a", None)
    assert not revoked.is_revoked("token:a", now=NOW)
    assert revoked.change(1, "token:a", FOREVER)
    assert (revoked.version, len(revoked)) == (2, 0)


def test_change_is_refused_if_one_before_it_is_missing() -> None:
    revoked = RevocationList()
    assert not revoked.change(2, "token:b", FOREVER)
    assert (revoked.version, len(revoked)) == (0, 0)


def test_owners_of_sessions_are_clients_and_chat_users() -> None:
    revoked = RevocationList()
    names = ["client:acme/ann", "user:42", "node:default/n1", "operator:default/olga", "token:client:x"]
    revoked.replace(1, [(name, FOREVER) for name in names])
    assert revoked.owners() == {"acme/ann", "~chat/42"}
