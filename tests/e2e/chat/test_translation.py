"""Translations of chat messages: two users on two instances, and a node that translates texts."""

from itertools import count
from typing import Any

import pytest

from dragoman.archive import ERASED
from dragoman.tools.verify.clients import token
from support.chat import (
    DELIVER_FIRST,
    TIMEOUT_S,
    ChatScenario,
    ChatSpeaker,
    Heard,
    bodies,
    module_chat_harness,
)
from support.raw_node import Message, RawNode, Work, silent
from support.waiting import wait_until

PER_MINUTE = 30
harness = module_chat_harness(
    {
        **DELIVER_FIRST,
        "chat__translate__timeout_ms": 5000,
        "chat__translate__per_minute": PER_MINUTE,
        "chat__translate__max_units": 20,
        "limits__chat_history_per_minute": 0,
    },
    instances=2,
    on_postgres=True,
)
_languages = count(1)


async def word_by_word(node: RawNode, job: Message) -> None:
    """The language in front of the text."""
    await node.answer(job, text_asr=None, text_translated=f"{job['tgt_lang']}: {job['text']}")


async def text_node(
    scenario: ChatScenario, *sources: str, at: int = 0, work: Work = word_by_word, slots: int = 2
) -> tuple[RawNode, str]:
    """A node that every instance knows, and a language into which it alone translates."""
    lang = f"x{next(_languages)}"
    pairs = [[source, lang] for source in sources or ("auto",)]
    features = ("job_ack", "text_jobs", f"slots:{slots}")
    port = scenario.harness.instances[at].port
    node = await RawNode.dial(
        scenario.http, port, languages=(), work=work, features=features, text_pairs=pairs, node_id=f"text-{lang}"
    )
    scenario.on_exit(node.close)
    for number in range(2):
        await wait_until(lambda: knows(scenario, number, node.id), TIMEOUT_S, "the node")  # noqa: B023
    return node, lang


async def knows(scenario: ChatScenario, at: int, node_id: str) -> bool:
    return any(node["node_id"] == node_id for node in (await scenario.get("/api/v1/cluster", at))["nodes"])


async def one_message(
    scenario: ChatScenario, body: str = "hello", **fields: Any
) -> tuple[ChatSpeaker, ChatSpeaker, str]:
    alice, bob = await scenario.pair(0, 1)
    id = str(await alice.saved(await alice.chat(bob.uid, body, **fields)))
    await bob.expect("SINGLE_CHAT", serverMsgId=id)
    return alice, bob, id


async def asked(user: ChatSpeaker, id: str, lang: str) -> Heard:
    await user.say("TRANSLATE", serverMsgId=id, lang=lang)
    return await user.expect("TRANSLATION", serverMsgId=id, lang=lang)


async def auth(user: ChatSpeaker, lang: object) -> Heard:
    await user.say("AUTH", token=token(user.uid), translate=lang)
    return await user.expect("AUTH_OK")


async def ends(scenario: ChatScenario, end: str) -> float:
    name = f"dragoman_chat_translations_total{{end={end}}}"
    return sum([float((await scenario.get("/api/v1/metrics", at)).get(name, 0)) for at in range(2)])


# -- on request ------------------------------------------------------------------------------------


async def test_sender_and_receiver_get_the_translation_of_one_job(scenario: ChatScenario) -> None:
    node, lang = await text_node(scenario)
    alice, bob, id = await one_message(scenario)
    told = await asked(bob, id, lang)
    assert told == {
        "type": "TRANSLATION", "serverMsgId": id, "lang": lang, "body": f"{lang}: hello", "ts": told["ts"]
    }  # fmt: skip
    assert (await asked(alice, id, lang))["body"] == f"{lang}: hello"
    assert [(job["text"], job["src_lang"], job["session_id"]) for job in node.jobs] == [("hello", "auto", "chat")]
    assert (await scenario.archive.translations([int(id)], lang)) == {int(id): f"{lang}: hello"}


async def test_language_that_the_sender_names_reaches_the_receiver_and_the_node(scenario: ChatScenario) -> None:
    node, lang = await text_node(scenario, "de")
    alice, bob = await scenario.pair(0, 1)
    id = str(await alice.saved(await alice.chat(bob.uid, "Moin", lang="de")))
    assert (await bob.expect("SINGLE_CHAT"))["lang"] == "de"
    assert (await asked(bob, id, lang))["body"] == f"{lang}: Moin"
    assert node.jobs[0]["src_lang"] == "de"
    assert (await asked(bob, id, "de"))["body"] == "Moin"  # it is in that language
    assert len(node.jobs) == 1


async def test_two_instances_make_one_job_of_requests_at_the_same_time(scenario: ChatScenario) -> None:
    node, lang = await text_node(scenario, work=silent)
    alice, bob, id = await one_message(scenario)
    for user in (alice, bob, alice, bob):
        await user.say("TRANSLATE", serverMsgId=id, lang=lang)
    await word_by_word(node, await node.job())
    for user in (alice, bob):
        assert (await user.expect("TRANSLATION"))["body"] == f"{lang}: hello"
    await alice.so_far()
    assert len(node.jobs) == 1


async def test_request_before_the_message_is_saved_waits_for_it(scenario: ChatScenario) -> None:
    _, lang = await text_node(scenario)
    alice, bob = await scenario.pair(0, 1)
    async with scenario.database_away():
        name = await alice.chat(bob.uid)
        pushed = await bob.expect("SINGLE_CHAT")
        await bob.say("TRANSLATE", serverMsgId=pushed["serverMsgId"], lang=lang)
        assert not [one for one in await bob.so_far() if one["type"] == "TRANSLATION"]
    assert (await bob.expect("TRANSLATION"))["body"] == f"{lang}: hello"
    await alice.saved(name)


# -- of every message ------------------------------------------------------------------------------


async def test_connection_that_wants_a_language_gets_each_message_and_then_its_translation(
    scenario: ChatScenario,
) -> None:
    node, lang = await text_node(scenario)
    alice, bob = await scenario.user(0), await scenario.stranger(1)
    assert (await auth(bob, lang))["translate"] == lang
    first = await alice.chat(bob.uid, "one")
    await alice.chat(bob.uid, "two", lang=lang)  # in that language already
    await alice.chat(bob.uid, "three")
    told = [await bob.expect("TRANSLATION") for _ in range(2)]
    assert {one["body"] for one in told} == {f"{lang}: one", f"{lang}: three"}
    assert str(await alice.saved(first)) in {one["serverMsgId"] for one in told}
    assert bodies(await bob.so_far()) == ["one", "two", "three"]
    assert {job["text"] for job in node.jobs} == {"one", "three"}


async def test_resent_message_carries_the_stored_translation(scenario: ChatScenario) -> None:
    node, lang = await text_node(scenario)
    _, bob, id = await one_message(scenario)
    await asked(bob, id, lang)
    await bob.close()
    again = await scenario.stranger(0, bob.uid)
    await auth(again, lang)
    resent = await again.expect("SINGLE_CHAT")
    assert resent["translation"] == {"lang": lang, "body": f"{lang}: hello"}
    plain = await scenario.user(1, bob.uid)
    assert "translation" not in await plain.expect("SINGLE_CHAT")
    assert len(node.jobs) == 1


async def test_open_connection_can_ask_for_translations_with_another_auth(scenario: ChatScenario) -> None:
    _, lang = await text_node(scenario)
    alice, bob = await scenario.pair(0, 1)
    await auth(bob, lang)
    await alice.chat(bob.uid)
    assert (await bob.expect("TRANSLATION"))["body"] == f"{lang}: hello"


async def test_history_has_the_translation_in_the_language_that_is_asked_for(scenario: ChatScenario) -> None:
    _, lang = await text_node(scenario)
    alice, bob, id = await one_message(scenario)
    await asked(alice, id, lang)
    await alice.saved(await alice.chat(bob.uid, "not translated"))

    async def history(query: str) -> Any:
        url = f"http://127.0.0.1:{scenario.harness.instances[1].port}/single-chat/message/cursor"
        headers = {"Authorization": f"Bearer {token(bob.uid)}"}
        async with scenario.http.get(f"{url}?peerUserId={alice.uid}{query}", headers=headers) as answer:
            return await answer.json()

    second, first = (await history(f"&lang={lang}"))["data"]
    assert first["translation"] == {"lang": lang, "body": f"{lang}: hello"}
    assert "translation" not in second
    assert all("translation" not in one for one in (await history(""))["data"])
    refused = await history("&lang=no%20language")
    assert (refused["code"], refused["message"]) == (40000, "lang is not a language tag")


# -- why there is none -----------------------------------------------------------------------------


async def test_translation_that_cannot_be_made_has_a_reason(scenario: ChatScenario) -> None:
    async def refuses(node: RawNode, job: Message) -> None:
        await node.fail(job, "PROCESSING_ERROR")

    _, fails = await text_node(scenario, work=refuses)
    _, hangs = await text_node(scenario, work=silent)
    _, works = await text_node(scenario)
    alice, bob, id = await one_message(scenario)
    assert (await asked(bob, id, "xx-nobody"))["reason"] == "no_node"
    assert (await asked(bob, id, fails))["reason"] == "failed"
    long = str(await alice.saved(await alice.chat(bob.uid, "a" * 21)))
    assert (await asked(bob, long, works))["reason"] == "too_long"
    assert (await asked(bob, id, hangs))["reason"] == "failed"  # after the time-out
    assert (await asked(bob, id, works))["body"] == f"{works}: hello"


async def test_failed_translation_can_be_asked_for_again(scenario: ChatScenario) -> None:
    async def better(node: RawNode, job: Message) -> None:
        if len(node.jobs) > 1:
            await word_by_word(node, job)
        else:
            await node.answer(job, text_asr=None, text_translated="")

    _, lang = await text_node(scenario, work=better)
    _, bob, id = await one_message(scenario)
    assert (await asked(bob, id, lang))["reason"] == "failed"
    assert (await asked(bob, id, lang))["body"] == f"{lang}: hello"


@pytest.mark.parametrize("exists", [True, False])
async def test_message_that_one_cannot_read_is_not_found(scenario: ChatScenario, exists: bool) -> None:
    node, lang = await text_node(scenario)
    _, bob, id = await one_message(scenario)
    await asked(bob, id, lang)  # that it is stored makes no difference
    stranger = await scenario.user(1)
    unknown = id if exists else str(int(id) + 1)
    await stranger.say("TRANSLATE", serverMsgId=unknown, lang=lang)
    told = await stranger.refused("message_not_found")
    assert told["serverMsgId"] == unknown
    assert len(node.jobs) == 1


async def test_request_without_message_or_language_is_refused(scenario: ChatScenario) -> None:
    _, bob, id = await one_message(scenario)
    await bob.say("TRANSLATE", lang="es")
    await bob.refused("missing_server_msg_id")
    for lang in (None, "", "no language", "x" * 36, 7, {"es": 1}):
        await bob.say("TRANSLATE", serverMsgId=id, **({} if lang is None else {"lang": lang}))
        await bob.refused("missing_lang", serverMsgId=id)
    stranger = await scenario.stranger(1)
    assert "translate" not in await auth(stranger, "no language")
    await stranger.refused("missing_lang")
    await stranger.say("PING")
    await stranger.expect("PONG")


async def test_message_with_a_malformed_language_is_sent_without_it(scenario: ChatScenario) -> None:
    alice, bob = await scenario.pair(0, 1)
    for lang in ("no language", 7, ["de"]):
        await alice.saved(await alice.chat(bob.uid, lang=lang))
        assert "lang" not in await bob.expect("SINGLE_CHAT")


async def test_flood_of_one_user_is_answered_busy_and_delays_nobody(scenario: ChatScenario) -> None:
    node, lang = await text_node(scenario, work=silent)
    alice, bob, id = await one_message(scenario)
    for number in range(PER_MINUTE + 20):
        await bob.say("TRANSLATE", serverMsgId=id, lang=lang if number % 2 else f"{lang}-{number}")
    busy = [await bob.expect("TRANSLATION", reason="busy") for _ in range(20)]
    assert len(busy) == 20
    _, quick = await text_node(scenario)
    assert (await asked(alice, id, quick))["body"] == f"{quick}: hello"
    await alice.saved(await alice.chat(bob.uid, "still"))
    await bob.expect("SINGLE_CHAT", body="still")
    assert len(node.jobs) == 1
    assert await ends(scenario, "busy") >= 20


async def test_erased_message_is_not_translated(scenario: ChatScenario) -> None:
    _, lang = await text_node(scenario)
    alice, bob, id = await one_message(scenario)
    await scenario.archive.erase(alice.uid, "", 10)
    assert (await scenario.archive.messages([int(id)]))[int(id)].msg_type == ERASED
    assert (await asked(bob, id, lang))["reason"] == "failed"
