"""Files that import each other or are too long, and objects that are usable only once another sets an attribute."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path
from typing import TypeVar

import pytest

import celery_throttle

Node = TypeVar("Node", bound=ast.AST)
Function = ast.FunctionDef | ast.AsyncFunctionDef
ROOT = Path(celery_throttle.__file__).parent
#: Modules that set attributes of others, with reasons.
STEERS = {
    "celery_throttle.web.site": {"inner"},  # the state of a Starlette app is the shared place of its handlers
    # A run goes from state to state, and these move it.
    "celery_throttle.worker.gate": {"run", "calls"},
    "celery_throttle.worker.admission": {"run", "calls"},
    "celery_throttle.worker.running": {"run", "calls"},
    "celery_throttle.worker.resuming": {"run"},
    "celery_throttle.worker.held_back.held_back": {"run"},
    "celery_throttle.worker.held_back.put_off": {"run"},
    "celery_throttle.worker.acknowledging": {"run"},
    "celery_throttle.worker.celery_side.watch": {"request", "run"},  # Celery's hooks are attributes of its requests
    "celery_throttle.worker.celery_side.broker": {"consumer"},  # as are those of its consumer
    "celery_throttle.worker.bootsteps": {"worker"},  # and of its worker
    "celery_throttle.control.remote_step": {"worker"},
    "celery_throttle.worker.wiring": {"connection", "consumer"},  # which we wrap
    "celery_throttle.worker.celery_side.prefetch": {"qos"},  # which sets how many messages the worker may take
    "celery_throttle.worker.celery_side.unthrottled": {"task"},  # as Celery's autoretry_for does
    "celery_throttle.testing.cut": {"pool"},  # whose connections a test can cut
    # Celery's worker in the process of a test; of a lost one nothing is reported.
    "celery_throttle.testing.workers": {"self", "throttling", "connection"},
    "celery_throttle.worker.celery_side.slots": {"pool"},  # whose flush forgets too much
    "celery_throttle.worker.celery_side.flushing": {"job"},  # which the flush of the pool would drop
    "celery_throttle.worker.celery_side.other_jobs": {"pool"},  # whose jobs of others have to be counted
}

#: Lines of a file, which has one subject.
MOST_LINES = 400
#: Methods that run while an object is made; what they call of the object runs then, too.
MAKERS = ("__init__", "__new__", "__post_init__")
FILES = {
    ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(ROOT.rglob("*.py"))
}


@pytest.fixture(scope="module")
def modules() -> dict[str, ast.AST]:
    return {name: ast.parse(path.read_text("utf-8")) for name, path in FILES.items()}


def nodes(tree: ast.AST, kind: type[Node]) -> list[Node]:
    return [node for node in ast.walk(tree) if isinstance(node, kind)]


def imports(tree: ast.AST, modules: Mapping[str, object]) -> set[str]:
    """Return the names that a file imports from the package, anywhere in it, also for types alone."""
    found = {each.name for node in nodes(tree, ast.Import) for each in node.names}
    for node in nodes(tree, ast.ImportFrom):
        names = [f"{node.module}.{each.name}" for each in node.names]
        found |= {name if name in modules else str(node.module) for name in names}
    return found & modules.keys()


def is_own(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}


def stored(function: ast.AST) -> list[ast.Attribute]:
    """Return the attributes to which a function gives a value."""
    types_alone = [node.target for node in nodes(function, ast.AnnAssign) if node.value is None]
    found = [node for node in nodes(function, ast.Attribute) if isinstance(node.ctx, ast.Store)]
    return [node for node in found if node not in types_alone]


def own_set_in(methods: Iterable[ast.AST]) -> set[str]:
    return {node.attr for method in methods for node in stored(method) if is_own(node)}


def run_at_first(of: ast.ClassDef) -> list[ast.AST]:
    """Return the methods that run while an object is made: `MAKERS`, and those that they call."""
    own: dict[str, ast.AST] = {node.name: node for node in of.body if isinstance(node, Function)}
    found, todo = [], list(MAKERS)
    while todo:
        if method := own.pop(todo.pop(), None):
            found.append(method)
            called = [call.func for call in nodes(method, ast.Call)]
            todo += [each.attr for each in called if isinstance(each, ast.Attribute) and is_own(each)]
    return found


def set_at_first(of: ast.ClassDef, known: Mapping[str, ast.ClassDef]) -> set[str]:
    """The attributes that an object has once it is made: of its class, its bases, ``__init__`` and its callees."""
    record = any("dataclass" in ast.unparse(each) for each in of.decorator_list)
    fields = [node for node in of.body if isinstance(node, ast.Assign | ast.AnnAssign) and (node.value or record)]
    found = {name.id for node in fields for name in nodes(node, ast.Name)}
    found |= own_set_in(run_at_first(of))
    bases = {name.id for base in of.bases for name in nodes(base, ast.Name)} & known.keys() - {of.name}
    return found.union(*(set_at_first(known[base], known) for base in bases))


def set_later(modules: Mapping[str, ast.AST]) -> list[str]:
    """Return the attributes that a class first gets after its objects are made."""
    known = {each.name: each for tree in modules.values() for each in nodes(tree, ast.ClassDef)}
    found = {(name, late) for name, of in known.items() for late in own_set_in(of.body) - set_at_first(of, known)}
    return sorted(f"{name}.{late}" for name, late in found)


def made_by(function: ast.AST) -> Iterator[str]:
    """Yield the names of values that a function makes by calling a class."""
    for node in nodes(function, ast.Assign):
        if isinstance(node.value, ast.Call):
            maker = ast.unparse(node.value.func).rpartition(".")[2]
            if maker == "cls" or maker[0].isupper():
                yield from map(ast.unparse, node.targets)


def set_from_outside(tree: ast.AST) -> Iterator[str]:
    """Yield the attributes that are set on an object by others than itself and the function that made it."""
    functions: list[Function] = [*nodes(tree, ast.FunctionDef), *nodes(tree, ast.AsyncFunctionDef)]
    for function in functions:
        made = set(made_by(function))
        owners = [(ast.unparse(node.value), node.attr) for node in stored(function) if not is_own(node)]
        yield from (f"{owner}.{name} in {function.name}" for owner, name in owners if owner not in made)


def test_no_file_is_long() -> None:
    lines = {name: len(path.read_text("utf-8").splitlines()) for name, path in FILES.items()}
    assert {name: count for name, count in lines.items() if count > MOST_LINES} == {}


def test_no_files_import_each_other(modules: dict[str, ast.AST]) -> None:
    TopologicalSorter({name: imports(tree, modules) for name, tree in modules.items()}).prepare()  # else CycleError


def test_objects_are_whole_when_they_are_made(modules: dict[str, ast.AST]) -> None:
    assert set_later(modules) == []


@pytest.mark.parametrize("name", sorted(FILES))
def test_modules_set_no_attributes_of_others(modules: dict[str, ast.AST], name: str) -> None:
    """Only a few modules may, for a few attributes."""
    found = [(each.partition(".")[0], each) for each in set_from_outside(modules[name])]
    steered = STEERS.get(name, set())
    assert [each for owner, each in found if owner not in steered] == []
    assert steered <= {owner for owner, _ in found}


# -- that these tests would see it -------------------------------------------------------------------------------------


def test_all_imports_are_seen() -> None:
    text = "import a\nif TYPE_CHECKING:\n    from p.b import B\ndef f():\n    from p import c"
    assert imports(ast.parse(text), dict.fromkeys(["a", "p", "p.b", "p.c"])) == {"a", "p.b", "p.c"}


@pytest.mark.parametrize(
    ("body", "late"),
    [
        ("x = 1\n def f(self): self.x = 2", []),
        ("def __init__(self): self.x = 1\n def f(self): self.x = 2", []),
        ("def __init__(self): self.f()\n def f(self): self.x = 2", []),
        ("def __init__(self): self.y = 1\n def f(self, x): self.x = x", ["A.x", "B.x"]),
        ("x: int\n def f(self): self.x = 2", ["A.x", "B.x"]),
        ("def __init__(self): self.y = 1\n def f(self): self.x = 2", ["A.x", "B.x"]),
        ("def __init__(self): self.x: int\n def f(self): self.x = 2", ["A.x", "B.x"]),
    ],
    ids=str,
)
def test_an_object_that_is_not_whole_is_seen(body: str, late: list[str]) -> None:
    assert set_later({"m": ast.parse(f"class A:\n {body}\nclass B(A):\n def g(self): self.x = 3\n")}) == late


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("def f(self): self.gate.leases = self._leases = 1", ["self.gate.leases in f"]),
        ("def f(): run = find(); run.permit = True", ["run.permit in f"]),
        ("def f(): timer = Timer(1); timer.daemon = True", []),
    ],
    ids=str,
)
def test_setting_attributes_of_others_is_found(text: str, found: list[str]) -> None:
    assert list(set_from_outside(ast.parse(text))) == found


def test_each_name_that_another_file_imports_is_listed(modules: Mapping[str, ast.AST]) -> None:
    """In ``__all__``, unless it is there for types alone."""
    unlisted = {
        (name, each.name)
        for tree in modules.values()
        for imported in nodes(tree, ast.ImportFrom)
        if (name := imported.module or "") in modules
        for each in imported.names
        if f"{name}.{each.name}" not in modules and hasattr(import_module(name), each.name)
        if each.name not in getattr(import_module(name), "__all__", [])
    }
    assert not unlisted
