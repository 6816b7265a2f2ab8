"""What is said aloud in a room: recognised once, read by everybody in their own language, on any instances."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest

from support.raw_node import Message, RawNode
from support.redis_servers import CLUSTER, FIXTURE_OF, KeyInspector
from support.rooms import FEATURES, Gathering, Member, gathering, translates, translation, translator
from support.speech import Harness, Scenario, new_scenario, start_harness

A, B = 0, 1
RATE = 16_000
PCM: dict[str, Any] = {"audio_format": "pcm16", "sample_rate": RATE}
FLAGS: dict[str, object] = {"rooms__translate_timeout_ms": 3000, "rooms__captions_per_minute": 0}


@pytest.fixture(scope="module", params=["single", pytest.param(CLUSTER, marks=pytest.mark.long)])
def harness(
    request: pytest.FixtureRequest, key_inspector: KeyInspector, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Harness]:
    redis = request.getfixturevalue(FIXTURE_OF[request.param])
    with start_harness(redis, tmp_path_factory.mktemp("spoken"), key_inspector, FLAGS, FLAGS) as up:
        yield up


@asynccontextmanager
async def room(harness: Harness) -> AsyncIterator[tuple[Scenario, Gathering]]:
    async with new_scenario(harness) as scenario, gathering(scenario) as met:
        yield scenario, met


def languages(count: int) -> list[str]:
    return [f"l{uuid4().hex[:8]}" for _ in range(count)]


async def says(member: Member, ms: int = 400) -> None:
    """One utterance, loud enough not to be taken for silence."""
    await member.room.send(b"\x00\x20\x00\xe0" * (RATE * ms // 2000), final=True)


async def recognises(node: RawNode, job: Message) -> None:
    """The text names the utterance; only what the pipeline asks for is answered."""
    if job.get("text"):
        await translates(node, job)
        return
    text = said(job)
    whole = translation(job["tgt_lang"], text) if job["pipeline"]["use_nmt"] else ""
    await node.answer(job, text_asr=text, text_translated=whole)


def said(job: Message) -> str:
    return f"said {job['utterance_index']} in {job['src_lang']}"


async def recogniser(scenario: Scenario, langs: list[str], at: int = A, **options: Any) -> RawNode:
    return await scenario.node(at, languages=langs, **{"work": recognises, "features": FEATURES} | options)


async def test_what_one_member_says_another_reads_in_its_language_on_another_instance(harness: Harness) -> None:
    en, es = languages(2)
    async with room(harness) as (scenario, met):
        node = await recogniser(scenario, [en], A)
        await translator(scenario, [en, es], B)
        ann = await met.join(en, A, **PCM)
        berta = await met.join(es, B)
        await says(ann)
        seen = await berta.shows(translation(es, f"said 0 in {en}"))
        assert (seen.speaker, seen.original, seen.id) == ("member 0", f"said 0 in {en}", f"{ann.room.session_id}:u0")
        await ann.shows(f"said 0 in {en}")
        await met.check(1)
        assert [job["pipeline"]["use_nmt"] for job in node.jobs] == [False]
