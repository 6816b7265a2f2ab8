"""Logging in on the page where others can reach it: no account without a password of one's own."""

from typing import Any
from uuid import uuid4

import aiohttp
import jwt
import pytest

from browser.harness import BrowserHarness, Windows
from dragoman.client.chat import login
from dragoman.tools.processes import InstanceProcess

SECRET = "a secret of the test that is long enough"
PASSWORD, INVITE, WARNING = '[data-part="password"]', '[data-part="invite"]', '[data-part="warning"]'
LONG = "long enough for anybody"


async def reachable(harness: BrowserHarness, registration: str, **more: object) -> InstanceProcess:
    """An instance as it is where others can reach it: it has a secret."""
    flags = {"security__secret": SECRET, "chat__registration": registration, **more}
    name = f"{registration}-{uuid4().hex[:6]}"
    return await harness.cluster.instance(scheduler__phase2__instance_id=name, **flags)


async def opened(windows: Windows, instance: InstanceProcess, name: str, logins: list[str]) -> Any:
    """The page of one person; `logins` gets the body of every login it sends."""
    windows.tolerate = ("Failed to load resource",)  # what Chromium writes about every login that is refused
    page = await windows.open("about:blank")
    page.on("request", lambda sent: logins.append(sent.post_data) if sent.url.endswith("/auth/login") else None)
    await page.goto(f"http://127.0.0.1:{instance.port}/try?as={name}&to=42")
    await page.wait_for_selector(PASSWORD)
    return page


async def enter(page: Any, password: str) -> None:
    await page.fill(PASSWORD, password)
    await page.click('[data-part="enter"]')


@pytest.fixture
def name() -> str:
    return f"ann-{uuid4().hex[:6]}"


async def test_the_page_sends_no_login_without_a_password_if_a_secret_is_set(
    harness: BrowserHarness, windows: Windows, name: str
) -> None:
    logins: list[str] = []
    page = await opened(windows, await reachable(harness, "open"), name, logins)
    await page.click('[data-part="enter"]')
    await page.wait_for_selector(f"{WARNING} >> text=Enter a password")
    assert logins == []


async def test_the_page_says_why_a_password_is_too_short_for_a_new_account(
    harness: BrowserHarness, windows: Windows, name: str
) -> None:
    page = await opened(windows, await reachable(harness, "open"), name, [])
    await page.wait_for_selector("text=with a password of at least 10 characters")
    await enter(page, "short")
    await page.wait_for_selector(f"{WARNING} >> text=at least 10 characters")
    await enter(page, LONG)
    await page.wait_for_selector('.pane[data-state="online"]')


async def test_the_page_says_that_a_chat_login_does_not_open_speech(
    harness: BrowserHarness, windows: Windows, name: str
) -> None:
    instance = await reachable(harness, "open")
    await harness.served(instance, "en", "zh")
    page = await opened(windows, instance, name, [])
    await enter(page, LONG)
    await page.wait_for_selector('.pane[data-state="online"]')
    await page.click('[data-part="sample"]')
    await page.wait_for_selector("text=Your login is for chat only")


async def test_page_says_who_creates_accounts_when_registration_is_closed(
    harness: BrowserHarness, windows: Windows, name: str
) -> None:
    instance = await reachable(harness, "closed")
    page = await opened(windows, instance, name, [])
    await enter(page, LONG)
    await page.wait_for_selector(f"{WARNING} >> text=Accounts are created by the operator")
    assert await page.locator(INVITE).is_hidden()
    await login(f"http://127.0.0.1:{harness.first.port}", name, LONG)  # the same database, open to this machine
    await enter(page, LONG)
    await page.wait_for_selector('.pane[data-state="online"]')


async def test_the_page_creates_an_account_with_an_invite_code(
    harness: BrowserHarness, windows: Windows, name: str
) -> None:
    instance = await reachable(harness, "invite")
    claims = {"iss": "dragoman", "exp": 4_000_000_000, "typ": "operator", "sub": "olga"}
    operator = {"Authorization": f"Bearer {jwt.encode(claims, SECRET, 'HS256')}"}
    async with aiohttp.ClientSession(f"http://127.0.0.1:{instance.port}", headers=operator) as http:
        async with http.post("/api/v1/chat/invites", json={"ttl_s": 600}) as made:
            code = (await made.json())["invite"]
    page = await opened(windows, instance, name, [])
    await enter(page, LONG)
    await page.wait_for_selector(f"{WARNING} >> text=A new account needs an invite code")
    await page.fill(INVITE, code)
    await enter(page, LONG)
    await page.wait_for_selector('.pane[data-state="online"]')
