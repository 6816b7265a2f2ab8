"""The packages of the server in one direction: no attribute set from outside, no import cycle.

An object gets its collaborators through its constructor. A module changes its own objects only: `self`, a record that
it defines as a dataclass, a local variable that the same function constructed. Counters may be counted up by anyone.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import dragoman
from support.tables import for_each

ROOT = Path(dragoman.__file__).parent
PACKAGES = ("services", "gateway", "instance", "store")


@cache
def modules() -> dict[str, ast.Module]:
    """Every module of the package by its dotted name."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = ast.parse(path.read_text(encoding="utf-8"))
    return found


def teardown_module() -> None:
    """Free the syntax trees: every garbage collection of later tests would look through them."""
    modules.cache_clear()


def checked() -> dict[str, ast.Module]:
    """The modules of the server's packages, without `dragoman.` in their names."""
    short = {name.removeprefix("dragoman."): tree for name, tree in modules().items()}
    return {name: tree for name, tree in short.items() if name.split(".")[0] in PACKAGES}


# -- assignments -------------------------------------------------------------------------------


def assigned(node: ast.AST) -> Iterator[ast.Attribute]:
    """The attributes that this statement sets or deletes."""
    match node:
        case ast.Assign(targets=targets) | ast.Delete(targets=targets):
            found = list(targets)
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target) | ast.For(target=target):
            found = [target]
        case _:
            return
    while found:
        one = found.pop()
        if isinstance(one, ast.Attribute):
            yield one
        elif isinstance(one, ast.Tuple | ast.List):
            found += one.elts


def fields_of_records(tree: ast.Module) -> set[str]:
    """The fields of the dataclasses that a module defines."""
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    records = [one for one in classes if any("dataclass" in ast.unparse(each) for each in one.decorator_list)]
    statements = (statement for record in records for statement in record.body)
    return {
        statement.target.id
        for statement in statements
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
    }


def constructed_in(function: ast.AST) -> set[str]:
    """Local variables that the function binds to a new object: the call of a class."""
    names = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            called = ast.unparse(node.value.func).split(".")
            if any(part == "cls" or part.lstrip("_")[:1].isupper() for part in called):
                names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names


def foreign_assignments(tree: ast.Module) -> list[str]:
    records, found = fields_of_records(tree), set[str]()
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    for function in functions:
        targets = [(node, target) for node in ast.walk(function) for target in assigned(node)]
        foreign = [
            (node, target)
            for node, target in targets
            if target.attr not in records and ast.unparse(target.value) not in ("self", "cls")
        ]
        constructed = constructed_in(function) if foreign else set[str]()
        for node, target in foreign:
            is_own = isinstance(target.value, ast.Name) and target.value.id in constructed
            is_counter = isinstance(node, ast.AugAssign) and ast.unparse(target.value).endswith("counters")
            if not is_own and not is_counter:
                found.add(ast.unparse(target))
    return sorted(found)


@for_each(
    [
        ("def f(self): self.a = 1", []),
        ("def f(self): self.part.a = 1", ["self.part.a"]),
        ("def f(other): other.a, b = 1, 2", ["other.a"]),
        ("def f(other): other.a += 1", ["other.a"]),
        ("def f(other): del other.a", ["other.a"]),
        ("def f(self): self._counters.a += 1", []),
        ("def f(self): self._counters.a = 1", ["self._counters.a"]),
        ("def f():\n made = Thing()\n made.a = 1", []),
        ("def f():\n found = find()\n found.a = 1", ["found.a"]),
        ("@dataclass\nclass Record:\n a: int\ndef f(record): record.a = 1", []),
        ("class Record:\n a: int\ndef f(record): record.a = 1", ["record.a"]),
    ]
)
def test_the_check_finds_assignments_from_outside(source: str, found: list[str]) -> None:
    assert foreign_assignments(ast.parse(source)) == found


def test_no_attribute_is_set_from_outside() -> None:
    found = [f"{name}: {each}" for name, tree in checked().items() for each in foreign_assignments(tree)]
    assert found == [], "give it to the constructor, or call a method"


# -- imports -----------------------------------------------------------------------------------


def imports_of(tree: ast.Module) -> set[str]:
    """The modules of ours that a module imports anywhere: at the top, below TYPE_CHECKING, in a function."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{each.name}" for each in node.names} | {node.module}
    return found & modules().keys()


def imports() -> dict[str, set[str]]:
    """The imports between the modules of the server; packages themselves only pass names on."""
    names = checked().keys()
    packages = {name for name in names if any(other.startswith(f"{name}.") for other in names)}
    found = {name: {each.removeprefix("dragoman.") for each in imports_of(tree)} for name, tree in checked().items()}
    return {name: (imported & names) - packages for name, imported in found.items()}


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The strongly connected components of more than one module (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in sorted(graph[name]):
            if other not in index:
                visit(other)
            if other in stack:
                low[name] = min(low[name], low[other])
        if low[name] == index[name]:
            at = stack.index(name)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    for name in sorted(graph):
        if name not in index:
            visit(name)
    return sorted(found)


def test_the_check_finds_cycles() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set[str](), "e": {"a", "e"}}
    assert cycles(graph) == [["b", "c"]]


def test_no_modules_import_each_other() -> None:
    """Imports below TYPE_CHECKING count: they hide that two classes know each other."""
    assert cycles(imports()) == []
