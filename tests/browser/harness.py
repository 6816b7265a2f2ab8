"""Pages in a real Chromium, that of the system; and what went wrong in them without anybody asking.

The microphone is a WAV file, said again and again. Every page notes console errors, exceptions and violations of the
policy; a test that has any fails, but for what it tolerates.
"""

import asyncio
import os
import shutil
import subprocess
import wave
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from dragoman.engines import Missing
from dragoman.engines.catalog import local_lacks
from dragoman.tools.processes import InstanceProcess, NodeProcess
from support.cluster import Cluster
from support.waiting import wait_until

CHROMIUM = shutil.which("chromium")
TIMEOUT_S = 60.0
RATE = 16_000
SILENT_S = 1.1  # behind what is said: enough for the page to see the end of an utterance
SENTENCE = "We need a doctor."
# What Chromium itself writes about sockets and requests whose server was killed; no page can keep it from that.
CUT = ("WebSocket connection to", "net::ERR_")

_VIOLATIONS = """
document.addEventListener("securitypolicyviolation", (event) =>
  console.error(`policy violated: ${event.violatedDirective} ${event.blockedURI}`));
"""
_HIDDEN = """
let visibility = "hidden";
Object.defineProperty(document, "visibilityState", { get: () => visibility });
window.beSeen = () => { visibility = "visible"; document.dispatchEvent(new Event("visibilitychange")); };
"""


@asynccontextmanager
async def chromium(microphone: Path) -> AsyncIterator[Any]:
    if CHROMIUM is None:
        pytest.skip("these tests need Chromium; on Debian: apt-get install chromium")
    from playwright.async_api import async_playwright

    flags = [
        "--use-fake-device-for-media-stream",
        "--use-fake-ui-for-media-stream",
        f"--use-file-for-fake-audio-capture={microphone}",
        "--autoplay-policy=no-user-gesture-required",
        # The list of suggestions below the address bar is a page too, and takes most of the CPU of opening one.
        "--disable-features=WebUIOmniboxPopup,WebUIOmniboxAimPopup",
        *(["--no-sandbox"] if os.getuid() == 0 else []),
    ]
    async with async_playwright() as play:
        launched = await play.chromium.launch(executable_path=CHROMIUM, args=flags, timeout=TIMEOUT_S * 1000)
        try:
            yield launched
        finally:
            await launched.close()


class Windows:
    """Each page in a context of its own, as of another person."""

    def __init__(self, browser: Any) -> None:
        self.tolerate: tuple[str, ...] = ()
        self._browser = browser
        self._contexts: list[Any] = []
        self._complaints: list[str] = []

    async def open(self, url: str, *, hidden: bool = False, **options: Any) -> Any:
        usual = {"locale": "en-US", "permissions": ["microphone"]}
        context = await self._browser.new_context(**{**usual, **options})
        self._contexts.append(context)
        context.set_default_timeout(TIMEOUT_S * 1000)
        await context.add_init_script(_VIOLATIONS + (_HIDDEN if hidden else ""))
        page = await context.new_page()
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self._complaints.append(str(error)))
        await page.goto(url)
        return page

    def complaints(self) -> list[str]:
        return [text for text in self._complaints if not any(part in text for part in self.tolerate)]

    async def close(self) -> None:
        for context in self._contexts:
            await context.close()

    def _heard(self, message: Any) -> None:
        if message.type == "error":
            self._complaints.append(message.text)


@dataclass
class BrowserHarness:
    """Two instances, a simulated node (en, zh), and where that is possible one with real engines (en, es)."""

    cluster: Cluster
    first: InstanceProcess
    second: InstanceProcess
    lacking: Missing | None  # what keeps real engines from working here
    local: NodeProcess | None = None

    @classmethod
    async def of(cls, cluster: Cluster) -> "BrowserHarness":
        flags = {"chat__two_phase__enabled": True, "scheduler__phase2__instance_presence_ttl_seconds": 10}
        first, second, lacking = await asyncio.gather(
            cluster.instance(scheduler__phase2__instance_id="one", speech__binary_frames=True, **flags),
            # Real engines may need longer for a sentence than the next one takes to be said.
            cluster.instance(scheduler__phase2__instance_id="two", speech__placement_wait_ms=20_000, **flags),
            local_lacks(),
        )
        harness = cls(cluster, first, second, lacking)
        cluster.node(first, languages="en,zh")
        if lacking is None:
            harness.local = NodeProcess([second.port], cluster.folder / "local.log", engine="local")
        return harness

    def close(self) -> None:
        if self.local is not None:
            self.local.close()

    async def served(self, instance: InstanceProcess, src: str, tgt: str) -> None:
        """Until a page of this instance is told of a node for these languages."""

        async def known() -> bool:
            groups = (await instance.get("/api/v1/public/languages"))["groups"]
            return any(src in group["from"] and tgt in group["to"] for group in groups)

        await wait_until(known, TIMEOUT_S, f"{src} → {tgt}")


async def both_enter(page: Any) -> None:
    """Alice and Bob in their panes, under names nobody has had before: there is no history between them."""
    names = {pane: f"{pane}-{uuid4().hex[:6]}" for pane in ("alice", "bob")}
    for pane, peer in (("alice", "bob"), ("bob", "alice")):
        await page.fill(f'[data-pane="{pane}"] [data-part="name"]', names[pane])
        await page.fill(f'[data-pane="{pane}"] [data-part="peer"]', names[peer])
    for pane in names:
        await page.click(f'[data-pane="{pane}"] [data-part="enter"]')
        await page.wait_for_selector(f'[data-pane="{pane}"][data-state="online"]')
    await page.wait_for_selector('[data-pane="alice"][data-peer]')


needs_a_voice = pytest.mark.skipif(
    shutil.which("espeak-ng") is None, reason="needs espeak-ng: the server tells speech from other sounds"
)


def speech(text: str, speed: int = 120, voice: str = "en-us+f2") -> "array[int]":
    """A sentence at 16 kHz; nothing where there is no espeak-ng."""
    if shutil.which("espeak-ng") is None:
        return array("h")
    command = ["espeak-ng", "-v", voice, "-s", str(speed), "--stdout", text]
    said = subprocess.run(command, capture_output=True, check=True, timeout=20)
    given = array("h", said.stdout[44:])
    return array("h", (given[at * 441 // 320] for at in range(len(given) * 320 // 441)))  # from 22,050 Hz


def spoken(path: Path) -> Path:
    """A sentence and silence."""
    return _written(path, speech(SENTENCE) + array("h", bytes(2 * int(SILENT_S * RATE))))


def recorded(path: Path, samples: int) -> Path:
    """A recording of so many samples, in which somebody speaks to the end."""
    return _written(path, speech("We need a doctor, and he needs to be here now.", 150)[:samples])


def _written(path: Path, samples: "array[int]") -> Path:
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        file.writeframes(samples.tobytes())
    return path
