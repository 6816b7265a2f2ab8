"""What the pages name exists: links, commands, make targets, settings, metrics, close codes, folders and imports."""

import ast
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dragoman.cli.main import COMMANDS, imported
from dragoman.config.catalog import ENV_PREFIX, MOVED, RETIRED, SECTIONS, SETTINGS
from dragoman.domain.chat.switches import NAMES as SWITCHES
from dragoman.domain.chat.switches import RANGES, Switches
from dragoman.protocol.chat import Reason
from dragoman.protocol.chat_http import Code
from dragoman.protocol.codes import Close, ErrorCode, RoomErrorCode
from dragoman.tools.reference import PAGES as GENERATED
from dragoman.tools.reference import metric_name, registry
from dragoman.tools.verify.faults import FAULTS, HEALTHY
from dragoman.tools.verify.results import COLUMNS
from support.tables import for_each
from unit.test_structure import imports_of, modules, teardown_module  # noqa: F401

ROOT = Path(__file__).resolve().parents[3]
SOURCE = ROOT / "src/dragoman"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("deploy/*.md")])
OTHER_VARIABLES = {
    "DRAGOMAN_CHAT_PASSWORD",
    "DRAGOMAN_CLIENT_TOKEN",
    "DRAGOMAN_CONFIG",
    "DRAGOMAN_MODELS",
    "DRAGOMAN_NODE_TOKEN",
    "DRAGOMAN_OPERATOR_TOKEN",
    "DRAGOMAN_PUBLISH",
}
TOP_SECTIONS = {name.partition(".")[0] for name in SECTIONS if name}

FENCE = re.compile(r"^```(?P<language>\w*)[^\n]*\n(?P<body>.*?)^```$", re.M | re.S)
INLINE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")

page = for_each(PAGES, lambda path: path.relative_to(ROOT))


def fences(path: Path, *languages: str) -> list[str]:
    found = FENCE.finditer(path.read_text(encoding="utf-8"))
    return [match["body"] for match in found if match["language"] in languages]


def prose(path: Path) -> str:
    return FENCE.sub("", path.read_text(encoding="utf-8"))


def inline(path: Path) -> list[str]:
    return INLINE.findall(prose(path))


def command_lines(path: Path) -> Iterator[list[str]]:
    """What a reader could type: lines of sh blocks, prompts of console blocks, code in the text."""
    typed = [line for body in fences(path, "sh") for line in body.splitlines()]
    typed += [line[2:] for body in fences(path, "console") for line in body.splitlines() if line.startswith("$ ")]
    for line in typed + inline(path):
        words = line.partition(" #")[0].split()
        while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):  # variables for this one command
            words.pop(0)
        if words:
            yield [words[0].removeprefix(".venv/bin/"), *words[1:]]


def anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", prose(path), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


# -- links


@page
def test_every_link_leads_somewhere(path: Path) -> None:
    broken = []
    for link in LINK.findall(prose(path)):
        file, _, anchor = link.partition("#")
        if "://" in link:
            continue
        target = (path.parent / file).resolve() if file else path
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_every_page_of_the_documentation_is_in_its_index() -> None:
    index = ROOT / "docs/README.md"
    linked = {(index.parent / link.partition("#")[0]).resolve() for link in LINK.findall(prose(index))}
    assert [path.name for path in PAGES if path.is_relative_to(index.parent) and path not in {index, *linked}] == []


def test_the_chinese_readme_has_the_sections_commands_and_links_of_the_english_one() -> None:
    english, chinese = ROOT / "README.md", ROOT / "README.zh-CN.md"
    for parts in (
        lambda path: [re.sub(r" +#.*", "", body) for body in fences(path, "sh", "console")],
        lambda path: [link for link in LINK.findall(prose(path)) if not link.startswith("README")],
        lambda path: re.findall(r"^#+ ", prose(path), re.M),
    ):
        assert parts(english) == parts(chinese)


@page
def test_every_test_that_is_named_exists(path: Path) -> None:
    named = {word for code in inline(path) for word in re.findall(r"\btests/[\w/]+\.py\b", code)}
    assert {name for name in named if not (ROOT / name).exists()} == set()


# -- protocols


def section(title: str) -> str:
    """One section of the page of error codes."""
    page = (ROOT / "docs/reference/error-codes.md").read_text(encoding="utf-8")
    return page.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def first_cells(title: str) -> list[str]:
    return re.findall(r"^\| (?!---)([^|]+) \|", section(title), re.M)[1:]


def test_error_codes_page_lists_every_close_code() -> None:
    rows = re.findall(r"^\| (\d{4}) \| (\w+) \|", section("Close codes"), re.M)
    assert rows == [(str(code.value), code.name) for code in Close]


def test_error_codes_page_lists_every_code_of_speech() -> None:
    assert {code for code in INLINE.findall(section("Speech errors")) if code.isupper()} == set(ErrorCode)


def test_error_codes_page_lists_every_code_of_rooms() -> None:
    assert {code for cell in first_cells("Room errors") for code in INLINE.findall(cell)} == set(RoomErrorCode)


def test_error_codes_page_lists_every_reason_of_chat() -> None:
    assert {reason for cell in first_cells("Chat errors") for reason in INLINE.findall(cell)} == set(Reason)


def test_error_codes_page_lists_every_code_of_the_http_of_chat() -> None:
    assert first_cells("HTTP of chat") == [str(code.value) for code in Code]


def test_the_page_of_operators_explains_every_switch_of_chat() -> None:
    table = re.search(r"^\| switch \|(?:.*\|\n)+", (ROOT / "docs/guides/operate.md").read_text(encoding="utf-8"), re.M)
    assert table is not None
    assert [INLINE.findall(row)[0] for row in table[0].splitlines()[2:]] == list(SWITCHES)


@for_each(SWITCHES)
def test_a_switch_of_chat_has_the_default_and_the_range_of_its_setting(name: str) -> None:
    setting = SETTINGS[f"chat.two_phase.{name}"]
    assert getattr(Switches(), name) == setting.default
    if name in RANGES:
        assert (setting.meta.ge, setting.meta.le) == RANGES[name]


def test_verify_page_explains_every_column_and_every_fault() -> None:
    page = (ROOT / "docs/internals/verify.md").read_text(encoding="utf-8")
    columns = re.search(r"^\| column \|.*\n\|[-|]+\n((?:\|.*\n)+)", page, re.M)
    assert columns is not None
    assert re.findall(r"^\| ([\w ]+) \|", columns[1], re.M) == list(COLUMNS[1:])
    assert set(re.findall(r"^\| `([\w-]+)` \|", page, re.M)) == {fault.name for fault in (HEALTHY, *FAULTS)}


# -- commands


@page
def test_every_command_exists_with_its_options(path: Path) -> None:
    wrong = [" ".join(words) for words in command_lines(path) if words[0] == "dragoman" and not _known(words[1:])]
    assert wrong == []


def _known(words: list[str]) -> bool:
    """Names down to the command, then options that it has; `…` and words in capitals stand for something."""
    if not words or words[0] in ("…", "COMMAND") or words[0].startswith("-"):
        return True
    found = {command.name: command for command in COMMANDS}.get(words[0])
    if found is None:
        return False
    command: Any = imported(found)
    rest = words[1:]
    while rest and isinstance(getattr(command, "commands", None), Mapping) and not rest[0].startswith("-"):
        if rest[0] not in command.commands:
            return False
        command, rest = command.commands[rest[0]], rest[1:]
    options = {name for one in command.params for name in (*one.opts, *one.secondary_opts)} | {"--help", "-h"}
    return all(word.partition("=")[0] in options for word in rest if re.match(r"--?[a-z]", word))


@page
def test_every_make_target_exists(path: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    named = {words[1] for words in command_lines(path) if words[0] == "make" and len(words) > 1}
    assert named <= targets


# -- settings


@page
def test_every_setting_exists(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    code = [*inline(path), *re.findall(r"--set ([\w.]+)=", text)]
    keys = {word for part in code for word in re.findall(r"(?<![\w./:@-])[a-z]\w*(?:\.[a-z]\w*)+(?![\w(/-])", part)}
    keys = {key for key in keys if key.partition(".")[0] in TOP_SECTIONS}
    old = MOVED if path.name == "configuration.md" else ()
    assert keys <= {*SETTINGS, *SECTIONS, *old}
    variables = {
        name for name in re.findall(rf"\b{ENV_PREFIX}[A-Z0-9_]*[A-Z0-9]\b", text) if name not in OTHER_VARIABLES
    }
    assert variables <= {setting.variable for setting in SETTINGS.values()}


@page
def test_every_piece_of_configuration_can_be_loaded(path: Path) -> None:
    for body in fences(path, "toml"):
        assert set(_dotted(tomllib.loads(body))) <= set(SETTINGS)


def _dotted(tree: Mapping[str, Any], before: str = "") -> Iterator[str]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _dotted(value, f"{before}{name}.")
        else:
            yield before + name


@page
def test_retired_names_are_named_only_as_such(path: Path) -> None:
    if path.name not in ("CHANGELOG.md", "configuration.md", "names.md"):
        assert [name for name in RETIRED if name in path.read_text(encoding="utf-8")] == []


# -- code


@page
def test_python_can_be_parsed(path: Path) -> None:
    for body in fences(path, "python"):
        ast.parse(body)


@page
def test_every_file_named_exists(path: Path) -> None:
    named = {
        word for word in inline(path) if re.fullmatch(r"(src|docs|tests|domain|store|services|gateway)/[\w./-]+", word)
    }
    assert {word for word in named if not (ROOT / word).exists() and not (SOURCE / word).exists()} == set()


# -- what operators look at


@page
def test_every_metric_exists(path: Path) -> None:
    named = re.findall(r"\b(?:dragoman|scheduler_phase2)_[a-z_]+\b", "\n".join(inline(path)))
    assert set(named) <= {metric_name(metric) for metric in registry()}


@for_each(GENERATED)
def test_generated_page_is_what_the_code_says(name: str) -> None:
    page = f"docs/reference/{name}.md"
    made_by = f"python -m dragoman.tools.reference {name} > {page}"
    assert (ROOT / page).read_text(encoding="utf-8") == GENERATED[name](), f"generate it again: {made_by}"


# -- the architecture


def layers() -> dict[str, set[str]]:
    """The table of the page: what each folder may import, from the top down."""
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| ?([^|]*?) ?\|$", prose(ROOT / "docs/internals/architecture.md"), re.M)
    order = [folder for folder, _ in rows]
    return {
        folder: set(order[at + 1 :]) if imports == "all below" else set(INLINE.findall(imports))
        for at, (folder, imports) in enumerate(rows)
    }


def test_the_architecture_names_every_folder() -> None:
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    modules = {path.stem for path in SOURCE.glob("[a-z]*.py")}
    assert (packages | modules) - set(layers()) == set()


def test_imports_are_those_the_architecture_allows() -> None:
    allowed = layers()
    for module, tree in modules().items():
        mine, *_ = module.split(".")[1:] or [""]
        if mine in allowed:
            folders = {name.split(".")[1] for name in imports_of(tree) if "." in name}
            assert folders - {mine} <= allowed[mine], module


def test_layers_import_only_lower_layers() -> None:
    order = list(layers())
    for folder, imports in layers().items():
        assert imports <= set(order[order.index(folder) + 1 :]), folder


# -- every decision has the same three parts


@for_each(sorted(ROOT.glob("docs/internals/adr/*.md")), lambda path: path.stem)
def test_a_decision_says_what_was_chosen_and_what_was_given_up(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert re.match(rf"# {int(path.name[:4])}\. ", text)
    assert re.findall(r"^\*\*([^*]+)\.\*\*", text, re.M) == ["Context", "Choice", "What we gave up"]
