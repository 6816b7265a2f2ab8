"""The page for everybody: on a phone, by keyboard, by ear, in two languages."""

from typing import Any

from browser.harness import BrowserHarness, Windows

WIDTH = "document.documentElement.scrollWidth"
PHONE = {"width": 360, "height": 740}
NAMES = """
controls => controls.filter((control) => !(control.getAttribute("aria-label") || control.textContent.trim() ||
  [...(control.labels ?? [])].some((label) => label.textContent.trim()))).map((control) => control.outerHTML)
"""
FOCUSED = "document.activeElement.dataset.part ?? document.activeElement.className"


async def opened(windows: Windows, harness: BrowserHarness, **options: Any) -> Any:
    page = await windows.open(f"http://127.0.0.1:{harness.first.port}/try", **options)
    await page.wait_for_selector('[data-part="speak"]:not([disabled])')
    return page


async def test_page_fits_on_a_phone_in_both_languages(harness: BrowserHarness, windows: Windows) -> None:
    await harness.served(harness.first, "en", "zh")
    page = await opened(windows, harness, viewport=PHONE, locale="zh-CN", color_scheme="dark")
    assert await page.evaluate("document.documentElement.lang") == "zh-CN"
    assert await page.evaluate(WIDTH) == PHONE["width"]
    await page.select_option('[data-part="language"]', "en")
    assert await page.evaluate("document.documentElement.lang") == "en"
    assert await page.evaluate(WIDTH) == PHONE["width"]


async def test_every_control_has_a_name_in_the_language_that_was_chosen(
    harness: BrowserHarness, windows: Windows
) -> None:
    await harness.served(harness.first, "en", "zh")
    page = await opened(windows, harness)
    controls = page.locator("button, input, select, textarea, canvas, [tabindex]")
    assert await controls.evaluate_all(NAMES) == []
    assert await page.locator('[data-part="speak"]').inner_text() == "Speak"
    await page.select_option('[data-part="language"]', "zh")
    assert await page.locator('[data-part="speak"]').inner_text() == "开始说话"
    assert await page.locator('[data-part="swap"]').get_attribute("aria-label") == "互换语言"
    await page.reload()
    assert await page.title() == "Dragoman：开口即被听懂"


async def test_everything_is_reached_by_keyboard_in_the_order_one_reads(
    harness: BrowserHarness, windows: Windows
) -> None:
    await harness.served(harness.first, "en", "zh")
    page = await opened(windows, harness)
    reached = []
    for _ in range(16):
        await page.keyboard.press("Tab")
        reached.append(await page.evaluate(FOCUSED))
    wanted = ["skip", "language", "from", "to", "speak", "choose", "aloud", "name", "peer", "enter"]
    assert [part for part in reached if part in wanted][: len(wanted)] == wanted
