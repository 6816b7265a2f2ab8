"""The page of a room: people who share no language read each other, whatever dies meanwhile."""

import asyncio
import hashlib
import re
from typing import Any
from uuid import uuid4

from browser.harness import CUT, BrowserHarness, Windows
from browser.test_accounts import LONG, enter, opened, reachable
from dragoman.embedded.engine import free_port
from dragoman.tools.processes import InstanceProcess
from support.waiting import wait_until

INSIDE = '[data-part="status"][data-connection="inside"]'
END, LINK, BODY = '[data-stage="end"]', '[data-part="link"]', '[data-part="body"]'
PHONE = {"width": 360, "height": 740}
WIDE = {"width": 1200, "height": 900}
UNNAMED = """
controls => controls.filter((one) => !(one.getAttribute("aria-label") || one.textContent.trim() ||
  [...(one.labels ?? [])].some((label) => label.textContent.trim()))).map((one) => one.outerHTML)
"""
# The squares of a text as zeros and ones, line by line.
SQUARES = """async (text) => {
  const { squares } = await import("/room/qr.js");
  return squares(text)?.map((row) => row.map(Number).join("")).join("\\n") ?? "";
}"""
# What a list of captions shows: state, text and note of each.
SHOWN = """async () => {
  const { Captions } = await import("/room/captions.js"), made = () => document.createElement("div");
  const list = made(), captions = new Captions({ list, hint: made(), live: made(), newer: made() }, () => "en", {});
  const speaker = { session_id: "s", name: "Ann" }, about = { speaker, started_at_ms: 0 };
  captions.entry({ type: "caption_lost", caption_id: "a", speaker, reason: "JOB_TIMEOUT" }, true, false);
  captions.entry({ type: "caption", caption_id: "b", lang: "he", text: "שלום", ...about }, true, false);
  const none = { type: "caption_translation", caption_id: "b", lang: "en", text: "שלום", untranslated: "timeout" };
  captions.entry(none, true);
  captions.note("room.missed");
  const text = (item, name) => item.querySelector(name)?.textContent ?? null;
  return [...list.children].map((item) => [
    item.dataset.state ?? null, text(item, ".large"), text(item, ".note") ?? item.textContent,
  ]);
}"""
# A membership of which the test says what the server sends: what it sends itself, and what the page is given.
RESUMED = """async () => {
  const { Membership } = await import("/room/membership.js"), sent = [], given = [];
  const note = (name) => (message, ...more) => given.push([name, message.caption_id ?? message.complete, ...more]);
  const over = (why) => given.push(["over", why]);
  const on = { state() {}, members() {}, joined: note("joined"), entry: note("entry"), over };
  const member = new Membership({ id: "r" }, { name: "Ann", lang: "en" }, on), { session } = member;
  session.tell = (message) => sent.push(message);
  const last = () => sent.at(-1);
  const joined = { type: "room_joined", room_id: "r", room_code: "1", you: "s", role: "host", room_seq: 4 };
  member.connection("open");
  const first = last();
  member.receive({ ...joined, log_epoch: "e", complete: true });
  member.receive({ type: "room_ok", request_id: first.request_id });
  member.write("m1", "written").catch(({ code }) => given.push(["refused", code]));
  member.receive({ type: "caption_lost", caption_id: "s:u1", room_seq: 5, speaker: {}, reason: "JOB_TIMEOUT" });
  member.connection("reconnecting");
  member.connection("open");
  const again = last();
  member.receive({ ...joined, log_epoch: "f", complete: false });
  member.receive({ type: "room_ok", request_id: again.request_id });
  const resent = last();
  member.receive({ type: "room_expired", reason: "idle" });
  await new Promise((resolve) => setTimeout(resolve)); // until the refusal of what was written is known
  return { first, again, resent, given };
}"""
# By python-qrcode, for the same text, version, level and mask: the first digits of the SHA-256 of the same lines.
BY_ANOTHER_PROGRAM = {
    "http://127.0.0.1:5010/room/4b0a6f2e-9c1d-4a53-8a9e-0d6d4c1f7b21": "3fdcce1f7a02c909",
    "https://talk.example.org/room/4b0a6f2e-9c1d-4a53-8a9e-0d6d4c1f7b21": "569fa26cacf27804",
    "x" * 213: "f8a692e420006d88",
}


def room_url(instance: InstanceProcess, room: str = "") -> str:
    return f"http://127.0.0.1:{instance.port}/room{room}"


async def joined(windows: Windows, url: str, name: str, lang: str, **options: Any) -> Any:
    """The page of somebody who has just said who they are."""
    page = await windows.open(url, **{"viewport": WIDE, **options})
    await introduce(page, name, lang)
    await page.wait_for_selector(INSIDE)
    return page


async def introduce(page: Any, name: str, lang: str) -> None:
    await page.fill('[data-part="name"]', name)
    await page.wait_for_selector(f'[data-part="lang"] option[value="{lang}"]', state="attached")
    await page.select_option('[data-part="lang"]', lang)
    await page.click('[data-part="enter"]')


async def write(page: Any, text: str) -> None:
    await page.fill(BODY, text)
    await page.press(BODY, "Enter")


def caption(text: str, state: str) -> str:
    return f'.caption[data-state="{state}"]:has(.large:text-is("{text}"))'


async def test_two_people_read_each_other_in_their_own_languages(harness: BrowserHarness, windows: Windows) -> None:
    await harness.served(harness.first, "en", "zh")
    ann = await windows.open(f"http://127.0.0.1:{harness.first.port}/")
    await ann.click('[data-part="start"]')
    await introduce(ann, "Ann", "en")
    await ann.wait_for_selector("text=Nobody has said anything yet.")
    assert re.fullmatch(r".*/room/[\w-]{20,}", ann.url)
    assert await ann.input_value(LINK) == ann.url
    elsewhere = ann.url.replace(str(harness.first.port), str(harness.second.port))
    bo = await joined(windows, elsewhere, "<b>Bo</b>", "zh")
    await ann.wait_for_selector('.person:has-text("<b>Bo</b>"):has-text("Chinese")')
    await write(ann, "we begin <i>now</i>")
    await bo.wait_for_selector(caption("[zh] we begin <i>now</i>", "translated"))
    read = bo.locator(".caption").first
    assert await read.locator(".small").inner_text() == "we begin <i>now</i>"
    assert await read.locator(".speaker").inner_text() == "Ann"
    assert [await read.locator(".large").get_attribute(name) for name in ("lang", "dir")] == ["zh", "auto"]
    await wait_until(lambda: bo.locator('[data-part="live"] >> text=Ann: [zh] we begin').count())
    await write(bo, "我们开始")
    await ann.wait_for_selector(caption("[en] 我们开始", "translated"))
    await ann.wait_for_selector(caption("we begin <i>now</i>", "original"))
    assert await ann.locator(".caption").count() == 2


async def test_somebody_who_joins_late_by_the_code_reads_what_was_said(
    harness: BrowserHarness, windows: Windows
) -> None:
    await harness.served(harness.first, "en", "zh")
    ann = await joined(windows, room_url(harness.first), "Ann", "en")
    await write(ann, "said before")
    await ann.wait_for_selector(caption("said before", "original"))
    code = await ann.inner_text('[data-part="code"]')
    assert re.fullmatch(r"\d{3} \d{3}", code)
    bo = await windows.open(f"http://127.0.0.1:{harness.second.port}/")
    await bo.fill('[data-part="place"]', code)
    await bo.press('[data-part="place"]', "Enter")
    await introduce(bo, "Bo", "zh")
    await bo.wait_for_selector(caption("said before", "other"))
    assert bo.url.rpartition("/")[2] == ann.url.rpartition("/")[2]
    await bo.click(".caption .again")
    await bo.wait_for_selector(caption("[zh] said before", "translated"))


async def test_page_continues_on_another_instance_and_sends_what_was_written_meanwhile_once(
    harness: BrowserHarness, windows: Windows
) -> None:
    windows.tolerate = CUT
    await harness.served(harness.second, "en", "zh")
    flags = {"server__port": free_port()}  # one for both, as workers of one server have
    first = await harness.cluster.instance(scheduler__phase2__instance_id="room-1", **flags)
    ann = await joined(windows, room_url(first), "Ann", "en")
    bo = await joined(windows, ann.url.replace(str(first.port), str(harness.second.port)), "Bo", "zh")
    await write(ann, "before")
    await bo.wait_for_selector(caption("[zh] before", "translated"))
    await harness.cluster.instance(scheduler__phase2__instance_id="room-2", **flags)
    first.kill()
    await write(ann, "meanwhile")
    await write(bo, "回答")
    await bo.wait_for_selector(caption("[zh] meanwhile", "translated"))
    await ann.wait_for_selector(caption("[en] 回答", "translated"))
    await ann.wait_for_selector(caption("meanwhile", "original"))
    for page in (ann, bo):
        ids = await page.locator(".caption").evaluate_all("all => all.map((one) => one.dataset.id)")
        assert len(ids) == len(set(ids)) == 3
    assert await ann.locator(".between").count() == 0, "nothing was missed"
    await ann.wait_for_selector('[data-part="host"]:not([hidden])')


async def test_page_that_is_loaded_again_is_still_the_host_and_asks_for_nothing(
    harness: BrowserHarness, windows: Windows
) -> None:
    await harness.served(harness.first, "en", "zh")
    ann = await joined(windows, room_url(harness.first), "Ann", "en")
    await write(ann, "once")
    await ann.wait_for_selector(caption("once", "original"))
    await ann.reload()
    await ann.wait_for_selector(INSIDE)
    await ann.wait_for_selector(caption("once", "original"))
    await ann.wait_for_selector('[data-part="host"]:not([hidden])')
    assert await ann.locator(".person").count() == 1


async def test_another_language_is_read_from_the_last_captions_on(harness: BrowserHarness, windows: Windows) -> None:
    await harness.served(harness.first, "en", "zh")
    ann = await joined(windows, room_url(harness.first), "Ann", "en")
    bo = await joined(windows, ann.url, "Bo", "en")
    await write(ann, "first")
    await bo.wait_for_selector(caption("first", "original"))
    await bo.select_option('[data-part="my-lang"]', "zh")
    await bo.wait_for_selector(caption("[zh] first", "translated"))
    await write(ann, "second")
    await bo.wait_for_selector(caption("[zh] second", "translated"))
    await ann.wait_for_selector('.person:has-text("Bo"):has-text("Chinese")')
    await bo.reload()
    await bo.wait_for_selector(INSIDE)
    assert await bo.input_value('[data-part="my-lang"]') == "zh"


async def test_caption_without_a_translation_says_why(harness: BrowserHarness, windows: Windows) -> None:
    await harness.served(harness.first, "en", "zh")
    ann = await joined(windows, room_url(harness.first), "Ann", "en")
    ana = await windows.open("about:blank", viewport=WIDE, locale="is-IS")
    await ana.context.add_init_script('localStorage.setItem("dragoman.speaks", "is")')  # no node serves it
    await ana.goto(ann.url)
    await introduce(ana, "Ána", "is")
    await ana.wait_for_selector("text=Nobody translates into Icelandic at the moment.")
    await write(ann, "good morning")
    await ana.wait_for_selector(caption("good morning", "untranslated"))
    assert (await ana.inner_text(".caption .note")).startswith("Not translated: nobody translates between")


async def test_unknown_room_is_explained_with_a_way_to_a_new_one(harness: BrowserHarness, windows: Windows) -> None:
    await harness.served(harness.first, "en", "zh")
    page = await windows.open(room_url(harness.first, "/0b9a7c1e-52d4-4a6b-9f3e-6d1c2b3a4f50"), viewport=PHONE)
    await introduce(page, "Ann", "en")
    await page.wait_for_selector(f"{END} >> text=There is no such conversation")
    await page.click("text=Start a new conversation")
    await page.wait_for_selector(INSIDE)
    await page.goto(room_url(harness.first, "?code=000000"))
    await page.wait_for_selector(f"{END} >> text=No conversation has this code")


async def test_host_locks_pauses_removes_and_closes(harness: BrowserHarness, windows: Windows) -> None:
    await harness.served(harness.first, "en", "zh")
    ann = await joined(windows, room_url(harness.first), "Ann", "en")
    elsewhere = ann.url.replace(str(harness.first.port), str(harness.second.port))
    bo = await joined(windows, elsewhere, "Bo", "zh")
    assert not await bo.is_visible('[data-part="host"]')
    await write(ann, "to be remembered")
    await bo.wait_for_selector(caption("[zh] to be remembered", "translated"))

    await ann.click('[data-part="lock"]')
    await bo.wait_for_selector("text=The conversation is locked.")
    cy = await windows.open(elsewhere)
    await introduce(cy, "Cy", "en")
    await cy.wait_for_selector(f"{END} >> text=Its host has locked it.")
    await ann.click('[data-part="lock"]')
    await bo.wait_for_selector("text=The conversation is locked.", state="hidden")
    await cy.click('[data-part="retry"]')
    await cy.click('[data-part="enter"]')
    await cy.wait_for_selector(INSIDE)

    await ann.click('[data-part="pause"]')
    await bo.wait_for_selector('[data-part="send"]:disabled')
    await ann.click('[data-part="pause"]')
    await bo.wait_for_selector('[data-part="send"]:enabled')

    remove = ann.locator('.person:has-text("Cy") button')
    await remove.click()
    assert await remove.inner_text() == "Remove Cy?"
    await remove.click()
    await cy.wait_for_selector(f"{END} >> text=The host has removed you from it.")
    await wait_until(lambda: _is(ann.locator(".person"), 2))

    await ann.click('[data-part="close"]')
    await ann.click('[data-part="close"]')
    for page in (ann, bo):
        await page.wait_for_selector(f"{END} >> text=The host has ended it.")
    assert await bo.locator(caption("[zh] to be remembered", "translated")).is_visible()
    assert await bo.get_attribute('[data-part="transcript-vtt"]', "href")


async def _is(locator: Any, count: int) -> bool:
    return bool(await locator.count() == count)


async def test_somebody_who_leaves_is_gone_from_the_list_and_may_come_back(
    harness: BrowserHarness, windows: Windows
) -> None:
    await harness.served(harness.first, "en", "zh")
    ann = await joined(windows, room_url(harness.first), "Ann", "en")
    bo = await joined(windows, ann.url, "Bo", "zh")
    await wait_until(lambda: _is(ann.locator(".person"), 2))
    await bo.click('[data-part="leave"]')
    await bo.wait_for_selector(f"{END} >> text=You have left")
    await wait_until(lambda: _is(ann.locator(".person"), 1))
    await bo.click('[data-part="retry"]')
    await bo.click('[data-part="enter"]')
    await wait_until(lambda: _is(ann.locator(".person"), 2))


async def test_guest_joins_by_the_link_and_gets_the_transcript_where_a_secret_is_set(
    harness: BrowserHarness, windows: Windows
) -> None:
    instance = await reachable(harness, "open", security__chat_tokens_for_speech=True)
    ann = await opened(windows, instance, f"ann-{uuid4().hex[:6]}", [])
    await enter(ann, LONG)
    await ann.wait_for_selector('.pane[data-state="online"]')
    await ann.click('[data-part="rooms-start"]')
    await introduce(ann, "Ann", "en")
    await ann.wait_for_selector('[data-part="host"]:not([hidden])', state="attached")
    bo = await joined(windows, ann.url, "Bo", "en")
    await write(bo, "from a guest")
    await ann.wait_for_selector(caption("from a guest", "original"))
    async with bo.expect_download() as download:
        await bo.click('[data-part="transcript-txt"]')
    saved = await (await download.value).path()
    assert "Bo: from a guest" in await asyncio.to_thread(saved.read_text, "utf-8")
    stranger = await windows.open(room_url(instance))
    await introduce(stranger, "Cy", "en")
    await stranger.wait_for_selector(f"{END} >> text=This service needs a login or an invitation.")


async def test_page_fits_on_a_phone_and_every_control_has_a_name_in_both_languages(
    harness: BrowserHarness, windows: Windows
) -> None:
    await harness.served(harness.first, "en", "zh")
    page = await joined(
        windows, room_url(harness.first), "小明", "zh", viewport=PHONE, locale="zh-CN", color_scheme="dark"
    )
    await write(page, "很长" * 60)
    await page.wait_for_selector('.caption[data-state="original"]')
    assert await page.is_visible('[data-part="mic"]')
    assert not await page.is_visible('[data-part="code"]'), "captions come first"
    await page.click('[data-part="menu"]')
    for code in ("zh", "en"):
        await page.select_option('[data-part="language"]', code)
        assert await page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
        controls = page.locator(
            "button:visible, input:visible, select:visible, textarea:visible, summary, [tabindex='0']"
        )
        assert await controls.evaluate_all(UNNAMED) == []
    assert await page.inner_text('[data-part="leave"]') == "Leave"
    assert await page.get_attribute('[data-part="live"]', "aria-live") == "polite"
    await page.keyboard.press("Escape")
    await page.focus(BODY)
    await page.keyboard.press("Tab")
    assert await page.evaluate("document.activeElement.dataset.part") == "send"


async def test_membership_names_the_log_and_its_last_number_and_repeats_what_has_no_answer(
    harness: BrowserHarness, windows: Windows
) -> None:
    page = await windows.open(room_url(harness.first))
    seen = await page.evaluate(RESUMED)
    assert {"log_epoch", "last_room_seq"}.isdisjoint(seen["first"])
    assert (seen["again"]["log_epoch"], seen["again"]["last_room_seq"]) == ("e", 5)
    assert (seen["resent"]["type"], seen["resent"]["client_msg_id"]) == ("room_text", "m1")
    assert seen["given"] == [
        ["joined", True, False],
        ["entry", "s:u1", True],
        ["joined", False, True],
        ["over", "idle"],
        ["refused", "SESSION_CLOSED"],
    ]


async def test_lost_captions_and_gaps_are_shown(harness: BrowserHarness, windows: Windows) -> None:
    page = await windows.open(room_url(harness.first))
    assert await page.evaluate(SHOWN) == [
        ["lost", "", "Something was said here that could not be recognised (JOB_TIMEOUT)."],
        ["untranslated", "שלום", "Not translated: it took too long."],
        [None, None, "Something was said here that is no longer stored."],
    ]


async def test_qr_code_is_the_one_that_another_program_makes(harness: BrowserHarness, windows: Windows) -> None:
    page = await windows.open(room_url(harness.first))
    for text, digest in BY_ANOTHER_PROGRAM.items():
        made = await page.evaluate(SQUARES, text)
        assert hashlib.sha256(made.encode()).hexdigest().startswith(digest), text
    assert await page.evaluate(SQUARES, "x" * 214) == "", "too long for a code"
