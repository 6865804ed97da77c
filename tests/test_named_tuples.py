"""Fields of a named tuple are read by name outside the module that defines it: no ``message[6]``.

The check infers types from annotations, assignments and loops inside a function, and from the fields of the named
tuples. It does not see the results of imported functions and of methods of other objects, so it finds most positions
and not all. ``itemgetter`` with a number is refused everywhere, except for columns of SQL rows."""

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1] / "src" / "yirangmq"
ONE = {"Sequence", "list", "Iterable", "Iterator", "set", "frozenset", "deque", "Collection"}
"""Generic types whose parameter is the type of one element."""
SAME = {"list", "sorted", "reversed", "tuple", "iter", "set"}
"""Functions that return the elements that they are given."""


class Many:
    """Inferred type: a collection of elements of one type."""

    def __init__(self, one: Any) -> None:
        self.one = one


class Module:
    """One source file: its tree, the named tuples that it defines, and the names that it imports."""

    def __init__(self, name: str, source: str) -> None:
        self.name = name
        self.tree = ast.parse(source)
        self.own = {
            node.name: Tuple(node, self)
            for node in self.tree.body
            if isinstance(node, ast.ClassDef) and any(ast.unparse(base) == "NamedTuple" for base in node.bases)
        }
        self.imported = {
            alias.asname or alias.name: (node.module, alias.name)
            for node in ast.walk(self.tree)
            if isinstance(node, ast.ImportFrom) and node.module
            for alias in node.names
        }
        self.aliases = {
            target.id: node.value
            for node in self.tree.body
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        self.returned = {
            node.name: node.returns
            for node in ast.walk(self.tree)
            if isinstance(node, ast.FunctionDef) and node.returns
        }


class Tuple:
    """A named tuple: the annotations of its fields, and where it is defined."""

    def __init__(self, node: ast.ClassDef, module: Module) -> None:
        self.name = node.name
        self.module = module
        self.fields = {
            line.target.id: line.annotation
            for line in node.body
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
        }


class Checker:
    """Finds positions in one module. Types are ``Tuple``, ``Many``, a list (a plain tuple), or None: not known."""

    def __init__(self, module: Module, modules: dict[str, Module]) -> None:
        self.module = module
        self.modules = modules
        self.found: set[tuple[int, str]] = set()

    # -- types --------------------------------------------------------------------------------------------------------

    def declared(self, node: ast.expr | None, module: Module) -> Any:
        """Return the type that an annotation means."""
        match node:
            case ast.Constant(value=str(text)):
                return self.declared(ast.parse(text, mode="eval").body, module)
            case ast.Name(id=name):
                return self.named(name, module)
            case ast.BinOp(left=left, right=right):
                return self.declared(left, module) or self.declared(right, module)
            case ast.Subscript(value=ast.Name(id="tuple"), slice=ast.Tuple(elts=[one, ast.Constant(value=value)])) if (
                value is ...
            ):
                return Many(self.declared(one, module))
            case ast.Subscript(value=ast.Name(id="tuple"), slice=ast.Tuple(elts=parts)):
                return [self.declared(part, module) for part in parts]
            case ast.Subscript(value=ast.Name(id=name), slice=part) if name in ONE:
                return Many(self.declared(part, module))
        return None

    def named(self, name: str, module: Module) -> Any:
        if name in module.imported:
            where, name = module.imported[name]
            if where not in self.modules:
                return None
            return self.named(name, self.modules[where])
        if name in module.aliases:
            return self.declared(module.aliases[name], module)
        return module.own.get(name)

    def type_of(self, node: ast.expr, known: dict[str, Any]) -> Any:
        match node:
            case ast.Name(id=name):
                return known.get(name)
            case ast.Attribute(value=value, attr=attr):
                of = self.type_of(value, known)
                return self.declared(of.fields.get(attr), of.module) if isinstance(of, Tuple) else None
            case ast.Subscript(value=value, slice=index):
                return self.part(self.type_of(value, known), index)
            case ast.Call(func=ast.Name(id=name), args=[one, *_]) if name in SAME:
                return self.type_of(one, known)
            case ast.Call(func=ast.Name(id="zip"), args=args):
                return Many([self.one_of(self.type_of(arg, known)) for arg in args])
            case ast.Call(func=ast.Name(id="enumerate"), args=[one, *_]):
                return Many([None, self.one_of(self.type_of(one, known))])
            case ast.Call(func=ast.Name(id=name)):
                return self.declared(self.module.returned.get(name), self.module) or self.named(name, self.module)
            case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=name)):
                return self.declared(self.module.returned.get(name), self.module)
            case ast.ListComp(elt=elt, generators=loops) | ast.SetComp(elt=elt, generators=loops):
                return Many(self.type_of(elt, self.inside(loops, known)))
            case ast.List(elts=[ast.Starred(value=value)]):
                return self.type_of(value, known)
            case ast.Tuple(elts=parts):
                return [self.type_of(part, known) for part in parts]
            case ast.IfExp(body=body, orelse=orelse):
                return self.type_of(body, known) or self.type_of(orelse, known)
        return None

    def one_of(self, of: Any) -> Any:
        return of.one if isinstance(of, Many) else None

    def parts(self, of: Any) -> list[Any]:
        if isinstance(of, Tuple):
            return [self.declared(one, of.module) for one in of.fields.values()]
        return of if isinstance(of, list) else []

    def part(self, of: Any, index: ast.expr) -> Any:
        if isinstance(of, Many):
            return of if isinstance(index, ast.Slice) else of.one
        parts = self.parts(of)
        if isinstance(index, ast.Constant) and isinstance(index.value, int) and index.value < len(parts):
            return parts[index.value]
        return None

    # -- names --------------------------------------------------------------------------------------------------------

    def bind(self, target: ast.expr, of: Any, known: dict[str, Any]) -> None:
        if isinstance(target, ast.Name):
            known[target.id] = of
        elif isinstance(target, ast.Tuple | ast.List):
            parts = [of.one] * len(target.elts) if isinstance(of, Many) else self.parts(of)
            if len(parts) != len(target.elts):
                parts = [None] * len(target.elts)
            for one, part in zip(target.elts, parts, strict=True):
                self.bind(one, part, known)

    def inside(self, loops: Sequence[ast.comprehension], known: dict[str, Any]) -> dict[str, Any]:
        """Return the names inside of a comprehension."""
        known = dict(known)
        for loop in loops:
            self.bind(loop.target, self.one_of(self.type_of(loop.iter, known)), known)
        return known

    # -- positions ----------------------------------------------------------------------------------------------------

    def look(self, node: ast.AST, known: dict[str, Any]) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                known = dict(known)
                for arg in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
                    known[arg.arg] = self.declared(arg.annotation, self.module)
            case ast.ListComp(generators=loops) | ast.SetComp(generators=loops) | ast.GeneratorExp(generators=loops):
                known = self.inside(loops, known)
            case ast.DictComp(generators=loops):
                known = self.inside(loops, known)
            case ast.For(target=target, iter=source):
                self.bind(target, self.one_of(self.type_of(source, known)), known)
            case ast.Subscript(value=value, slice=index):
                of = self.type_of(value, known)
                if isinstance(of, Tuple) and of.module is not self.module and is_position(index):
                    self.found.add((node.lineno, f"{of.name}[{ast.unparse(index)}]"))
        for child in ast.iter_child_nodes(node):
            self.look(child, known)
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self.bind(target, self.type_of(value, known), known)
            case ast.AnnAssign(target=target, annotation=annotation):
                self.bind(target, self.declared(annotation, self.module), known)


def is_position(index: ast.expr) -> bool:
    if isinstance(index, ast.Slice):
        return True
    try:
        return type(ast.literal_eval(index)) is int
    except ValueError:
        return False


def numbered_getters(module: str, source: str) -> Iterator[tuple[str, str]]:
    """(module, line of code) of each ``itemgetter`` with a number."""
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Call)
            and ast.unparse(node.func).endswith("itemgetter")
            and any(map(is_position, node.args))
        ):
            yield module, source.splitlines()[node.lineno - 1].strip()


def positions(sources: dict[str, str]) -> dict[str, list[tuple[int, str]]]:
    """Return (line, text) of each position, by module."""
    modules = {name: Module(name, source) for name, source in sources.items()}
    found = {}
    for name, module in modules.items():
        checker = Checker(module, modules)
        checker.look(module.tree, {})
        found[name] = sorted(checker.found)
    return {name: places for name, places in found.items() if places}


def name_of(path: Path) -> str:
    return ".".join(("yirangmq", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")


@pytest.fixture(scope="module")
def sources() -> dict[str, str]:
    return {name_of(path): path.read_text() for path in sorted(ROOT.rglob("*.py"))}


def test_fields_of_named_tuples_are_read_by_name(sources: dict[str, str]) -> None:
    assert positions(sources) == {}


def test_getters_of_fields_are_made_by_name(sources: dict[str, str]) -> None:
    found = [place for module, source in sources.items() for place in numbered_getters(module, source)]
    assert found == [("yirangmq.stores.sqlite.reads", "_by_number = itemgetter(0)")]


VALUES = """
class Card(NamedTuple):
    seq: int
    words: tuple[str, ...]

class Move(NamedTuple):
    before: Card
    after: Card | None

Moves = list[tuple[int, Move]]

def own(card: Card) -> int:
    return card[0]
"""


@pytest.mark.parametrize(
    ("line", "position"),
    [
        ("def f(card: Card): return card[0]", "Card[0]"),
        ("def f(card: Card): return card[-1]", "Card[-1]"),
        ("def f(card: Card): return card[:1]", "Card[:1]"),
        ("def f(card: 'Card | None'): return card and card[0]", "Card[0]"),
        ("def f(cards: Sequence[Card]): return [card[0] for card in cards]", "Card[0]"),
        ("def f(cards: Sequence[Card]): return cards[0][0]", "Card[0]"),
        ("def f(moves: list[Move]): return {after[0] for _, after in moves}", "Card[0]"),
        ("def f(moves: list[Move]): return [move.before[0] for move in moves]", "Card[0]"),
        ("def f(moves: Moves):\n  for _, move in moves: print(move[1].seq)", "Move[1]"),
        ("def f(cards: list[Card]): return [one[0] for one, _ in zip(sorted(cards), 'ab')]", "Card[0]"),
        ("def g() -> Card: ...\ndef f():\n  card = g()\n  return card[0]", "Card[0]"),
    ],
)
def test_positions_are_found(line: str, position: str) -> None:
    module = f"from values import Card, Move, Moves\n{line}"
    [(_, found)] = positions({"values": VALUES, "module": module})["module"]
    assert found == position


@pytest.mark.parametrize(
    "line",
    [
        "def f(card: Card): return card.seq, card.words[0]",
        "def f(cards: list[Card]): return cards[0], cards[1:]",
        "def f(move: Move): before, after = move; return before.words[0]",
        "def f(row: tuple[int, str]): return row[0]",
        "def f(cards: dict[int, Card]): return cards[0]",
    ],
)
def test_names_and_plain_tuples_are_not_positions(line: str) -> None:
    assert positions({"values": VALUES, "module": f"from values import Card, Move\n{line}"}) == {}
