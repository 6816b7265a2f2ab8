"""The console in a browser: what dies is seen, what is changed is asked about first, and strangers see nothing."""

import time
from typing import Any

from browser.stage import Stage, Windows
from dragoman.protocol.peer import Bounced, encode_peer
from instances import InstanceProcess
from redis_clients import connected

LIVE = '[data-part="status"][data-mood="good"]'


async def console(windows: Windows, instance: InstanceProcess, view: str = "overview", **options: Any) -> Any:
    page = await windows.open(f"http://127.0.0.1:{instance.port}/console#{view}", **options)
    await page.wait_for_selector(LIVE)
    return page


async def test_a_node_that_dies_is_seen_within_two_seconds_by_any_instance(stage: Stage, windows: Windows) -> None:
    node = stage.cluster.node(stage.first, languages="ja,ko", node_id="doomed")
    page = await console(windows, stage.second)
    await page.wait_for_selector('[data-node="doomed"][data-state="ready"]')
    node.kill()
    died_at = time.monotonic()
    await page.wait_for_selector('[data-node="doomed"][data-state="gone"]')
    assert time.monotonic() - died_at < 2


async def test_a_dead_letter_is_replayed_by_two_clicks(stage: Stage, windows: Windows) -> None:
    data = encode_peer(Bounced("n", 1, "j", 1))
    fields = ("v", "1", "type", "bounced", "reason", "nobody knows", "deliveries", "6", "size", len(data), "data", data)
    async with connected(stage.cluster.redis) as redis:
        prefix = stage.cluster.prefix
        added = await redis.call("XADD", f"{prefix}:streams:{{instance:one}}:dlq", "*", *fields)
        await redis.call("SADD", f"{prefix}:v1:dlq:instances", "one")
    page = await console(windows, stage.second, "letters")
    row = f'[data-letter="{added.decode()}"]'
    await page.click(f"{row} >> text=Replay")
    await page.click('[data-part="no"]')
    assert await page.locator(row).count() == 1, "nothing happens without the second click"
    await page.click(f"{row} >> text=Replay")
    await page.click('[data-part="yes"]')
    await page.wait_for_selector(row, state="detached")
    assert "was replayed" in await page.inner_text('[data-part="letters-word"]')
