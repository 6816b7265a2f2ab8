"""Text jobs over real sockets: the node is connected to one instance, the text is asked for on another."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dragoman.domain.job import Outcome
from dragoman.protocol.codes import ErrorCode
from support.in_process import InProcessInstance, TextAsker
from support.raw_node import RawNode, Work, at_once, silent
from support.redis_servers import CLUSTER
from support.speech import TIMEOUT_S, Harness, Scenario, module_harness, new_scenario
from support.waiting import wait_until

FEATURES = ("job_ack", "text_jobs", "slots:2")
harness = module_harness({}, on=("single", CLUSTER))


@asynccontextmanager
async def other_instance(harness: Harness) -> AsyncIterator[InProcessInstance]:
    """An instance beside the process: what asks for text is a part of the server, so it runs here."""
    instance = await InProcessInstance.open(harness.redis, harness.prefix, "asks")
    try:
        yield instance
    finally:
        await instance.close()


async def text_node(scenario: Scenario, asks: InProcessInstance, work: Work = at_once) -> RawNode:
    pairs = [[scenario.src, scenario.tgt]]
    node = await scenario.node(work=work, features=FEATURES, languages=(), text_pairs=pairs)
    await wait_until(lambda: asks.knows(node.id), TIMEOUT_S)
    return node


async def test_text_is_translated_by_a_node_of_another_instance(harness: Harness) -> None:
    asker = TextAsker()
    async with new_scenario(harness) as scenario, other_instance(harness) as asks:
        node = await text_node(scenario, asks)
        assert asks.services.view.serves_text(scenario.src, scenario.tgt)
        job_id = asker.ask(asks, src_lang=scenario.src, tgt_lang=scenario.tgt, text="Où est la gare ?")
        end = await asker.end()
        assert (end.outcome, end.node_id) == (Outcome.OK, node.id)
        assert end.result is not None
        assert end.result.text_translated == f"[{scenario.tgt}] said 0"
        assert node.jobs[0]["text"] == "Où est la gare ?"
        record = await wait_until(lambda: scenario.released(job_id), TIMEOUT_S)
        assert (record["text_kind"], record["driver"]) == ("room", "asks")
        await wait_until(lambda: scenario.all_free([node]), TIMEOUT_S)
        await wait_until(lambda: scenario.inboxes_are_done(), TIMEOUT_S)


async def test_text_is_translated_by_another_node_when_its_node_dies(harness: Harness) -> None:
    asker = TextAsker()
    async with new_scenario(harness) as scenario, other_instance(harness) as asks:
        doomed = await text_node(scenario, asks, work=silent)
        asker.ask(asks, src_lang=scenario.src, tgt_lang=scenario.tgt)
        await doomed.job()
        good = await text_node(scenario, asks)
        doomed.die()
        end = await asker.end()
        assert (end.outcome, end.node_id) == (Outcome.OK, good.id)
        assert [job["attempt_id"] for job in good.jobs] == [2]


async def test_text_is_translated_by_another_process_when_that_of_its_node_is_killed(harness: Harness) -> None:
    """`dragoman node` without a recogniser; the first one is slow, and killed at work."""
    asker = TextAsker()
    async with new_scenario(harness) as scenario, other_instance(harness) as asks:
        doomed = await scenario.sim_node(recognise="none", engine="sim", node_id="doomed", delay_ms=600_000)
        pair = {"src_lang": scenario.src, "tgt_lang": scenario.tgt}
        await wait_until(lambda: asks.knows("doomed"), TIMEOUT_S)
        job_id = asker.ask(asks, **pair, voice=True)
        await wait_until(lambda: is_started(scenario, job_id), TIMEOUT_S)
        await scenario.sim_node(recognise="none", engine="sim", node_id="good", delay_ms=0)
        await wait_until(lambda: asks.knows("good"), TIMEOUT_S)
        doomed.kill()
        end = await asker.end()
        assert (end.outcome, end.node_id) == (Outcome.OK, "good")
        assert end.result is not None
        assert end.result.text_translated == f"[{scenario.tgt}] Good morning."
        assert len(end.result.tts_audio) > 2
        record = await wait_until(lambda: scenario.released(job_id), TIMEOUT_S)
        assert [one["node_id"] for one in record["attempts"]] == ["doomed"]


async def is_started(scenario: Scenario, job_id: str) -> bool:
    return "started_ms" in await scenario.job(job_id)


async def test_text_fails_at_once_when_its_only_node_dies(harness: Harness) -> None:
    asker = TextAsker()
    async with new_scenario(harness) as scenario, other_instance(harness) as asks:
        doomed = await text_node(scenario, asks, work=silent)
        pair = {"src_lang": scenario.src, "tgt_lang": scenario.tgt}
        asker.ask(asks, **pair)
        await doomed.job()
        doomed.die()
        assert (await asker.end()).code == ErrorCode.NODE_UNAVAILABLE
        await wait_until(lambda: not asks.services.view.serves_text(scenario.src, scenario.tgt), TIMEOUT_S)
        asker.ask(asks, **pair)
        assert (await asker.end(2)).code == ErrorCode.NO_AVAILABLE_NODE
