"""Erasing a chat user, and deleting old messages, on a running server of two instances."""

import asyncio
import json
from typing import Any

import pytest

from dragoman.archive import ERASED, Archive
from dragoman.client.chat import AccessDenied, login
from dragoman.domain.chat.shards import shard_of, tag
from dragoman.tools.verify.clients import token
from support.chat import (
    DELIVER_FIRST,
    SHARDS,
    ChatScenario,
    module_chat_harness,
)
from support.speech import Harness

SECRET = "the secret of this user"


harness = module_chat_harness(
    {**DELIVER_FIRST, "limits__login_attempts_per_minute": 1000}, instances=2, on_postgres=True
)


async def erase(scenario: ChatScenario, user: int, at: int = 0) -> dict[str, Any]:
    """As the command does; the sums."""
    total: dict[str, Any] = {}
    while not total.get("done"):
        path = f"http://127.0.0.1:{scenario.harness.instances[at].port}/api/v1/chat/users/{user}/erase"
        async with scenario.http.post(path, json={}, headers=scenario.harness.headers) as answer:
            assert answer.status == 200, await answer.text()
            found = await answer.json()
        total = {name: value + total.get(name, 0) if isinstance(value, int) else value for name, value in found.items()}
    return total


async def texts_of(database: Archive, user: int) -> list[tuple[str, str]]:
    rows = await database._rows("SELECT body, msg_type FROM message WHERE from_user_id = $1", user)
    return [(row[0], row[1]) for row in rows]


async def redis_texts(scenario: ChatScenario, user: int) -> str:
    """What Redis holds for long: the dead letters of its shard, and its notices."""
    name, call = tag(shard_of(user, SHARDS)), scenario.redis.call
    letters = await call("XRANGE", scenario.keys.dead(name), "-", "+")
    return repr((letters, await call("LRANGE", scenario.keys.failed(user), 0, -1)))


async def test_everything_that_an_offline_user_has_written_is_erased(scenario: ChatScenario, harness: Harness) -> None:
    base = f"http://127.0.0.1:{harness.instances[0].port}"
    name = f"gone-{scenario.uid()}"
    account = await login(base, name, "a long password")
    mine, bob = account.user_id, await scenario.user(1)
    alice = await scenario.stranger(0, mine)
    await alice.auth(await account.token())
    keys = [await alice.chat(bob.uid, SECRET) for _ in range(3)]
    ids = [await alice.saved(key) for key in keys]
    await bob.ack(str(ids[0]), to=mine)
    await alice.expect("ACK", ackType="delivered")
    theirs = await bob.saved(await bob.chat(mine, "of somebody else"))
    await scenario.archive.add_translation(ids[0], "es", "el secreto", "node-1")
    await scenario.archive.add_translation(theirs, "es", "de otro", "node-1")
    await dead_letter(scenario, mine)
    await scenario.redis.call("RPUSH", scenario.keys.failed(mine), b'{"type":"ERROR"}')
    await alice.close()

    erased = await erase(scenario, mine)
    assert erased == {
        "userId": str(mine), "account": 1, "messages": 3, "undelivered": 2, "translations": 1, "claims": 3,
        "dead_letters": 1, "notices": 1, "done": True,
    }  # fmt: skip
    assert await texts_of(scenario.archive, mine) == [("", ERASED)] * 3
    assert await scenario.archive.translations([*ids, theirs], "es") == {theirs: "de otro"}
    assert (await scenario.archive.messages([theirs]))[theirs].body == "of somebody else"
    assert not any([await scenario.claimed(mine, key) for key in keys])
    assert SECRET not in await redis_texts(scenario, mine)
    with pytest.raises(AccessDenied):
        await account.history(bob.uid)
    again = await scenario.stranger(0, mine)
    await again.say("AUTH", token=token(mine))
    assert (await again.expect("AUTH_FAIL"))["reason"] == "session_invalid"
    assert (await login(base, name, "a long password")).user_id != mine
    nothing = await erase(scenario, mine, at=1)
    assert not any(value for key, value in nothing.items() if key not in ("userId", "done"))
    audit = await scenario.get("/api/v1/audit")
    entry = next(
        one for one in audit["entries"] if one["action"] == "chat.user.erase" and "messages 3" in one["detail"]
    )
    assert entry["target"] == f"user {mine}"
    assert SECRET not in json.dumps(audit)


async def dead_letter(scenario: ChatScenario, sender: int) -> None:
    told: dict[str, object] = {
        "serverMsgId": 1 << 40, "clientMsgId": "dead-1", "fromUserId": sender, "toUserId": 7, "msgType": "TEXT",
        "body": SECRET, "sendTs": 1, "createdAtMs": 1, "producerServerId": "i0", "mode": "save_first", "v": 1,
        "deadReason": "the row cannot be written", "tries": 5, "deadMs": 2,
    }  # fmt: skip
    flat = [part for pair in told.items() for part in pair]
    await scenario.redis.call("XADD", scenario.keys.dead(tag(shard_of(sender, SHARDS))), "*", *flat)


async def test_user_with_undelivered_messages_that_sends_while_it_is_erased_leaves_nothing(
    scenario: ChatScenario,
) -> None:
    """Some of it is on its way, some is undelivered: its receiver is offline, and gets it without the text."""
    alice, bob = await scenario.pair(0, 1)
    absent = scenario.uid()
    waiting = [await alice.saved(await alice.chat(absent, f"{SECRET} {number}")) for number in range(3)]
    late = await bob.saved(await bob.chat(alice.uid, "undelivered to the one that is erased"))

    async def send() -> int:
        """Until the connection is closed, and on a new one as long as it is admitted."""
        number = 0
        while number < 100_000:
            number += 1
            if alice.ws.closed:
                return number
            await alice.chat(bob.uid, f"{SECRET} {number}", name=f"m{number}")
            await asyncio.sleep(0)
        return number

    sending = asyncio.ensure_future(send())
    reading = asyncio.ensure_future(alice.until_closed())
    await bob.expect("SINGLE_CHAT")  # pushed before it is saved
    erased = await erase(scenario, alice.uid, at=1)
    assert await sending < 100_000
    await reading
    assert erased["messages"] >= 4
    assert erased["undelivered"] >= 3
    assert {text for text, _ in await texts_of(scenario.archive, alice.uid)} == {""}
    assert len(await texts_of(scenario.archive, alice.uid)) == erased["messages"]
    assert (await scenario.archive.messages([late]))[late].body == "undelivered to the one that is erased"
    receiver = await scenario.user(1, absent)
    got = [await receiver.expect("SINGLE_CHAT") for _ in waiting]
    assert [(int(one["serverMsgId"]), one["body"], one["msgType"]) for one in got] == [
        (id, "", ERASED) for id in waiting
    ]
    assert SECRET not in await redis_texts(scenario, alice.uid)


async def test_undelivered_message_of_an_erased_user_arrives_without_its_text(scenario: ChatScenario) -> None:
    alice, bob = await scenario.pair(0, 1)
    await bob.close()
    id = await alice.saved(await alice.chat(bob.uid, SECRET))
    assert (await erase(scenario, alice.uid))["undelivered"] == 1
    bob = await scenario.user(1, bob.uid)
    arrived = await bob.expect("SINGLE_CHAT", serverMsgId=str(id))
    assert (arrived["body"], arrived["msgType"]) == ("", ERASED)


async def test_erasure_of_what_is_no_user_id_is_refused(scenario: ChatScenario) -> None:
    for user in ("alice", "0", "-1", str(2**63), "1.5"):
        path = f"http://127.0.0.1:{scenario.harness.instances[0].port}/api/v1/chat/users/{user}/erase"
        async with scenario.http.post(path, json={}, headers=scenario.harness.headers) as answer:
            assert answer.status == 400
            assert "not a user id" in (await answer.json())["error"]


async def test_messages_that_wait_for_the_database_are_erased_when_it_is_back(
    scenario: ChatScenario, harness: Harness
) -> None:
    alice, bob = await scenario.pair(0, 1)
    async with scenario.database_away():
        await alice.chat(bob.uid, SECRET)
        await bob.expect("SINGLE_CHAT")
        path = f"http://127.0.0.1:{harness.instances[0].port}/api/v1/chat/users/{alice.uid}/erase"
        async with scenario.http.post(path, json={}, headers=harness.headers) as answer:
            assert answer.status in (200, 503)  # it tells that it is not done
            assert answer.status == 503 or not (await answer.json())["done"]
    assert (await erase(scenario, alice.uid))["messages"] == 1
    assert await texts_of(scenario.archive, alice.uid) == [("", ERASED)]
