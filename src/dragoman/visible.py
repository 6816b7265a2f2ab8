"""Makes text from others safe for a terminal: characters that would control it become visible escapes.

Escaped are the control characters C0 and C1 (ESC among them: colours, the cursor, the clipboard by OSC 52), DEL, the
separators of lines and paragraphs, the characters that reverse or isolate the direction of text, invisible tags, and
lone surrogates, which no stream can encode. All other text stays as it is, whatever its script. The escapes are those
of JSON, so that JSON stays JSON.
"""

import re

_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u2028-\u202e\u2066-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def visible(text: object) -> str:
    """The text as one line, control characters escaped."""
    return _UNSAFE.sub(_escaped, str(text))


def visible_lines(text: object) -> str:
    """The same with line feeds kept, for text of several lines."""
    return "\n".join(map(visible, str(text).split("\n")))


def _escaped(found: re.Match[str]) -> str:
    char = found[0]
    if ord(char) > 0xFFFF:
        high, low = divmod(ord(char) - 0x10000, 0x400)
        return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"
    return _SHORT.get(char) or f"\\u{ord(char):04x}"
