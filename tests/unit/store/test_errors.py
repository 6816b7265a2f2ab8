from dragoman.store.errors import RedisAway, Refused, StoreError, UnknownOutcome


def test_all_that_can_go_wrong_is_one_tree() -> None:
    assert all(issubclass(error, StoreError) for error in (RedisAway, UnknownOutcome, Refused))


def test_whether_it_may_have_happened_is_told_apart() -> None:
    assert not issubclass(UnknownOutcome, RedisAway)
    assert not issubclass(RedisAway, UnknownOutcome)


def test_a_refusal_knows_its_word() -> None:
    assert Refused("WRONGTYPE Operation against a key").word == "WRONGTYPE"
    assert Refused("").word == ""
