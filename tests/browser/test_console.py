"""The console in a browser: what dies is seen, what is changed is asked about first, and strangers see nothing."""

import asyncio
import time
from typing import Any

import aiohttp
import jwt
import msgspec

from browser.harness import BrowserHarness, Windows
from dragoman.client import Room
from dragoman.domain.history import KEPT_MS, POINT_MS, SAMPLE_MS, Sample
from dragoman.protocol.peer import Bounced, encode_peer
from dragoman.store.instances import Instances
from dragoman.store.keys import Keys
from dragoman.store.nodes import Nodes, Snapshot
from dragoman.tools.processes import InstanceProcess
from support.chat import ChatSpeaker
from support.redis_servers import connected
from support.waiting import wait_until

SECRET = "a-secret-of-more-than-thirty-two-bytes"
LIVE = '[data-part="status"][data-mood="good"]'


async def console(windows: Windows, instance: InstanceProcess, view: str = "overview", **options: Any) -> Any:
    page = await windows.open(f"http://127.0.0.1:{instance.port}/console#{view}", **options)
    await page.wait_for_selector(LIVE)
    return page


async def test_dead_node_is_shown_within_two_seconds_by_every_instance(
    harness: BrowserHarness, windows: Windows
) -> None:
    node = harness.cluster.node(harness.first, languages="ja,ko", node_id="doomed")
    page = await console(windows, harness.second)
    await page.wait_for_selector('[data-node="doomed"][data-state="ready"]')
    node.kill()
    died_at = time.monotonic()
    await page.wait_for_selector('[data-node="doomed"][data-state="gone"]')
    assert time.monotonic() - died_at < 2


async def test_an_instance_that_dies_is_not_answering_before_its_presence_lapses_and_stays_listed_as_lost(
    harness: BrowserHarness, windows: Windows
) -> None:
    dying = await harness.cluster.instance(scheduler__phase2__instance_id="dying")
    page = await console(windows, harness.second)
    await page.wait_for_selector('tr[data-key="dying"][data-state="alive"]')
    dying.kill()
    await page.wait_for_selector('tr[data-key="dying"][data-state="silent"] >> text=not answering')
    await page.wait_for_selector('tr[data-key="dying"][data-state="lost"] >> text=lost')


async def test_a_dead_letter_is_replayed_by_two_clicks(harness: BrowserHarness, windows: Windows) -> None:
    data = encode_peer(Bounced("n", 1, "j", 1))
    fields = ("v", "1", "type", "bounced", "reason", "nobody knows", "deliveries", "6", "size", len(data), "data", data)
    async with connected(harness.cluster.redis) as redis:
        keys = Keys(harness.cluster.prefix)
        added = await redis.call("XADD", keys.dlq("one"), "*", *fields)
        await redis.call("SADD", keys.dlq_instances, "one")
    page = await console(windows, harness.second, "letters")
    row = f'[data-letter="{added.decode()}"]'
    await page.click(f"{row} >> text=Replay")
    await page.click('[data-part="no"]')
    assert await page.locator(row).count() == 1, "nothing happens without the second click"
    await page.click(f"{row} >> text=Replay")
    await page.click('[data-part="yes"]')
    await page.wait_for_selector(row, state="detached")
    assert "was replayed" in await page.inner_text('[data-part="letters-word"]')


async def test_operations_on_instances_nodes_sessions_and_users_need_a_confirmation(
    harness: BrowserHarness, windows: Windows
) -> None:
    drained = await harness.cluster.instance(scheduler__phase2__instance_id="drained")
    node = harness.cluster.node(harness.first, languages="sv,no", node_id="worker")
    speaker = await harness.cluster.speaker(harness.first, src_lang="sv", tgt_lang="no", resume=True)
    async with aiohttp.ClientSession() as http:
        chatting = ChatSpeaker(4711, await http.ws_connect(f"ws://127.0.0.1:{harness.first.port}/ws"))
        await chatting.auth()
        page = await console(windows, harness.second)
        await two_clicks(page, 'tr[data-key="drained"] >> button:text-is("Drain")')
        await page.wait_for_selector('tr[data-key="drained"][data-state="draining"]')
        await two_clicks(page, '[data-node="worker"] >> button:text-is("Drain")')
        await page.wait_for_selector('[data-node="worker"][data-state="draining"]')
        await two_clicks(page, '[data-node="worker"] >> button:text-is("Use again")')
        await page.wait_for_selector('[data-node="worker"][data-state="ready"]')
        await page.click('[href="#sessions"]')
        await page.fill('[data-part="session-filter"]', speaker.session_id)
        await two_clicks(page, f'[data-session="{speaker.session_id}"] >> button:text-is("End")')
        await page.wait_for_selector(f'[data-session="{speaker.session_id}"]', state="detached")
        await page.click('[href="#chat"]')
        await page.fill('[data-part="chat-user"]', "4711")
        await two_clicks(page, 'button:text-is("Disconnect")')
        await page.wait_for_selector('[data-part="chat-word"] >> text=4711 is disconnected')
        await chatting.expect("ERROR", reason="kicked")
        await page.click('[href="#audit"]')
        for action in ("instance.drain", "node.drain", "node.undrain", "session.end", "chat.disconnect"):
            await page.wait_for_selector(f'[data-action="{action}"]')
    node.kill()
    drained.kill()


async def test_a_room_is_shown_with_its_languages_and_closed_by_two_clicks(
    harness: BrowserHarness, windows: Windows
) -> None:
    url = f"ws://127.0.0.1:{harness.first.port}/ws/session"
    async with Room(url, name="Ann", speaks="sv", hears="no") as room:
        page = await console(windows, harness.second, "rooms")
        await page.fill('[data-part="room-filter"]', room.code)
        row = f'[data-room="{room.id}"]'
        await page.wait_for_selector(f"{row} >> text=no 1")
        await room.write("hej")
        await page.wait_for_selector(f'{row} td:nth-child(7):text-is("1")')  # captions of the last minute
        await two_clicks(page, f'{row} >> button:text-is("Close")')
        await page.wait_for_selector(row, state="detached")
        assert f"The room {room.code} is closed." in await page.inner_text('[data-part="rooms-word"]')
        await wait_until(lambda: room.ended == "An operator has closed the room.", 30.0)
        await page.click('[href="#audit"]')
        await page.wait_for_selector('[data-action="room.close"]')


async def two_clicks(page: Any, button: str) -> None:
    await page.click(button)
    await page.click('[data-part="yes"]')


async def test_switch_is_changed_by_two_clicks_and_audited(harness: BrowserHarness, windows: Windows) -> None:
    page = await console(windows, harness.second, "chat")
    before = await page.get_attribute('[data-switch="fail_open"]', "data-value")
    after = {"true": "false", "false": "true"}[before]
    await page.click('[data-act="fail_open"]')
    await page.click('[data-part="yes"]')
    await page.wait_for_selector(f'[data-switch="fail_open"][data-value="{after}"]')
    assert str((await harness.first.get("/api/v1/chat"))["switches"]["fail_open"]).lower() == after
    await page.click('[href="#audit"]')
    assert "fail_open" in await page.inner_text('[data-action="chat.switch"]')
    await page.click('[href="#chat"]')
    await page.click("text=Reset to the configuration")
    await page.click('[data-part="yes"]')
    await page.wait_for_selector(f'[data-switch="fail_open"][data-value="{before}"]')


async def test_job_is_found_by_its_session_with_its_times_and_reasons(
    harness: BrowserHarness, windows: Windows
) -> None:
    node = harness.cluster.node(harness.first, languages="da,fi", node_id="dane")
    await harness.served(harness.second, "da", "fi")
    speaker = await harness.cluster.speaker(harness.second, src_lang="da", tgt_lang="fi", resume=True)
    await speaker.utterance(0, src_lang="da", tgt_lang="fi")
    await speaker.result(0)
    page = await console(windows, harness.first, "sessions")
    await page.fill('[data-part="session-filter"]', speaker.session_id)
    await page.wait_for_selector(f'[data-session="{speaker.session_id}"] >> text=1 settled')
    await page.click(f'[data-session="{speaker.session_id}"] a')
    await page.click('[data-outcome="ok"] a')
    await page.wait_for_selector('[data-step="finished"]')
    assert "dane" in await page.inner_text('[data-part="job-why"]')
    await page.click('[href="#charts"]')
    await page.wait_for_selector('[data-line="sessions"]')
    node.kill()


async def test_a_long_id_is_short_and_copied_whole_by_a_click_and_terms_are_explained(
    harness: BrowserHarness, windows: Windows
) -> None:
    speaker = await harness.cluster.speaker(harness.second, src_lang="en", tgt_lang="zh")
    page = await console(windows, harness.first, "sessions", permissions=["clipboard-read", "clipboard-write"])
    row = f'[data-session="{speaker.session_id}"]'
    await page.fill('[data-part="session-filter"]', speaker.session_id)
    shown = await page.inner_text(f"{row} a")
    assert "…" in shown
    assert len(shown) < 20
    assert await page.get_attribute(f"{row} td", "title") == speaker.session_id
    await page.click(f"{row} .copy")
    await page.wait_for_selector(f'{row} .copy[data-copied="{speaker.session_id}"]')
    assert await page.evaluate("navigator.clipboard.readText()") == speaker.session_id
    tips = await page.eval_on_selector_all("th[data-tip]", "heads => heads.map(head => [head.textContent, head.title])")
    assert "stretch of speech" in dict(tips)["Turn"]
    await page.select_option('[data-part="language"]', "zh")
    await page.wait_for_selector('th[title*="不间断"]')


async def test_every_text_and_tip_of_the_console_exists_in_both_languages(
    harness: BrowserHarness, windows: Windows
) -> None:
    page = await console(windows, harness.first)
    kept = await page.evaluate("""async () => {
      const [{ EN }, { ZH }, { TIPS_EN }, { TIPS_ZH }] = await Promise.all(
        ["words_en", "words_zh", "tips_en", "tips_zh"].map((name) => import(`/console/${name}.js`)));
      return [[EN, ZH], [TIPS_EN, TIPS_ZH]].map((pair) => pair.map((words) => Object.keys(words).sort()));
    }""")
    for english, chinese in kept:
        assert english == chinese


async def test_charts_show_half_an_hour_of_the_whole_cluster_when_they_are_opened(
    harness: BrowserHarness, windows: Windows
) -> None:
    """Two instances that are gone counted for 29 minutes: five jobs a second each, and seven sessions."""
    async with connected(harness.cluster.redis) as redis:
        keys = Keys(harness.cluster.prefix)
        now_ms = await Instances(redis, keys).now_ms()
        for at in range(now_ms - 29 * 60_000, now_ms - POINT_MS, SAMPLE_MS):
            for number, name in enumerate(("former-1", "former-2")):
                data = msgspec.json.encode(Sample(name, 5.0, {"ended": 25}, {}, {"sessions": 7}))
                await redis.call("XADD", f"{keys.history}:made", f"{at}-{number}", "v", "1", "data", data)
        await redis.call("RENAME", f"{keys.history}:made", keys.history)
        await redis.call("PEXPIRE", keys.history, KEPT_MS)
    page = await console(windows, harness.first, "charts")
    path = await page.get_attribute('[data-chart="charts.jobs"] path', "d")
    assert path.count("L") > 150
    assert await page.inner_text('[data-chart="charts.jobs"] .top-of') == "10/s", "of both instances together"
    assert "p50" in await page.inner_text('[data-chart="charts.job_ms"]')
    await page.wait_for_selector('[data-chart="charts.jobs"] strong[title*="second"]')


async def test_paused_console_does_not_change(harness: BrowserHarness, windows: Windows) -> None:
    page = await console(windows, harness.first)
    await page.click('[data-part="pause"]')
    await page.wait_for_selector('[data-part="status"][data-mood="quiet"]')
    await page.click('[data-part="pause"]')
    await page.wait_for_selector(LIVE)


async def test_a_thousand_nodes_and_ten_thousand_sessions_are_paged(harness: BrowserHarness, windows: Windows) -> None:
    """Of nodes nobody but Redis knows: snapshots as an instance would have written them, and names of sessions."""
    async with connected(harness.cluster.redis) as redis:
        keys = Keys(harness.cluster.prefix)
        nodes = Nodes(redis, keys, 60_000)
        many = [Snapshot(f"z-{number:04}", 1, "one", asr=["xx"], semantic=["yy"]) for number in range(1000)]
        sessions = [f"z-{number:05}" for number in range(10_000)]
        await asyncio.gather(*map(nodes.write, many))
        await redis.call("SADD", keys.sessions_of("one"), *sessions)
        page = await console(windows, harness.second)
        await page.fill('[data-part="node-filter"]', "z-")
        await page.wait_for_selector('[data-node="z-0049"]')
        await page.click(".view:not([hidden]) >> text=Next")
        await page.wait_for_selector('[data-node="z-0099"]')
        assert await page.locator("[data-node]").count() == 50
        await page.click('[href="#sessions"]')
        await page.fill('[data-part="session-filter"]', "z-099")
        await page.wait_for_selector('[data-session="z-09949"]')
        assert await page.locator("[data-session]").count() == 50
        await redis.call("SREM", keys.sessions_of("one"), *sessions)
        await asyncio.gather(*(nodes.gone(one.id) for one in many))


async def test_console_asks_for_a_token_when_a_secret_is_set(harness: BrowserHarness, windows: Windows) -> None:
    windows.tolerate = ("status of 401",)  # Chromium's own word about a refusal
    guarded = await harness.cluster.instance(scheduler__phase2__instance_id="guarded", security__secret=SECRET)
    page = await windows.open(f"http://127.0.0.1:{guarded.port}/console", locale="zh-CN")
    await page.wait_for_selector('[data-part="gate"][open]')
    assert await page.locator("tbody tr").count() == 0
    await page.fill('[data-part="token"]', token("client"))
    await page.press('[data-part="token"]', "Enter")
    await page.wait_for_selector('[data-part="gate-wrong"] >> text=未被接受')
    await page.fill('[data-part="token"]', token("operator"))
    await page.press('[data-part="token"]', "Enter")
    await page.wait_for_selector('tr[data-key="guarded"]')
    await page.reload()
    await page.wait_for_selector('tr[data-key="guarded"]')
    async with page.expect_navigation():
        await page.click('[data-part="forget"]')
    await page.wait_for_selector('[data-part="gate"][open]')
    guarded.close()


def token(kind: str) -> str:
    return jwt.encode({"iss": "dragoman", "exp": time.time() + 600, "typ": kind, "sub": "olga"}, SECRET)
