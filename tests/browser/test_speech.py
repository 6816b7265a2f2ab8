"""Speaking on the page: a voice from the microphone becomes text and sound, in its place, whatever dies meanwhile."""

import asyncio
import re
from base64 import b64encode
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from browser.harness import CUT, TIMEOUT_S, BrowserHarness, Windows, both_enter, needs_a_voice, recorded
from dragoman.domain.sample_sentences import SENTENCES
from dragoman.embedded.engine import free_port
from dragoman.tools.processes import InstanceProcess
from support.engines import words
from support.raw_node import RawNode, silent
from support.voice import vowel
from support.waiting import wait_until

pytestmark = needs_a_voice
WEB_CLIENT = Path(__file__).resolve().parents[2] / "docs/guides/web-client.md"
SPEAK, ALICE = '[data-part="speak"]', '[data-pane="alice"]'

# Every sound that was decoded, for as long as anybody else holds it; and how many were played.
_SOUNDS = """
window.sounds = { decoded: [], started: 0, ended: 0 };
const note = (buffer) => (sounds.decoded.push(new WeakRef(buffer)), buffer);
const { decodeAudioData, createBuffer } = BaseAudioContext.prototype, { start } = AudioBufferSourceNode.prototype;
BaseAudioContext.prototype.decodeAudioData = async function (data) {
  return note(await decodeAudioData.call(this, data));
};
BaseAudioContext.prototype.createBuffer = function (...of) { return note(createBuffer.apply(this, of)); };
AudioBufferSourceNode.prototype.start = function () {
  sounds.started++;
  this.addEventListener("ended", () => sounds.ended++);
  start.call(this);
};
"""
_TOO_MUCH = """async () => {
  const { Session } = await import("/page/session.js"), told = [];
  const session = new Session({ src: "en", tgt: "zh" }, { refused: ({ code }) => told.push(code) });
  for (let at = 0; at < 40; at++) session.say(new Uint8Array(64 << 10));
  return told;
}"""
_UNSENT = """async (voice) => {
  const { Session } = await import("/page/session.js"), translated = [];
  const result = ({ text_translated }) => translated.push(text_translated);
  const on = { state() {}, partial() {}, progress() {}, ended() {}, result };
  const session = new Session({ src: "en", tgt: "zh" }, on);
  session.open();
  session.say(Uint8Array.from(atob(voice), (one) => one.charCodeAt(0)), true);
  session.finish("languages changed");
  while (session.link.wanted) await new Promise((resolve) => setTimeout(resolve, 20));
  return translated;
}"""
_ABANDONED = """async () => {
  const { Transcript } = await import("/page/transcript.js"), list = document.createElement("ol");
  const transcript = new Transcript(list, document.createElement("p"), document.createElement("p"), {});
  const session = transcript.begin("en", "zh");
  transcript.result(session, { utterance_index: 0, text_asr: "a", text_translated: "b" });
  transcript.expect(session, 1);
  transcript.ended(session, 1, "empty");
  transcript.expect(session, 2);
  transcript.abandon(session);
  return [...list.children].map((item) => item.dataset.state);
}"""
# The program of the guide speaks for a second, and prints until there is a translation.
_SPOKEN = """
  const printed = [], tick = () => new Promise((resolve) => setTimeout(resolve, 20));
  console.log = (...words) => printed.push(words.join(" "));
  while (!session) await tick();
  speak(new Int16Array(16000).fill(3000), true);
  while (!printed.some((line) => line.includes("[zh]"))) await tick();
  return printed;
"""
# Recordings of these many samples, played on a clock of the test: how many samples came, and whether the end was told.
_PLAYED = """async (lengths) => {
  const { Recording } = await import("/page/recording.js"), played = [];
  for (const length of lengths) {
    let now = 0, tick = null, samples = 0, ended = false;
    performance.now = () => now;
    window.setInterval = (step) => ((tick = step), 1);
    window.clearInterval = () => (tick = null);
    new Recording(new Float32Array(length)).play((piece) => (samples += piece.length), () => (ended = true));
    for (; tick && now < 60000; now += 50) tick();
    played.push([samples, ended]);
  }
  return played;
}"""
_UNPLUG = """
const ask = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);
navigator.mediaDevices.getUserMedia = async (wanted) => {
  const stream = await ask(wanted);
  window.unplug = () => stream.getTracks().forEach((track) => track.dispatchEvent(new Event("ended")));
  return stream;
};
"""


def url(instance: InstanceProcess) -> str:
    return f"http://127.0.0.1:{instance.port}/try"


def turn(index: int, state: str = "done") -> str:
    return f'.turn[data-index="{index}"][data-state="{state}"]'


async def speak(windows: Windows, instance: InstanceProcess, src: str, tgt: str, **options: Any) -> Any:
    """A page on which somebody speaks."""
    page = await windows.open(url(instance), **options)
    await page.select_option('select[data-part="from"]', src)
    await page.select_option('select[data-part="to"]', tgt)
    await page.click(SPEAK)
    return page


async def test_speech_is_translated_to_text_and_sound(harness: BrowserHarness, windows: Windows) -> None:
    await harness.served(harness.first, "en", "zh")
    page = await speak(windows, harness.first, "en", "zh")
    await page.wait_for_selector(f"{turn(0)}[data-sound-ms]")
    assert "utterance 0 of s-" in await page.locator(f"{turn(0)} .source").inner_text()
    assert (await page.locator(f"{turn(0)} .translation").inner_text()).startswith("[zh] ")
    assert 350 <= int(await page.locator(turn(0)).get_attribute("data-sound-ms")) <= 450
    await page.click(SPEAK)
    await page.wait_for_selector('[data-part="status"][data-mood="quiet"]')


async def test_real_engines_answer_in_spanish_with_audible_sound(harness: BrowserHarness, windows: Windows) -> None:
    if harness.lacking is not None:
        pytest.skip(f"these engines need more than is here: {harness.lacking}")
    await harness.served(harness.second, "en", "es")
    page = await speak(windows, harness.second, "en", "es")
    await page.wait_for_selector('.turn[data-state="done"][data-sound-ms]')
    await page.click(SPEAK)
    first = page.locator('.turn[data-state="done"][data-sound-ms]').first
    assert await first.locator(".source").inner_text()
    assert await first.locator(".translation").inner_text()
    assert int(await first.get_attribute("data-sound-ms")) > 200
    assert float(await first.get_attribute("data-peak")) > 0.05


@pytest.mark.long
async def test_sample_of_the_page_is_recognised_as_it_was_spoken(harness: BrowserHarness, windows: Windows) -> None:
    if harness.lacking is not None:
        pytest.skip(f"these engines need more than is here: {harness.lacking}")
    await harness.served(harness.second, "en", "es")
    page = await windows.open(url(harness.second))
    await page.select_option('select[data-part="from"]', "en")
    await page.select_option('select[data-part="to"]', "es")
    await page.click('[data-part="sample"]')
    _, *sentences = SENTENCES["en"]
    for index, sentence in enumerate(sentences):
        await page.wait_for_selector(f'.turn[data-index="{index}"]:is([data-state="done"], [data-state="failed"])')
        shown = await page.locator(".turn").all_inner_texts()
        assert await page.locator(turn(index)).count() == 1, shown
        assert words(await page.locator(f"{turn(index)} .source").inner_text()) == words(sentence), shown
    await page.wait_for_selector(f'{SPEAK}[aria-pressed="false"]')


async def test_late_result_is_inserted_in_order_and_marked(harness: BrowserHarness, windows: Windows) -> None:
    second_is_there = asyncio.Event()
    answers: set[asyncio.Task[None]] = set()

    def work(node: RawNode, job: dict[str, Any]) -> None:
        answers.add(asyncio.get_running_loop().create_task(answer(node, job)))

    async def answer(node: RawNode, job: dict[str, Any]) -> None:
        if job["utterance_index"] == 0:
            await second_is_there.wait()
        await node.answer(job)

    async with aiohttp.ClientSession() as http:
        node = await RawNode.dial(http, harness.second.port, languages=("fr", "de"), work=work, features=("slots:4",))
        await harness.served(harness.second, "fr", "de")
        page = await speak(windows, harness.second, "fr", "de")
        await page.wait_for_selector(turn(1))
        assert await page.locator(turn(0, "pending")).count() == 1
        second_is_there.set()
        await page.wait_for_selector(f"{turn(0)}[data-backfilled]")
        await page.click(SPEAK)
        assert await page.locator(f"{turn(0)} .late").inner_text() == "arrived late"
        assert await page.locator(f"{turn(1)} .late").count() == 0
        order = await page.locator(".turn").evaluate_all("turns => turns.map((turn) => Number(turn.dataset.index))")
        assert order == sorted(order)
        await node.close()
    await asyncio.gather(*answers, return_exceptions=True)


async def test_errors_are_shown_in_the_language_of_the_user(harness: BrowserHarness, windows: Windows) -> None:
    async def fail(node: RawNode, job: dict[str, Any]) -> None:
        await node.fail(job, "NMT_TIMEOUT")

    async with aiohttp.ClientSession() as http:
        node = await RawNode.dial(http, harness.first.port, languages=("it", "pt"), work=fail)
        await harness.served(harness.first, "it", "pt")
        page = await speak(windows, harness.first, "it", "pt", locale="zh-CN")
        await page.wait_for_selector(turn(0, "failed"))
        assert (await page.locator(f"{turn(0, 'failed')} .note").inner_text()).startswith("未能翻译：")
        await node.close()


async def test_skipped_and_empty_utterances_are_shown_as_such_when_the_server_ends_them(
    harness: BrowserHarness, windows: Windows
) -> None:
    async def work(node: RawNode, job: dict[str, Any]) -> None:
        match job["utterance_index"]:
            case 0:
                pass  # never answered: the result of 1 starts its timeout
            case 2:
                await node.answer(job, text_asr="", text_translated="", extra={"reason": "ASR_EMPTY"})
            case _:
                await node.answer(job)

    async with aiohttp.ClientSession() as http:
        languages = ("nl", "sv")
        node = await RawNode.dial(http, harness.first.port, languages=languages, work=work, features=("slots:4",))
        await harness.served(harness.first, *languages)
        page = await speak(windows, harness.first, *languages)
        await page.wait_for_selector(turn(2, "empty"))
        await page.wait_for_selector(turn(0, "failed"))
        note = await page.locator(f"{turn(0, 'failed')} .note").inner_text()
        assert note == "Not translated: a later part was ready first, and this one did not arrive in time."
        await node.close()


async def test_utterances_of_a_lost_session_are_shown_as_not_translated(
    harness: BrowserHarness, windows: Windows
) -> None:
    page = await windows.open(url(harness.first))
    assert await page.evaluate(_ABANDONED) == ["done", "empty", "failed"]


async def test_page_resumes_when_its_instance_is_killed(harness: BrowserHarness, windows: Windows) -> None:
    windows.tolerate = CUT
    flags = {"server__port": free_port()}  # one for both, as workers of one server have
    first = await harness.cluster.instance(scheduler__phase2__instance_id="three", **flags)
    async with aiohttp.ClientSession() as http:
        node = await RawNode.dial(http, harness.second.port, languages=("nl", "sv"))
        await harness.served(first, "nl", "sv")
        page = await speak(windows, first, "nl", "sv")
        await page.wait_for_selector('[data-part="status"][data-connection="open"]')
        second = await harness.cluster.instance(scheduler__phase2__instance_id="four", **flags)
        await harness.served(second, "nl", "sv")
        await both_enter(page)
        await page.wait_for_selector(turn(0))
        first.kill()
        await page.fill(f"{ALICE} textarea", "are you there?")
        await page.press(f"{ALICE} textarea", "Enter")
        await page.wait_for_selector('[data-part="status"][data-resumed]')
        await page.wait_for_selector(f"{ALICE} .message[data-saved][data-delivered] >> text=are you there?")
        await page.wait_for_selector(turn(await page.locator(".turn").count()))
        told = await page.locator(".turn").evaluate_all("turns => turns.map((turn) => turn.dataset.index)")
        assert told == [str(index) for index in range(len(told))], "one session, each utterance once"
        await node.close()


async def test_speech_before_a_swap_of_languages_is_still_translated(harness: BrowserHarness, windows: Windows) -> None:
    async with aiohttp.ClientSession() as http:
        node = await RawNode.dial(http, harness.second.port, languages=("pl", "cs"), work=silent)
        await harness.served(harness.second, "pl", "cs")
        page = await speak(windows, harness.second, "pl", "cs")
        job = await node.job()
        await page.click('[data-part="swap"]')
        await page.click(SPEAK)
        await node.answer(job)
        await page.wait_for_selector(turn(0))
        said = page.locator(turn(0)).first
        assert await said.locator(".translation").inner_text() == "[cs] said 0"
        assert await said.locator(".translation").get_attribute("lang") == "cs"
        await node.close()


async def test_finishing_session_first_sends_its_buffered_audio(harness: BrowserHarness, windows: Windows) -> None:
    await harness.served(harness.first, "en", "zh")
    page = await windows.open(url(harness.first))
    [translated] = await page.evaluate(_UNSENT, b64encode(vowel(500)).decode())
    assert translated.startswith("[zh] ")


async def test_program_of_the_web_client_guide_translates(harness: BrowserHarness, windows: Windows) -> None:
    await harness.served(harness.first, "en", "zh")
    program = re.findall(r"^```js\n(.*?)^```$", WEB_CLIENT.read_text(encoding="utf-8"), re.M | re.S)[0]
    program = program.replace("127.0.0.1:5010", f"127.0.0.1:{harness.first.port}").replace('"es"', '"zh"')
    page = await windows.open(url(harness.first))
    printed = await page.evaluate(f"async () => {{ {program} {_SPOKEN} }}")
    assert printed[-1].startswith("0 [zh] utterance 0 of s-")


async def test_decoded_sound_is_released_and_can_be_played_again(harness: BrowserHarness, windows: Windows) -> None:
    await harness.served(harness.first, "en", "zh")
    page = await windows.open(url(harness.first))
    await page.context.add_init_script(_SOUNDS)
    await page.reload()
    await page.select_option('select[data-part="from"]', "en")
    await page.select_option('select[data-part="to"]', "zh")
    await page.click(SPEAK)
    await page.wait_for_selector(f"{turn(0)}[data-sound-ms]")
    await page.click(SPEAK)
    await wait_until(lambda: page.evaluate("sounds.started > 0 && sounds.ended === sounds.started"))
    memory = await page.context.new_cdp_session(page)

    async def let_go() -> bool:
        await memory.send("HeapProfiler.collectGarbage")
        return bool(await page.evaluate("sounds.decoded.length > 0 && sounds.decoded.every((one) => !one.deref())"))

    await wait_until(let_go, TIMEOUT_S)
    played = await page.evaluate("sounds.started")
    await page.click(f"{turn(0)} .replay")
    await wait_until(lambda: page.evaluate(f"sounds.started > {played} && sounds.ended === sounds.started"))


async def test_dropped_audio_is_reported_once(harness: BrowserHarness, windows: Windows) -> None:
    page = await windows.open(url(harness.first))
    assert await page.evaluate(_TOO_MUCH) == ["SOUND_LOST"]


@pytest.mark.parametrize("samples", [14_401, 16_000, 16_799])
async def test_recording_is_translated_and_ends_whatever_its_length(
    harness: BrowserHarness, windows: Windows, tmp_path: Path, samples: int
) -> None:
    await harness.served(harness.first, "en", "zh")
    page = await windows.open(url(harness.first))
    await page.select_option('select[data-part="from"]', "en")
    await page.select_option('select[data-part="to"]', "zh")
    await page.set_input_files('[data-part="file"]', recorded(tmp_path / "recording.wav", samples))
    await page.wait_for_selector(turn(0))
    await page.wait_for_selector(f'{SPEAK}[aria-pressed="false"]')
    await page.wait_for_selector('[data-part="status"][data-mood="quiet"]')


async def test_recording_plays_every_sample_when_the_last_piece_is_short(
    harness: BrowserHarness, windows: Windows
) -> None:
    page = await windows.open(url(harness.first))
    lengths = [1, 799, 800, 801, 1600, 1601, 2399, 2400, 2401, 16_000, 17_123]
    assert await page.evaluate(_PLAYED, lengths) == [[length, True] for length in lengths]


async def test_lost_microphone_is_reported(harness: BrowserHarness, windows: Windows) -> None:
    await harness.served(harness.first, "en", "zh")
    page = await windows.open(url(harness.first))
    await page.context.add_init_script(_UNPLUG)
    await page.reload()
    await page.select_option('select[data-part="from"]', "en")
    await page.select_option('select[data-part="to"]', "zh")
    await page.click(SPEAK)
    await page.wait_for_selector('[data-part="status"][data-mood="live"]')
    await page.evaluate("unplug()")
    await page.wait_for_selector('[data-part="status"][data-mood="bad"]')
    assert await page.locator(SPEAK).get_attribute("aria-pressed") == "false"
    assert (await page.locator('[data-part="status-word"]').inner_text()).startswith("The microphone is gone")
