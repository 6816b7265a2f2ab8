"""The room page while people speak: the button, words as they are said, voices, captions for a projector."""

from typing import Any

from axe_playwright_python.base import AXE_SCRIPT

from browser.harness import BrowserHarness, Windows
from browser.test_room import INSIDE, PHONE, WIDE, caption, introduce, joined, room_url, write
from dragoman.tools.processes import InstanceProcess

MIC, MENU, SIZE = '[data-part="mic"]', '[data-part="menu"]', '[data-part="size"]'
VIOLATIONS = (
    """async () => (await axe.run()).violations.map(({ id, nodes }) => [id, ...nodes.map(({ html }) => html)])"""
)
# What a list shows while Bo speaks: partials, the caption that replaces them, words that come to nothing.
SPOKEN = """async () => {
  const { Captions } = await import("/room/captions.js"), { Live } = await import("/room/live.js");
  const made = () => document.createElement("div"), list = made(), seen = [];
  const captions = new Captions({ list, hint: made(), live: made(), newer: made() }, () => "ar", {});
  const live = new Live(captions);
  const speaker = { session_id: "s", name: "Bo" };
  const look = () => seen.push([...list.children].map((item) =>
    [item.dataset.state, item.querySelector(".large").textContent, item.dir]));
  const says = (id, text) => (live.partial({ caption_id: id, speaker, lang: "ar", text }, false), look());
  says("s:u0", "صباح");
  says("s:u0", "صباح الخير");
  captions.entry({ type: "caption", caption_id: "s:u0", speaker, lang: "ar", text: "صباح الخير جميعا" }, true, false);
  live.end("s:u0");
  look();
  says("s:u0", "late");
  says("s:u1", "hm");
  says("s:u1", "");
  return seen;
}"""


def at(instance: InstanceProcess, path: str) -> str:
    return f"http://127.0.0.1:{instance.port}{path}"


async def violations(page: Any) -> list[Any]:
    """What axe-core finds. It runs in a world of its own: the policy of the page forbids foreign scripts."""
    await page.evaluate(AXE_SCRIPT)
    found: list[Any] = await page.evaluate(VIOLATIONS)
    return found


async def test_axe_finds_nothing_on_any_page(harness: BrowserHarness, windows: Windows) -> None:
    await harness.served(harness.first, "en", "zh")
    start = await windows.open(at(harness.first, "/"), viewport=PHONE, color_scheme="dark")
    assert await violations(start) == []
    ann = await windows.open(room_url(harness.first), viewport=WIDE)
    assert await violations(ann) == [], "the door"
    await introduce(ann, "Ann", "en")
    await ann.wait_for_selector(INSIDE)
    await write(ann, "good morning")
    bo = await joined(windows, ann.url, "Bo", "zh", viewport=PHONE, color_scheme="dark", locale="zh-CN")
    await write(bo, "早上好")
    await ann.wait_for_selector(caption("[en] 早上好", "translated"))
    assert await violations(ann) == []
    assert await violations(bo) == []
    await bo.click(MENU)
    assert await violations(bo) == [], "the panels"
    screen = await windows.open(ann.url.replace("/room/", "/captions/") + "?lang=zh", viewport=WIDE)
    await screen.wait_for_selector("p >> text=早上好")
    assert await violations(screen) == []
    both = await windows.open(at(harness.first, "/try"), viewport=WIDE)
    assert await violations(both) == []


async def test_start_page_leads_to_the_room_of_a_code_or_a_link_and_says_what_it_needs_otherwise(
    harness: BrowserHarness, windows: Windows
) -> None:
    page = await windows.open(at(harness.first, "/"), viewport=PHONE)
    await page.fill('[data-part="place"]', "12 34")
    await page.press('[data-part="place"]', "Enter")
    await page.wait_for_selector("text=Enter the six digits of the code, or the whole link.")
    link = at(harness.first, "/room/0b9a7c1e-52d4-4a6b-9f3e-6d1c2b3a4f50")
    for typed, leads_to in (
        (link, link),
        (link.removeprefix("http://"), link),
        ("123 456", room_url(harness.first, "?code=123456")),
    ):
        await page.goto(at(harness.first, "/"))
        await page.fill('[data-part="place"]', typed)
        await page.press('[data-part="place"]', "Enter")
        await page.wait_for_url(leads_to)


async def test_words_appear_while_they_are_spoken_until_their_caption_replaces_them(
    harness: BrowserHarness, windows: Windows
) -> None:
    page = await windows.open(room_url(harness.first))
    final = [["original", "صباح الخير جميعا", "rtl"]]
    assert await page.evaluate(SPOKEN) == [
        [["partial", "صباح", "rtl"]],
        [["partial", "صباح الخير", "rtl"]],
        final,
        final,
        [*final, ["partial", "hm", "rtl"]],
        final,
    ]


async def test_original_is_above_its_translation_or_appears_on_a_tap_and_captions_have_the_size_that_was_chosen(
    harness: BrowserHarness, windows: Windows
) -> None:
    await harness.served(harness.first, "en", "zh")
    ann = await joined(windows, room_url(harness.first), "Ann", "en")
    bo = await joined(windows, ann.url, "Bo", "zh")
    await write(ann, "good morning")
    read, original = bo.locator(".caption .large"), bo.locator(".caption .small")
    await bo.wait_for_selector(caption("[zh] good morning", "translated"))
    above, under = await original.bounding_box(), await read.bounding_box()
    assert above["y"] < under["y"]
    await bo.uncheck('[data-part="originals"]')
    assert not await original.is_visible()
    await read.click()
    assert await original.inner_text() == "good morning"
    await bo.press(".caption .original", "Enter")
    assert not await original.is_visible()
    await bo.fill(SIZE, "60")
    await bo.reload()
    await bo.wait_for_selector(caption("[zh] good morning", "translated"))
    assert await read.evaluate("one => getComputedStyle(one).fontSize") == "60px"
    assert not await original.is_visible(), "what was chosen is kept"


async def test_button_stays_on_after_a_tap_and_goes_off_when_it_was_held(
    harness: BrowserHarness, windows: Windows
) -> None:
    await harness.served(harness.first, "en", "zh")
    ann = await joined(windows, room_url(harness.first), "Ann", "en")
    on, off = f'{MIC}[data-state="on"]', f'{MIC}[data-state="off"][aria-pressed="false"]'
    await ann.click(MIC)
    await ann.wait_for_selector(on)
    assert await ann.locator('[data-part="device"] option').count() > 1, "microphones have names now"
    await ann.click(MIC)
    await ann.wait_for_selector(off)
    await ann.click(MIC, delay=600)
    await ann.wait_for_selector(off)
    await ann.press(MIC, "Enter")
    await ann.wait_for_selector(on)
    await ann.click('[data-part="leave"]')
    assert await ann.get_attribute(MIC, "data-state") == "off"


async def test_captions_page_shows_the_last_lines_in_its_language_on_a_transparent_ground(
    harness: BrowserHarness, windows: Windows
) -> None:
    await harness.served(harness.first, "en", "zh")
    ann = await joined(windows, room_url(harness.first), "Ann", "en")
    address = ann.url.replace("/room/", "/captions/").replace(str(harness.first.port), str(harness.second.port))
    screen = await windows.open(f"{address}?lang=zh&size=60&lines=2&background=transparent", viewport=WIDE)
    await ann.wait_for_selector('.person[data-role="listener"]')
    for text in ("one", "two", "three"):
        await write(ann, text)
    last = screen.locator("p >> text=[zh] three")
    await last.wait_for()
    assert await last.evaluate("one => getComputedStyle(one).fontSize") == "60px"
    boxes = await screen.locator("p").evaluate_all("all => all.map((one) => one.getBoundingClientRect().top)")
    top = await screen.locator("main").evaluate("one => one.getBoundingClientRect().top")
    assert [box >= top - 1 for box in boxes] == [False, True, True]
    assert (await screen.inner_text("main")).split() == ["[zh]", "one", "[zh]", "two", "[zh]", "three"]
    ground = await screen.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    assert ground == "rgba(0, 0, 0, 0)"
    assert await ann.get_attribute('[data-part="host"]', "hidden") is None, "the page of captions is no host"
