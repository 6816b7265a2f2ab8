"""Chat users in Redis: each connection removes and renews its own word, and what is kept for later is told once."""

import asyncio

import pytest

from dragoman.store.chat import users as chat_users
from dragoman.store.chat.users import EARLY_TTL_MS, NOTICE_TTL_MS, Users
from dragoman.store.keys import Keys
from dragoman.store.redis import Redis
from support.redis_servers import Connect

TTL_MS = 45_000
DELIVERED, READ = 1, 2
ID = 2**62  # no double holds these


@pytest.fixture
def users(redis: Redis, keys: Keys) -> Users:
    return Users(redis, keys, TTL_MS)


async def life_ms(redis: Redis, key: str) -> int:
    return int(await redis.call("PTTL", key))


# -- whose socket is where


async def test_newest_connection_owns_the_user_and_the_older_is_returned(users: Users) -> None:
    assert await users.owners([7]) == [""]
    assert await users.swap_owner(7, "i1|c1") == ""
    assert await users.swap_owner(7, "i2|c2") == "i1|c1"
    assert await users.owners([7, 8, 7]) == ["i2|c2", "", "i2|c2"]
    assert await users.owners([]) == []


async def test_closing_connection_deletes_only_its_own_owner_key(users: Users) -> None:
    await users.swap_owner(7, "i1|c1")
    await users.swap_owner(7, "i2|c2")
    await users.disown(7, "i1|c1")
    assert await users.owners([7]) == ["i2|c2"]
    await users.disown(7, "i2|c2")
    await users.disown(7, "i2|c2")
    assert await users.owners([7]) == [""]


async def test_owner_key_expires_when_it_is_not_renewed(users: Users, redis: Redis, keys: Keys) -> None:
    await users.swap_owner(7, "i1|c1")
    assert TTL_MS - 10_000 < await life_ms(redis, keys.user_owner(7)) <= TTL_MS
    await redis.call("PEXPIRE", keys.user_owner(7), 5_000)
    assert await users.renew(7, "i1|c1") == "OK"
    assert await life_ms(redis, keys.user_owner(7)) > 5_000


async def test_renewing_tells_what_is_elsewhere_and_what_was_forgotten_which_can_be_written_again(
    users: Users, redis: Redis, keys: Keys
) -> None:
    await users.swap_owner(1, "i1|a")
    await users.swap_owner(2, "i1|b")
    await users.swap_owner(3, "i2|c")
    await redis.call("DEL", keys.user_owner(2))
    renewed = [await users.renew(id, owner) for id, owner in ((1, "i1|a"), (2, "i1|b"), (3, "i1|c"))]
    assert renewed == ["OK", "NONE", "OTHER"]
    assert await users.own_again(2, "i1|b")
    assert await users.owners([1, 2, 3]) == ["i1|a", "i1|b", "i2|c"]
    assert await life_ms(redis, keys.user_owner(2)) > 0


async def test_a_socket_opened_elsewhere_while_a_forgotten_one_is_written_again_stays(
    users: Users,
) -> None:
    """Redis forgot; in the same moment the user came to another instance."""
    assert await users.renew(7, "i1|c1") == "NONE"
    await users.swap_owner(7, "i2|c2")
    assert not await users.own_again(7, "i1|c1")
    assert await users.owners([7]) == ["i2|c2"]


# -- session versions


async def test_session_versions_begin_at_nothing_and_rise_for_each_user_alone(users: Users) -> None:
    assert await users.session_version(7) == 0
    raised = await asyncio.gather(*(users.raise_session_version(7) for _ in range(20)))
    assert sorted(raised) == list(range(1, 21))
    assert await users.session_version(7) == 20
    assert await users.session_version(8) == 0


async def test_the_session_version_of_a_login_lapses_with_the_last_token_it_can_end(redis: Redis, keys: Keys) -> None:
    users = Users(redis, keys, TTL_MS, 50_000)
    await users.raise_session_version(7)
    assert 0 < await life_ms(redis, keys.session_version(7)) <= 50_000
    await redis.call("PEXPIRE", keys.session_version(7), 5_000)
    await users.raise_session_version(7)
    assert await life_ms(redis, keys.session_version(7)) > 5_000


async def test_the_session_version_outlives_any_token_once_an_operator_ended_all_sessions(
    redis: Redis, keys: Keys
) -> None:
    users = Users(redis, keys, TTL_MS, 50_000)
    await users.raise_session_version(7)
    assert await users.end_all_sessions(7) == 2
    assert await users.raise_session_version(7) == 3
    assert await life_ms(redis, keys.session_version(7)) > 3649 * 86_400_000


# -- receipts that came before the row


async def test_an_early_receipt_is_kept_until_it_is_dropped(users: Users) -> None:
    await users.park_early(7, [(ID + 1, DELIVERED), (ID + 2, READ)])
    assert await users.early(7, [ID + 3]) == []
    assert await users.early(8, [ID + 1]) == [], "it is kept for who gave it"
    for _ in range(2):
        assert await users.early(7, [ID + 2, ID + 1, ID + 9]) == [(ID + 2, READ), (ID + 1, DELIVERED)]
    assert sorted(await users.early(7)) == [(ID + 1, DELIVERED), (ID + 2, READ)]
    await users.drop_early(7, [(ID + 2, READ), (ID + 3, READ)])
    assert await users.early(7) == [(ID + 1, DELIVERED)]
    assert await users.early(7, []) == []


async def test_an_early_receipt_that_rose_is_not_dropped_with_the_lower_one(users: Users) -> None:
    await users.park_early(7, [(ID, READ)])
    await users.drop_early(7, [(ID, DELIVERED)])
    assert await users.early(7, [ID]) == [(ID, READ)]


@pytest.mark.parametrize("given", [(DELIVERED, READ), (READ, DELIVERED), (READ, READ), (DELIVERED, READ, DELIVERED)])
async def test_the_higher_of_two_receipts_stays(users: Users, given: tuple[int, ...]) -> None:
    for status in given:
        await users.park_early(7, [(ID, status)])
    assert await users.early(7, [ID]) == [(ID, READ)]


async def test_no_more_than_so_many_are_kept_and_those_kept_can_still_rise(
    users: Users, redis: Redis, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_users, "MAX_EARLY_RECEIPTS", 3)
    await users.park_early(7, [(ID + number, DELIVERED) for number in range(5)])
    assert await redis.call("HLEN", keys.early(7)) == 3
    await users.park_early(7, [(ID + 4, READ), (ID, READ)])
    kept = [(ID, READ), (ID + 1, DELIVERED), (ID + 2, DELIVERED)]
    assert await users.early(7, [ID, ID + 1, ID + 2, ID + 3, ID + 4]) == kept
    await users.drop_early(7, kept)
    await users.park_early(7, [(ID + 4, READ)])
    assert await users.early(7, [ID + 4]) == [(ID + 4, READ)], "there is room again"


async def test_early_receipts_lapse_an_hour_after_the_last(users: Users, redis: Redis, keys: Keys) -> None:
    await users.park_early(7, [(ID, DELIVERED)])
    await redis.call("PEXPIRE", keys.early(7), 5_000)
    await users.park_early(7, [(ID + 1, DELIVERED)])
    assert EARLY_TTL_MS - 10_000 < await life_ms(redis, keys.early(7)) <= EARLY_TTL_MS
    await users.drop_early(7, [(ID, DELIVERED)])
    assert await life_ms(redis, keys.early(7)) > 0


# -- words for those away


async def test_pending_notices_keep_their_order_until_they_are_dropped(users: Users) -> None:
    words = [b"one", b'{"two": "\xc3\xbc"}', b"\x00\xff"]
    assert await users.notices(7) == []
    for word in words:
        await users.keep_notice(7, word)
    assert await users.notices(8) == []
    for _ in range(2):
        assert await users.notices(7) == words
    await users.drop_notices(7, words[:2])
    assert await users.notices(7) == words[2:]
    await users.drop_notices(7, words)
    assert await users.notices(7) == []


async def test_pending_notices_expire_a_week_after_the_last(users: Users, redis: Redis, keys: Keys) -> None:
    await users.keep_notice(7, b"one")
    await redis.call("PEXPIRE", keys.failed(7), 5_000)
    await users.keep_notice(7, b"two")
    assert NOTICE_TTL_MS - 10_000 < await life_ms(redis, keys.failed(7)) <= NOTICE_TTL_MS


async def test_oldest_pending_notices_are_dropped_above_the_limit(
    users: Users, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_users, "MAX_NOTICES", 3)
    for number in range(5):
        await users.keep_notice(7, b"%d" % number)
    assert await users.notices(7) == [b"2", b"3", b"4"]


async def test_notice_added_during_a_drop_is_not_lost(users: Users, connect: Connect, keys: Keys) -> None:
    other = Users(await connect(), keys, TTL_MS)
    words = [b"%d" % number for number in range(200)]

    async def leave() -> None:
        for word in words:
            await other.keep_notice(7, word)

    async def hear() -> list[bytes]:
        found = await users.notices(7)
        await users.drop_notices(7, found)
        return found

    leaving, heard = asyncio.ensure_future(leave()), list[bytes]()
    while not leaving.done():
        heard += await hear()
    heard += await hear()
    await leaving
    assert heard == words
