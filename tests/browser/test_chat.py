"""Writing on the page: four receipts for each message, and nothing lost while somebody is away."""

import json
from typing import Any
from uuid import uuid4

from browser.stage import Stage, Windows, both_enter
from dragoman.client.chat import Chat, login
from dragoman.verify.processes import InstanceProcess
from waiting import wait_until

BODY, MINE, THEIRS = '[data-part="body"]', ".message.mine", ".message.theirs"


async def two(instance: InstanceProcess) -> tuple[str, str]:
    """Two people whom nobody else knows; both have been here before."""
    names = [f"{name}-{uuid4().hex[:6]}" for name in ("alice", "bob")]
    for name in names:
        await login(f"http://127.0.0.1:{instance.port}", name, f"{name}-of-this-machine")
    return names[0], names[1]


async def window(windows: Windows, instance: InstanceProcess, me: str, to: str, *, hidden: bool = False) -> Any:
    page = await windows.open(f"http://127.0.0.1:{instance.port}/?as={me}&to={to}", hidden=hidden)
    await page.wait_for_selector('.pane[data-state="online"][data-peer]')
    return page


async def write(page: Any, text: str) -> None:
    await page.fill(BODY, text)
    await page.press(BODY, "Enter")


async def test_a_message_goes_through_all_four_states_across_two_instances(stage: Stage, windows: Windows) -> None:
    ann, ben = await two(stage.first)
    alice = await window(windows, stage.first, ann, ben)
    await write(alice, "good morning")  # bob is not there yet
    await alice.wait_for_selector(f"{MINE}[data-accepted][data-saved]:not([data-delivered])")
    assert await alice.locator(f"{MINE} .reached").inner_text() == "Saved"
    bob = await window(windows, stage.second, ben, ann, hidden=True)
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


async def test_somebody_else_who_writes_is_shown_with_a_name_of_their_own(stage: Stage, windows: Windows) -> None:
    ann, ben = await two(stage.first)
    page = await window(windows, stage.first, ann, ben)
    me = int(await page.locator(".pane").get_attribute("data-user"))
    base, name = f"127.0.0.1:{stage.second.port}", f"eve-{uuid4().hex[:6]}"
    eve = await login(f"http://{base}", name, "secret of eve")
    async with Chat(f"ws://{base}/ws", token=eve.token) as chat:
        sent = await chat.send(me, "guess who")
        await page.wait_for_selector(f"{THEIRS} >> text=guess who")
        assert await page.locator(f"{THEIRS} .other").inner_text() == f"from user {eve.user_id}"
        await sent.read


async def test_what_is_written_offline_is_sent_when_the_page_is_back(stage: Stage, windows: Windows) -> None:
    page = await windows.open(f"http://127.0.0.1:{stage.first.port}/")
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


class Lossy:
    """A way to the server on which the first *saved* is lost."""

    def __init__(self) -> None:
        self.connections = 0
        self.lost = False

    def __call__(self, page: Any) -> None:
        self.connections += 1
        server = page.connect_to_server()

        def back(data: str) -> None:
            if not self.lost and json.loads(data).get("ackType") == "saved":
                self.lost = True
            else:
                page.send(data)

        page.on_message(server.send)
        server.on_message(back)


async def test_a_page_that_hears_nothing_more_of_an_accepted_message_asks(stage: Stage, windows: Windows) -> None:
    ann, ben = await two(stage.first)
    page, way = await window(windows, stage.first, ann, ben), Lossy()
    await page.clock.install()
    await page.route_web_socket("**/ws", way)
    await page.reload()
    await page.wait_for_selector('.pane[data-state="online"][data-peer]')
    await write(page, "hello")
    await page.wait_for_selector(f"{MINE}[data-accepted]")
    await wait_until(lambda: way.lost)
    assert await page.locator(f"{MINE}[data-saved]").count() == 0
    await page.clock.fast_forward(20_500)
    await page.wait_for_selector(f"{MINE}[data-saved]")
    assert way.connections == 1
