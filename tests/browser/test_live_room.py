"""The room page while people speak: the button, words as they are said, voices, captions for a projector."""

import base64
from itertools import permutations
from typing import Any

import aiohttp
import pytest
from axe_playwright_python.base import AXE_SCRIPT

from browser.harness import CUT, BrowserHarness, Windows, needs_a_voice, speech
from browser.test_room import INSIDE, PHONE, WIDE, caption, introduce, joined, room_url, write
from dragoman.embedded.engine import free_port
from dragoman.tools.processes import InstanceProcess
from support.raw_node import RawNode
from support.rooms import FEATURES

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

MORE = "([css, count]) => document.querySelectorAll(css).length > count"
HEARD = '.caption[data-state="translated"]:not(.mine)'
# A finger on the button for so many milliseconds, however busy the machine is.
PRESS = """async (button, ms) => {
  button.dispatchEvent(new PointerEvent("pointerdown", { bubbles: true, button: 0 }));
  if (ms) await new Promise((resolve) => setTimeout(resolve, ms));
  button.dispatchEvent(new PointerEvent("pointerup", { bubbles: true, button: 0 }));
}"""
# The air of a room: what a page plays reaches every microphone of this browser, and so does a person.
AIR = """
const { start } = AudioBufferSourceNode.prototype;
const ears = new BroadcastChannel("air"), air = new BroadcastChannel("air");
let microphone = null;
window.heardByMicrophone = 0;
AudioBufferSourceNode.prototype.start = function () {
  air.postMessage(this.buffer.getChannelData(0).slice());
  start.call(this);
};
navigator.mediaDevices.getUserMedia = async () => {
  const context = new AudioContext(), hum = new GainNode(context, { gain: 0.0001 }); // no room is silent
  microphone = context.createMediaStreamDestination();
  const motor = new OscillatorNode(context, { frequency: 50 });
  motor.connect(hum).connect(microphone);
  motor.start();
  return microphone.stream;
};
ears.onmessage = ({ data }) => {
  if (!microphone) return;
  const { context } = microphone, source = context.createBufferSource();
  source.buffer = context.createBuffer(1, data.length, 16000);
  source.buffer.copyToChannel(data, 0);
  source.connect(microphone);
  start.call(source);
  window.heardByMicrophone++;
};
window.speakAloud = (samples) => air.postMessage(Float32Array.from(samples, (sample) => sample / 32768));
"""
NEXT_PERSON = """() => {
  const kept = { name: "Bo", speaks: "sl", voice: "on" };
  for (const [key, value] of Object.entries(kept)) localStorage.setItem(`dragoman.${key}`, value);
}"""


def at(instance: InstanceProcess, path: str) -> str:
    return f"http://127.0.0.1:{instance.port}{path}"


async def violations(page: Any) -> list[Any]:
    """What axe-core finds. It runs in a world of its own: the policy of the page forbids foreign scripts."""
    await page.evaluate(AXE_SCRIPT)
    found: list[Any] = await page.evaluate(VIOLATIONS)
    return found


@pytest.mark.long
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
    await ann.eval_on_selector(MIC, PRESS, 0)
    await ann.wait_for_selector(on)
    await ann.wait_for_function(
        "document.querySelectorAll('[data-part=device] option').length > 1"
    )  # they have names now
    await ann.eval_on_selector(MIC, PRESS, 0)
    await ann.wait_for_selector(off)
    await ann.eval_on_selector(MIC, PRESS, 500)
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


@needs_a_voice
@pytest.mark.long
async def test_two_people_talk_over_two_instances_while_one_of_them_is_killed(
    harness: BrowserHarness, windows: Windows
) -> None:
    windows.tolerate = CUT
    await harness.served(harness.second, "en", "zh")
    flags = {"server__port": free_port()}  # one for both, as workers of one server have
    first = await harness.cluster.instance(scheduler__phase2__instance_id="talk-1", **flags)
    ann = await joined(windows, room_url(first), "Ann", "en")
    bo = await joined(windows, ann.url.replace(str(first.port), str(harness.second.port)), "Bo", "zh")
    for page in (ann, bo):
        await page.press(MIC, "Enter")
    await ann.wait_for_selector('.mine[data-state="partial"]')  # one's own words, while one speaks
    await both_hear_each_other(ann, bo)
    await harness.cluster.instance(scheduler__phase2__instance_id="talk-2", **flags)
    first.kill()
    await ann.wait_for_selector('[data-part="status"][data-connection="reconnecting"]')
    await ann.wait_for_selector(INSIDE)
    assert await ann.get_attribute(MIC, "data-state") == "on", "the microphone stays on"
    await both_hear_each_other(ann, bo)
    for page in (ann, bo):
        await page.press(MIC, "Enter")
        ids = await page.locator(".caption[data-id]").evaluate_all("all => all.map((one) => one.dataset.id)")
        assert len(ids) == len(set(ids))


async def both_hear_each_other(ann: Any, bo: Any) -> None:
    """What each of them says next is read by the other one."""
    for reader, mark in ((ann, "[en]"), (bo, "[zh]")):
        already = await reader.locator(HEARD).count()
        await reader.wait_for_function(MORE, arg=[HEARD, already])
        assert mark in await reader.locator(f"{HEARD} .large").last.inner_text()


@needs_a_voice
@pytest.mark.long
async def test_voice_that_a_page_plays_into_open_microphones_comes_back_from_none_of_them(
    harness: BrowserHarness, windows: Windows
) -> None:
    async def work(node: RawNode, job: dict[str, Any]) -> None:
        if job.get("text"):
            text, sound = f"[{job['tgt_lang']}] {job['text']}", voice
            await node.answer(job, text_translated=text, tts_audio=sound, tts_format="pcm16")
        else:
            await node.answer(job, text_asr=heard)

    heard = "an echo"  # until the person speaks
    langs = ("hr", "sl")
    voice = base64.b64encode(speech("One of three.", 160).tobytes()).decode()
    person = speech("We need a doctor who speaks to all of us, and not to one of us alone.", 110, "en-us+m3").tolist()
    async with aiohttp.ClientSession() as http:
        node = await RawNode.dial(
            http,
            harness.first.port,
            languages=langs,
            work=work,
            features=FEATURES,
            text_pairs=[list(pair) for pair in permutations(langs, 2)],
        )
        ann = await windows.open("about:blank", viewport=WIDE)
        await ann.context.add_init_script(AIR)
        await ann.goto(room_url(harness.first))
        await introduce(ann, "Ann", "hr")
        await ann.wait_for_selector(INSIDE)
        await ann.press(MIC, "Enter")
        await ann.evaluate(NEXT_PERSON)
        bo = await ann.context.new_page()
        await bo.goto(ann.url)
        await bo.wait_for_selector(INSIDE)
        await bo.press(MIC, "Enter")
        for page in (ann, bo):
            await page.wait_for_selector(f'{MIC}[data-state="on"]')
        for text in ("jedan", "dva"):
            await write(ann, text)
            await bo.wait_for_selector(f".aloud:has-text('{text}')")
            await ann.wait_for_selector(f'{MIC}[data-state="waits"]')
        await bo.wait_for_selector(".aloud", state="detached")
        for page in (ann, bo):
            await page.wait_for_selector(f'{MIC}[data-state="on"]')
        await ann.wait_for_timeout(1500)  # a pause: an echo would be an utterance of its own
        heard = "a person"
        await ann.evaluate("speakAloud", person)  # both microphones hear it
        await ann.wait_for_selector(".mine .large >> text=a person")
        await bo.wait_for_selector(".mine .large >> text=a person")
        assert await bo.evaluate("heardByMicrophone") >= 3, "the voices have reached the microphone"
        for page in (ann, bo):
            assert await page.locator('.caption[data-id]:has-text("an echo")').count() == 0
        await node.close()
