"""Codes and names of languages, and which of them a node may declare.

A server assumes that a node serves every pair of a language that it recognises and a language that it writes. So a node
may declare a rectangle of pairs: the largest that recogniser and translator really have.
"""

from collections.abc import Iterable
from typing import NamedTuple

# ISO 639-1, ISO 639-3, name. Languages that current recognisers and translators support.
_TABLE = """
af afr Afrikaans · an arg Aragonese · ar ara Arabic · ast ast Asturian · be bel Belarusian · bg bul Bulgarian
bn ben Bengali · br bre Breton · bs bos Bosnian · ca cat Catalan · cs ces Czech · cy cym Welsh · da dan Danish
de deu German · el ell Greek · en eng English · eo epo Esperanto · es spa Spanish · et est Estonian · eu eus Basque
fa fas Persian · fi fin Finnish · fr fra French · ga gle Irish · gl glg Galician · he heb Hebrew · hi hin Hindi
hr hrv Croatian · hu hun Hungarian · hy hye Armenian · id ind Indonesian · is isl Icelandic · it ita Italian
ja jpn Japanese · kk kaz Kazakh · kn kan Kannada · ko kor Korean · lt lit Lithuanian · lv lav Latvian
mk mkd Macedonian · mr mar Marathi · ms msa Malay · mt mlt Maltese · nb nob Norwegian Bokmål
ne nep Nepali · nl nld Dutch · nn nno Norwegian Nynorsk · no nor Norwegian · oc oci Occitan · pl pol Polish
pt por Portuguese · ro ron Romanian
ru rus Russian · sc srd Sardinian · scn scn Sicilian · sk slk Slovak · sl slv Slovenian · sr srp Serbian
sv swe Swedish · sw swa Swahili · ta tam Tamil · th tha Thai · tl tgl Tagalog · tr tur Turkish · tt tat Tatar
uk ukr Ukrainian · ur urd Urdu · vi vie Vietnamese · zh zho Chinese
"""
_ROWS = [row.split(maxsplit=2) for line in _TABLE.splitlines() for row in line.split(" · ") if row.strip()]
NAMES = {code: name for code, _, name in _ROWS}
SHORT = {long: code for code, long, _ in _ROWS}
_BY_NAME = {name.lower(): code for code, _, name in _ROWS}
# What multilingual models are trained on; --languages declares fewer.
MULTILINGUAL = frozenset(NAMES) - frozenset(
    ("an", "ast", "br", "eo", "eu", "ga", "mt", "nb", "nn", "oc", "sc", "scn", "tt")  # rare, or known by another name
)


def code_of(language: str) -> str | None:
    """The code: es for `Spanish`, `spa`, `es-MX` and `es`."""
    word = language.strip().lower()
    short = word.split("-")[0].split("_")[0]
    return _BY_NAME.get(word) or SHORT.get(short) or (short if short in NAMES else None)


class Served(NamedTuple):
    """The languages of a node, as Capabilities has them."""

    asr: frozenset[str]
    semantic: frozenset[str]
    tts: frozenset[str]


def served(
    asr: Iterable[str], pairs: Iterable[tuple[str, str]], tts: Iterable[str], only: frozenset[str] = frozenset()
) -> Served:
    """What a node may declare; of languages `only`, unless that is empty.

    A sentence into its own language needs no translation, so such pairs are always served.
    """
    wanted = {language for language in asr if not only or language in only}
    writes: dict[str, set[str]] = {}
    for source, target in pairs:
        if source in wanted and source != target and (not only or target in only):
            writes.setdefault(source, {source}).add(target)
    best: tuple[int, set[str], set[str]] = (0, set(), set())
    for _, targets in sorted(writes.items()):
        able = {source for source, reached in writes.items() if reached >= targets}
        real = {target for target in targets if able - {target}}
        count = sum(source != target for source in able for target in real)
        if count > best[0]:
            best = count, able, real
    return Served(frozenset(best[1]), frozenset(best[2]), frozenset(best[2]) & frozenset(tts))
