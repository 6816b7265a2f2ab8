"""Writing on the page: four receipts for each message, and nothing lost while somebody is away."""

import asyncio
import json
from typing import Any
from uuid import uuid4

import aiohttp

from browser.harness import TIMEOUT_S, BrowserHarness, Windows, both_enter
from dragoman.client.chat import Chat, login
from dragoman.tools.processes import InstanceProcess
from support.waiting import wait_until

BODY, MINE, THEIRS = '[data-part="body"]', ".message.mine", ".message.theirs"


async def two(instance: InstanceProcess) -> tuple[str, str]:
    """Two people whom nobody else knows; both have been here before."""
    names = [f"{name}-{uuid4().hex[:6]}" for name in ("alice", "bob")]
    for name in names:
        await login(f"http://127.0.0.1:{instance.port}", name, f"{name}-of-this-machine")
    return names[0], names[1]


async def window(windows: Windows, instance: InstanceProcess, me: str, to: str, *, hidden: bool = False) -> Any:
    page = await windows.open(f"http://127.0.0.1:{instance.port}/try?as={me}&to={to}", hidden=hidden)
    await page.wait_for_selector('.pane[data-state="online"][data-peer]')
    return page


async def enter(page: Any, me: str, to: str) -> None:
    await page.fill('[data-part="name"]', me)
    await page.fill('[data-part="peer"]', to)
    await page.click('[data-part="enter"]')
    await page.wait_for_selector('.pane[data-state="online"]')


async def kick(page: Any, instance: InstanceProcess, name: str) -> None:
    """Be the same person elsewhere, until the page gives up."""
    base = f"127.0.0.1:{instance.port}"
    elsewhere = await login(f"http://{base}", name, f"{name}-of-this-machine")
    async with Chat(f"ws://{base}/ws", token=elsewhere.token):
        await page.wait_for_selector('.pane[data-state="over"]')


async def write(page: Any, text: str) -> None:
    await page.fill(BODY, text)
    await page.press(BODY, "Enter")


async def test_a_message_goes_through_all_four_states_across_two_instances(
    harness: BrowserHarness, windows: Windows
) -> None:
    ann, ben = await two(harness.first)
    alice = await window(windows, harness.first, ann, ben)
    await write(alice, "good morning")  # bob is not there yet
    await alice.wait_for_selector(f"{MINE}[data-accepted][data-saved]:not([data-delivered])")
    assert await alice.locator(f"{MINE} .reached").inner_text() == "Saved"
    bob = await window(windows, harness.second, ben, ann, hidden=True)
    await bob.wait_for_selector(f"{THEIRS} >> text=good morning")
    await alice.wait_for_selector(f"{MINE}[data-delivered]:not([data-read])")
    await bob.evaluate("beSeen()")
    await alice.wait_for_selector(f"{MINE}[data-accepted][data-saved][data-delivered][data-read]")
    assert await alice.locator(f"{MINE} .reached").inner_text() == "Read"
    await write(bob, "and to you")
    await alice.wait_for_selector(f"{THEIRS} >> text=and to you")
    await bob.wait_for_selector(f"{MINE}[data-read]")
    assert await bob.locator(THEIRS).count() == 1, "what came by history and by wire is shown once"
    await alice.reload()
    await alice.wait_for_selector(f"{THEIRS} >> text=and to you")
    assert await alice.locator(".message .body").all_inner_texts() == ["good morning", "and to you"]


async def test_message_of_a_third_user_is_shown_with_its_name(harness: BrowserHarness, windows: Windows) -> None:
    ann, ben = await two(harness.first)
    page = await window(windows, harness.first, ann, ben)
    me = int(await page.locator(".pane").get_attribute("data-user"))
    base, name = f"127.0.0.1:{harness.second.port}", f"eve-{uuid4().hex[:6]}"
    eve = await login(f"http://{base}", name, "secret of eve")
    async with Chat(f"ws://{base}/ws", token=eve.token) as chat:
        sent = await chat.send(me, "guess who")
        await page.wait_for_selector(f"{THEIRS} >> text=guess who")
        assert await page.locator(f"{THEIRS} .other").inner_text() == f"from user {eve.user_id}"
        await sent.read


async def test_message_written_offline_is_sent_after_the_page_reconnects(
    harness: BrowserHarness, windows: Windows
) -> None:
    page = await windows.open(f"http://127.0.0.1:{harness.first.port}/try")
    await both_enter(page)
    alice, bob = (page.locator(f'[data-pane="{name}"]') for name in ("alice", "bob"))
    await alice.locator('[data-part="toggle"]').click()
    await page.wait_for_selector('[data-pane="alice"][data-state="offline"]')
    for text in ("one", "two"):
        await alice.locator(BODY).fill(text)
        await alice.locator(BODY).press("Enter")
    assert await alice.locator(f'{MINE}[data-state="waiting"]').count() == 2
    await alice.locator('[data-part="toggle"]').click()
    await page.wait_for_selector(f'[data-pane="bob"] {THEIRS} >> text=two')
    assert await bob.locator(f"{THEIRS} .body").all_inner_texts() == ["one", "two"]
    await page.wait_for_selector(f'[data-pane="alice"] {MINE}:last-child[data-read]')


class Way:
    """To the server and back; what a test names is lost on it."""

    def __init__(self) -> None:
        self.connections = 0
        self.tokens: list[str] = []  # that somebody said who they are with
        self.lost: list[str] = []
        self._lose: dict[str, int] = {}

    def lose(self, word: str, times: int) -> None:
        """The next frames with this `type` or `ackType`; 0: no more."""
        self._lose[word] = times

    def __call__(self, page: Any) -> None:
        self.connections += 1
        server = page.connect_to_server()

        def there(data: str) -> None:
            frame = json.loads(data)
            if frame["type"] == "AUTH":
                self.tokens.append(frame["token"])
            self._carry(frame["type"], data, server)

        def back(data: str) -> None:
            frame = json.loads(data)
            self._carry(frame.get("ackType", frame["type"]), data, page)

        page.on_message(there)
        server.on_message(back)

    def _carry(self, word: str, data: str, to: Any) -> None:
        if self._lose.get(word, 0) == 0:
            to.send(data)
            return
        self._lose[word] -= 1
        self.lost.append(word)


async def test_page_asks_for_the_status_of_an_accepted_message_that_is_not_saved(
    harness: BrowserHarness, windows: Windows
) -> None:
    ann, ben = await two(harness.first)
    page, way = await window(windows, harness.first, ann, ben), Way()
    way.lose("saved", 1)
    await page.clock.install()
    await page.route_web_socket("**/ws", way)
    await page.reload()
    await page.wait_for_selector('.pane[data-state="online"][data-peer]')
    await write(page, "hello")
    await page.wait_for_selector(f"{MINE}[data-accepted]")
    await wait_until(lambda: way.lost == ["saved"])
    assert await page.locator(f"{MINE}[data-saved]").count() == 0
    await page.clock.fast_forward(20_500)
    await page.wait_for_selector(f"{MINE}[data-saved]")
    assert way.connections == 1


async def test_page_reconnects_and_sends_its_messages_when_its_auth_frame_was_lost(
    harness: BrowserHarness, windows: Windows
) -> None:
    ann, ben = await two(harness.first)
    page, way = await window(windows, harness.first, ann, ben), Way()
    way.lose("AUTH", 1)
    await page.route_web_socket("**/ws", way)
    await page.reload()
    await page.wait_for_selector(".pane[data-peer]")
    await wait_until(lambda: way.lost == ["AUTH"])
    await write(page, "still here")
    await page.wait_for_selector(f"{MINE}[data-saved] >> text=still here")
    assert len(way.tokens) == 2


async def test_expired_token_is_renewed_before_the_page_reconnects(harness: BrowserHarness, windows: Windows) -> None:
    instance = await harness.cluster.instance(scheduler__phase2__instance_id="brief", chat__access_ttl_s=3)
    ann, ben = await two(instance)
    page, way = await window(windows, instance, ann, ben), Way()
    await page.route_web_socket("**/ws", way)
    await page.reload()
    await page.wait_for_selector('.pane[data-state="online"][data-peer]')
    asked, answered = asyncio.Event(), asyncio.Event()

    async def held(route: Any) -> None:
        asked.set()
        await answered.wait()
        await route.continue_()

    await page.route("**/auth/refresh", held)
    async with aiohttp.ClientSession(f"http://127.0.0.1:{instance.port}") as http:

        async def expired() -> bool:
            async with http.post("/auth/verify", json={"accessToken": way.tokens[-1]}) as answer:
                return not (await answer.json())["data"]["ok"]

        await wait_until(expired)
    before = way.connections
    await write(page, "after a nap")
    async with asyncio.timeout(TIMEOUT_S):
        await asked.wait()
    assert way.connections == before, "a server waits only so long for a token"
    answered.set()
    await page.wait_for_selector(f"{MINE}[data-saved] >> text=after a nap")
    await page.unroute_all(behavior="wait")


async def test_unsent_message_is_sent_when_the_same_user_returns(harness: BrowserHarness, windows: Windows) -> None:
    ann, ben = await two(harness.first)
    page, way = await window(windows, harness.first, ann, ben), Way()
    await page.route_web_socket("**/ws", way)
    await page.reload()
    await page.wait_for_selector('.pane[data-state="online"][data-peer]')
    way.lose("SINGLE_CHAT", 99)
    await write(page, "wait for me")
    await wait_until(lambda: way.lost)
    await kick(page, harness.second, ann)
    way.lose("SINGLE_CHAT", 0)
    await enter(page, ben, ann)
    assert await page.locator(MINE).count() == 0, "nobody else sees or sends it"
    await kick(page, harness.second, ben)
    await enter(page, ann, ben)
    await page.wait_for_selector(f"{MINE}[data-saved] >> text=wait for me")


async def watched(windows: Windows, instance: InstanceProcess) -> tuple[Any, Way]:
    """A page whose time is ours."""
    ann, ben = await two(instance)
    page, way = await window(windows, instance, ann, ben), Way()
    await page.clock.install()
    await page.route_web_socket("**/ws", way)
    await page.reload()
    await page.wait_for_selector('.pane[data-state="online"][data-peer]')
    return page, way


async def test_page_with_throttled_timers_keeps_its_connection(harness: BrowserHarness, windows: Windows) -> None:
    page, way = await watched(windows, harness.first)
    await page.clock.fast_forward(60_000)  # as in a tab nobody looks at: whatever was due is done now, and at once
    await write(page, "hello")
    await page.wait_for_selector(f"{MINE}[data-saved]")
    assert way.connections == 1


async def test_page_reconnects_when_the_server_does_not_answer_a_ping(
    harness: BrowserHarness, windows: Windows
) -> None:
    page, way = await watched(windows, harness.first)
    way.lose("PONG", 99)
    await page.clock.fast_forward(60_000)
    await wait_until(lambda: way.lost)
    assert way.connections == 1
    await page.clock.fast_forward(60_000)
    await wait_until(lambda: way.connections == 2)
    await page.wait_for_selector('.pane[data-state="online"]')


async def test_message_is_shown_in_the_language_of_the_reader(harness: BrowserHarness, windows: Windows) -> None:
    ann, ben = await two(harness.first)
    alice = await window(windows, harness.first, ann, ben)
    bob = await window(windows, harness.second, ben, ann)
    await alice.wait_for_selector('[data-part="lang"] option[value="en"]', state="attached")
    await alice.select_option('[data-part="lang"]', "en")
    await write(alice, "good morning")
    await bob.wait_for_selector(f"{THEIRS} >> text=good morning")
    assert await bob.locator(".translation").count() == 0
    await bob.wait_for_selector('[data-part="lang"] option[value="es"]', state="attached")
    await bob.select_option('[data-part="lang"]', "es")
    await bob.wait_for_selector(f'{THEIRS} .translation[lang="es"]:not([data-reason])')
    await write(alice, "good night")
    await bob.wait_for_selector(f'{THEIRS}:last-child .translation[lang="es"]:not([data-reason])')
    await bob.select_option('[data-part="lang"]', "")
    await bob.wait_for_selector('.pane[data-state="online"]')
    assert await bob.locator(".translation").count() == 0
    await write(alice, "good bye")
    await bob.wait_for_selector(f"{THEIRS}:last-child >> text=good bye")
    assert await bob.locator(f"{THEIRS} .body").all_inner_texts() == ["good morning", "good night", "good bye"]
