import pytest

from dragoman.engines import EngineFailed, Missing
from dragoman.engines.libretranslate import LibreTranslate
from support.engines import KEY, Fault, model_server, needs_wheels

pytestmark = needs_wheels


async def test_its_pairs_are_those_it_lists_and_it_translates() -> None:
    async with model_server() as server:
        engine = LibreTranslate(server.url, KEY)
        await engine.open()
        assert {("en", "es"), ("es", "en"), ("de", "en")} <= engine.pairs
        assert ("de", "es") not in engine.pairs
        assert (await engine.translate("we need a doctor", "en", "es")).strip() == "Necesitamos un médico."
        asked = {"q": "we need a doctor", "source": "en", "target": "es", "format": "text", "api_key": KEY}
        assert server.last("/translate") == asked
        assert server.authorizations == [None, None]
        await engine.close()


async def test_one_that_is_not_there_is_told_with_what_helps() -> None:
    async with model_server() as server:
        pass
    with pytest.raises(Missing, match=r"No LibreTranslate answers at .* --translate-url"):
        await LibreTranslate(server.url).open()


async def test_lists_and_answers_that_cannot_be_read_are_told() -> None:
    async with model_server(faults=[Fault(200, body='{"languages": 3}'), Fault(200, body="[]")]) as server:
        engine = LibreTranslate(server.url)
        with pytest.raises(Missing, match="its list of languages cannot be read"):
            await engine.open()
        with pytest.raises(EngineFailed, match="without a translation"):
            await engine.translate("hello", "en", "es")
        await engine.close()
