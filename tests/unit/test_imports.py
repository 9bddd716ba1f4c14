"""Files that import each other or are too long, and objects that are usable only once another sets an attribute."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from pathlib import Path

import pytest

import celery_throttle

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
    "celery_throttle.worker.held_back.crowded": {"run"},
    "celery_throttle.worker.acknowledging": {"run"},
    "celery_throttle.worker.celery_side.watch": {"request", "run"},  # Celery's hooks are attributes of its requests
    "celery_throttle.worker.celery_side.broker": {"consumer"},  # as are those of its consumer
    "celery_throttle.worker.bootsteps": {"worker"},  # and of its worker
    "celery_throttle.control.remote_step": {"worker"},
    "celery_throttle.worker.wiring": {"connection", "consumer"},  # which we wrap
    "celery_throttle.worker.celery_side.prefetch": {"qos"},  # which sets how many messages the worker may take
    "celery_throttle.worker.celery_side.unthrottled": {"task"},  # as Celery's autoretry_for does
    "celery_throttle.worker.celery_side.remember": {
        "backends"
    },  # where a result that cannot be kept makes a failure of a success
    "celery_throttle.testing.cut": {"pool"},  # whose connections a test can cut
    # Celery's worker in the process of a test; of a lost one nothing is reported.
    "celery_throttle.testing.workers": {"self", "throttling", "connection"},
    "celery_throttle.worker.celery_side.slots": {"pool"},  # whose flush forgets too much before Celery 5.6
}

#: Lines of a file, which has one subject.
MOST_LINES = 400


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


FILES = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}


@pytest.fixture(scope="module")
def modules() -> dict[str, ast.AST]:
    return {name: ast.parse(path.read_text("utf-8")) for name, path in FILES.items()}


def imports(tree: ast.AST, modules: Mapping[str, object]) -> set[str]:
    """Return the names that a file imports from the package, anywhere in it, also for types alone."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{each.name}" for each in node.names]
            found |= {name if name in modules else str(node.module) for name in names}
        elif isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
    return found & modules.keys()


def circle(modules: Mapping[str, ast.AST]) -> list[str]:
    """Some files that import each other in a circle."""
    graph = {name: imports(tree, modules) for name, tree in modules.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_file_is_long() -> None:
    lines = {name: len(path.read_text("utf-8").splitlines()) for name, path in FILES.items()}
    assert {name: count for name, count in lines.items() if count > MOST_LINES} == {}


def classes(modules: Mapping[str, ast.AST]) -> dict[str, ast.ClassDef]:
    return {node.name: node for tree in modules.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}


def methods(of: ast.ClassDef) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    return {node.name: node for node in of.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def is_own(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}


def set_by(function: ast.AST) -> set[str]:
    """The attributes of itself that a method sets."""
    return {
        node.attr
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_own(node)
    }


def promised(function: ast.AST) -> set[str]:
    """The attributes that a method has a type for and no value."""
    annotated = (node for node in ast.walk(function) if isinstance(node, ast.AnnAssign) and node.value is None)
    return {node.target.attr for node in annotated if isinstance(node.target, ast.Attribute)}


def is_record(of: ast.ClassDef) -> bool:
    """Whether its objects get a value for each field that it names."""
    return any("dataclass" in ast.unparse(each) for each in of.decorator_list)


def of_its_beginning(of: ast.ClassDef, known: Mapping[str, ast.ClassDef]) -> set[str]:
    """The attributes that an object has once it is made: of its class, its bases, ``__init__`` and its callees."""
    own, todo, seen = methods(of), ["__init__", "__new__", "__post_init__"], set()
    fields = [
        node for node in of.body if isinstance(node, ast.Assign | ast.AnnAssign) and (node.value or is_record(of))
    ]
    found = {target.id for node in fields for target in ast.walk(node) if isinstance(target, ast.Name)}
    while todo:
        name = todo.pop()
        if name in seen or name not in own:
            continue
        seen.add(name)
        found |= set_by(own[name]) - promised(own[name])
        calls = (node.func for node in ast.walk(own[name]) if isinstance(node, ast.Call))
        todo += [call.attr for call in calls if isinstance(call, ast.Attribute) and is_own(call)]
    bases = (node.id for base in of.bases for node in ast.walk(base) if isinstance(node, ast.Name))
    return found.union(*(of_its_beginning(known[base], known) for base in bases if base in known and base != of.name))


def set_later(modules: Mapping[str, ast.AST], known: Mapping[str, ast.ClassDef]) -> Iterator[str]:
    """Yield the attributes that a class first gets after its objects are made."""
    for name, each in classes(modules).items():
        late = set().union(*map(set_by, methods(each).values())) - of_its_beginning(each, known)
        yield from (f"{name}.{attribute}" for attribute in sorted(late))


def made_by(function: ast.AST) -> Iterator[str]:
    """Yield the names of values that a function makes by calling a class."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            maker = ast.unparse(node.value.func).rpartition(".")[2]
            if maker == "cls" or maker[0].isupper():
                yield from map(ast.unparse, node.targets)


def set_from_outside(tree: ast.AST) -> Iterator[str]:
    """Yield the attributes that are set on an object by others than itself and the function that made it."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    for function in functions:
        made = set(made_by(function))
        for node in ast.walk(function):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and not is_own(node):
                owner = ast.unparse(node.value)
                yield from () if owner in made else (f"{owner}.{node.attr} in {function.name}",)


def test_no_files_import_each_other(modules: dict[str, ast.AST]) -> None:
    assert circle(modules) == []


def test_objects_are_whole_when_they_are_made(modules: dict[str, ast.AST]) -> None:
    assert list(set_later(modules, classes(modules))) == []


@pytest.mark.parametrize("name", sorted(FILES))
def test_modules_set_no_attributes_of_others(modules: dict[str, ast.AST], name: str) -> None:
    """Only a few modules may, for a few attributes."""
    found = [(each.partition(".")[0], each) for each in set_from_outside(modules[name])]
    steered = STEERS.get(name, set())
    assert [each for owner, each in found if owner not in steered] == []
    assert steered <= {owner for owner, _ in found}


# -- that these tests would see it -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "texts",
    [
        {"a": "import b", "b": "def f():\n    import a"},
        {"p.a": "from p import b", "p.b": "if TYPE_CHECKING:\n    from p.a import A"},
        {"a": "import b", "b": "import c", "c": "from a import x"},
    ],
    ids=str,
)
def test_a_circle_is_seen(texts: dict[str, str]) -> None:
    assert circle({name: ast.parse(text) for name, text in texts.items()})


@pytest.mark.parametrize(
    ("body", "late"),
    [
        ("x = 1\n def f(self): self.x = 2", []),
        ("x: int\n def f(self): self.x = 2", ["A.x"]),
        ("def __init__(self): self.f()\n def f(self): self.x = 2", []),
        ("def __init__(self): self.y = 1\n def f(self, x): self.x = x", ["A.x"]),
        ("def __init__(self): self.y = 1\n def f(self): self.x = 2", ["A.x"]),
        ("def __init__(self): self.x: int\n def f(self): self.x = 2", ["A.x"]),
    ],
    ids=str,
)
def test_an_object_that_is_not_whole_is_seen(body: str, late: list[str]) -> None:
    tree = ast.parse(f"class A:\n {body}\nclass B(A):\n def g(self): self.x = 3\n")
    found = list(set_later({"m": tree}, classes({"m": tree})))
    assert found == [*late, *(["B.x"] if late else [])]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("def f(run): run.permit = True", ["run.permit in f"]),
        ("def f(self): self.gate.leases = self._leases = 1", ["self.gate.leases in f"]),
        ("def f(): run = find(); run.permit = True", ["run.permit in f"]),
        ("def f(self): self.x = 1", []),
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
        for imported in ast.walk(tree)
        if isinstance(imported, ast.ImportFrom) and (name := imported.module or "") in modules
        for each in imported.names
        if f"{name}.{each.name}" not in modules and each.name not in listed(modules[name])
        if hasattr(import_module(name), each.name)
    }
    assert not unlisted


def listed(tree: ast.AST) -> list[str]:
    """Return the names in ``__all__``."""
    for each in ast.walk(tree):
        if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "__all__":
            return [ast.literal_eval(name) for name in getattr(each.value, "elts", [])]
    return []
