"""Translation by any model of CTranslate2: NLLB, M2M-100, or the pairs of OPUS-MT. Offline, on a processor or a GPU.

What kind a model is, and which languages it has, its own files say: NLLB and M2M-100 have a token for each language in
their vocabulary; a model of OPUS-MT is for one pair, which the name of its folder ends with (`opus-mt-en-es`).
"""

import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dragoman.engines.engine import EngineFailed, Missing, need_module
from dragoman.engines.languages import code_of
from dragoman.engines.models import folders_like, found_folder
from dragoman.node.threads import Threads

END = "</s>"
BEAMS = 4
MAX_TOKENS = 256
_NLLB = re.compile(r"([a-z]{3})_[A-Z][a-z]{3}")
_M2M = re.compile(r"__([a-z]{2,3})__")
_PAIR = re.compile(r".*?([a-z]{2,3})-([a-z]{2,3})")
_SENTENCE = re.compile(r"(?<=[.!?…])\s+|(?<=[。！？])")
# Languages that NLLB names by a variety: the first of these that a model has.
_VARIETIES = {
    code: own
    for pair in ["arb ar", "zho zh", "pes fa", "zsm ms", "lvs lv", "swh sw", "npi ne", "nob no", "ekk et"]
    for code, own in [pair.split()]
}
_FIRST_SCRIPT = ("zho_Hans", "arb_Arab")


@dataclass(slots=True)
class Loaded:
    """A model: its pairs, and the token that names each language; without tokens it has one pair."""

    folder: Path
    pairs: frozenset[tuple[str, str]]
    tokens: dict[str, str]
    appends_end: bool
    translator: Any
    source: Any
    target: Any

    def translate(self, text: str, source: str, target: str) -> str:
        sentences = [sentence for sentence in _SENTENCE.split(text) if sentence.strip()]
        begin = [self.tokens[source]] if self.tokens else []
        end = [END] if self.appends_end else []
        pieces = [begin + self.source.encode(sentence, out_type=str) + end for sentence in sentences]
        prefix = [[self.tokens[target]]] * len(pieces) if self.tokens else None
        results = self.translator.translate_batch(
            pieces, target_prefix=prefix, beam_size=BEAMS, max_decoding_length=MAX_TOKENS
        )
        skipped = 1 if self.tokens else 0
        return " ".join(self.target.decode(result.hypotheses[0][skipped:]).strip() for result in results).strip()


class CTranslate:
    """`name`: nllb, opus-mt or ctranslate2. `model`: which ones, separated by commas; empty: all that are there."""

    detects = False

    def __init__(self, name: str, model: str, models: Path, *, slots: int = 1, device: str = "cpu") -> None:
        self.name = name
        self.pairs: frozenset[tuple[str, str]] = frozenset()
        self._model, self._models, self._slots, self._device = model, models, slots, device
        self._threads = Threads(slots, f"dragoman-{name}")
        self._loaded: list[Loaded] = []

    @property
    def remark(self) -> str:
        return f"{', '.join(loaded.folder.name for loaded in self._loaded) or self.name} translates on this machine"

    async def open(self) -> None:
        need_module("ctranslate2", "ctranslate2")
        need_module("sentencepiece", "ctranslate2")
        self._loaded = [await self._threads.run(self._load, folder) for folder in self._folders()]
        self.pairs = frozenset(pair for loaded in self._loaded for pair in loaded.pairs)

    async def close(self) -> None:
        self._threads.close()
        for loaded in self._loaded:
            loaded.translator.unload_model()

    async def translate(self, text: str, source: str, target: str) -> str:
        for loaded in self._loaded:
            if (source, target) in loaded.pairs:
                return await self._threads.run(loaded.translate, text, source, target)
        raise EngineFailed(f"{self.name} has no translation from {source} into {target} here.")

    # ------------------------------------------------------------ loading

    def _folders(self) -> list[Path]:
        if self._model:
            return [found_folder(self.name, model, self._models, ("model.bin",)) for model in self._model.split(",")]
        folders = [folder for folder in folders_like(f"{self.name}-", self._models) if (folder / "model.bin").is_file()]
        if not folders:
            wanted = {"nllb": "dragoman models get nllb:600m"}
            raise Missing(
                f"There is no model of {self.name} in {self._models}",
                wanted.get(self.name, f"put one into {self._models / self.name}-<name>, or give its folder"),
            )
        return folders

    def _load(self, folder: Path) -> Loaded:
        import ctranslate2

        source, target = _pieces(folder)
        tokens = language_tokens(_vocabulary(folder))
        match = _PAIR.fullmatch(folder.name)
        pair = (code_of(match[1]), code_of(match[2])) if match else (None, None)
        if tokens:
            pairs = frozenset((one, other) for one in tokens for other in tokens if one != other)
        elif pair[0] and pair[1]:
            pairs = frozenset([(pair[0], pair[1])])
        else:
            raise Missing(
                f"The languages of {folder} are not known", "name the folder after its pair, as opus-mt-en-es"
            )
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        translator = ctranslate2.Translator(
            str(folder),
            device=self._device,
            compute_type="int8" if self._device == "cpu" else "default",
            inter_threads=self._slots,
            intra_threads=max(1, (os.cpu_count() or 1) // self._slots),
        )
        return Loaded(folder, pairs, tokens, not config.get("add_source_eos"), translator, source, target)


def _pieces(folder: Path) -> tuple[Any, Any]:
    """The tokenizers of source and target: the same one, unless there are two. Raises Missing."""
    import sentencepiece

    both = sorted(path for path in folder.glob("*.model") if path.name != "model.bin")
    found = [folder / "source.spm", folder / "target.spm"] if (folder / "source.spm").is_file() else both[:1] * 2
    if not found:
        raise Missing(f"{folder} has no tokenizer", "put source.spm and target.spm, or one *.model, beside model.bin")
    source, target = (sentencepiece.SentencePieceProcessor(model_file=str(path)) for path in found)
    return source, target


def _vocabulary(folder: Path) -> list[str]:
    for name in ("shared_vocabulary", "source_vocabulary"):
        if (path := folder / f"{name}.json").is_file():
            return [str(token) for token in json.loads(path.read_text(encoding="utf-8"))]
        if (path := folder / f"{name}.txt").is_file():
            return path.read_text(encoding="utf-8").split("\n")
    return []


def language_tokens(vocabulary: Iterable[str]) -> dict[str, str]:
    """The token of each language, if the model has such tokens."""
    tokens: dict[str, str] = {}
    for token in vocabulary:
        if match := _NLLB.fullmatch(token) or _M2M.fullmatch(token):
            code = _VARIETIES.get(match[1]) or code_of(match[1])
            if code is not None and (code not in tokens or token in _FIRST_SCRIPT):
                tokens[code] = token
    return tokens
