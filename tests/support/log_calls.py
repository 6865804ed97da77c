"""Log calls of the package, found in its syntax trees: event, levels and fields of each call.

A call counts if it is made on a logger: a module-level ``logging.getLogger(…)``, an import of one, or the result of
``logging.getLogger(…)`` itself. An event is a string literal, or an entry of a module-level dictionary of literals.
Fields are followed through local variables, ``values(…)``, dictionary displays and functions that return one of these.
What cannot be followed is a ``ValueError`` with the place, so that every call can be compared with the table."""

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

SRC = Path(__file__).parents[2] / "src"
LEVELS = {"debug": "debug", "info": "info", "warning": "warning", "error": "error", "exception": "error"}
NOT_CALLS = {"isEnabledFor", "addHandler", "removeHandler", "setLevel"}
Function = ast.FunctionDef | ast.AsyncFunctionDef
Resolve = Callable[[ast.expr, "Module", Function | None], set[str]]


class LogCall(NamedTuple):
    place: str
    events: frozenset[str]
    levels: frozenset[str]
    fields: frozenset[str]


class Module:
    """One module: its loggers, its functions and its module-level dictionaries."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tree = ast.parse(path.read_text())
        parts = path.relative_to(SRC).with_suffix("").parts
        self.name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        self.parents = {child: parent for parent in ast.walk(self.tree) for child in ast.iter_child_nodes(parent)}
        self.functions = {node.name: node for node in ast.walk(self.tree) if isinstance(node, Function)}
        self.imports = {
            name.asname or name.name: (node.module, name.name)
            for node in ast.walk(self.tree)
            if isinstance(node, ast.ImportFrom) and node.module
            for name in node.names
        }
        self.assigned = dict(_assignments(self.tree.body))

    def logger_names(self) -> set[str]:
        return {name for name, value in self.assigned.items() if _is_get_logger(value)}

    def function_of(self, node: ast.AST) -> Function | None:
        while node in self.parents:
            node = self.parents[node]
            if isinstance(node, Function):
                return node
        return None


def log_calls() -> list[LogCall]:
    modules = {module.name: module for module in map(Module, sorted(SRC.rglob("*.py")))}
    return [call for module in modules.values() for call in _Calls(module, modules).all()]


def _is_get_logger(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "logging.getLogger"


def _assignments(body: list[ast.stmt]) -> Iterator[tuple[str, ast.expr]]:
    for statement in body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value:
            yield statement.target.id, statement.value
        elif isinstance(statement, ast.Assign):
            for target in statement.targets:
                if isinstance(target, ast.Name):
                    yield target.id, statement.value
                elif isinstance(target, ast.Tuple) and isinstance(statement.value, ast.Tuple):
                    for one, value in zip(target.elts, statement.value.elts, strict=False):
                        if isinstance(one, ast.Name):
                            yield one.id, value


class _Calls:
    """Resolves the log calls of one module."""

    def __init__(self, module: Module, modules: dict[str, Module]) -> None:
        self._module = module
        self._modules = modules
        self._loggers = module.logger_names() | {
            alias
            for alias, (source, name) in module.imports.items()
            if source in modules and name in modules[source].logger_names()
        }

    def all(self) -> Iterator[LogCall]:
        for node in ast.walk(self._module.tree):
            if isinstance(node, ast.Attribute) and self._is_logger(node.value) and node.attr not in NOT_CALLS:
                call = self._module.parents[node]
                if not isinstance(call, ast.Call) or call.func is not node:
                    raise self._unclear(node, "is no call")
                yield self._call(call, node.attr)

    def _is_logger(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Name):
            is_shadowed = (function := self._module.function_of(node)) is not None and any(
                argument.arg == node.id for argument in function.args.args
            )
            return node.id in self._loggers and not is_shadowed
        return _is_get_logger(node)

    def _call(self, call: ast.Call, method: str) -> LogCall:
        arguments = list(call.args)
        levels = {LEVELS[method]} if method in LEVELS else self._levels(call, arguments.pop(0))
        if len(arguments) != 1:
            raise self._unclear(call, "has arguments besides its event")
        keywords = {keyword.arg: keyword.value for keyword in call.keywords}
        extra = keywords.get("extra")
        fields = set() if extra is None else self._extra(extra, self._module, self._module.function_of(call))
        if method == "exception" or "exc_info" in keywords:
            fields.add("error")
        place = f"{self._module.path.relative_to(SRC)}:{call.lineno}"
        return LogCall(place, frozenset(self._events(arguments[0])), frozenset(levels), frozenset(fields))

    def _events(self, node: ast.expr) -> set[str]:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return {node.value}
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
            table = self._module.assigned.get(node.value.id)
            if isinstance(table, ast.Dict):
                return {event for value in table.values for event in self._events(value)}
        raise self._unclear(node, "is no literal event")

    def _levels(self, call: ast.Call, node: ast.expr) -> set[str]:
        """Return all levels ``logging.X`` in an expression, in the local variable and in the tables it names."""
        function = self._module.function_of(call)
        known = self._module.assigned | (dict(_assignments(function.body)) if function is not None else {})
        seen, todo, found = set(), [node], set[str]()
        while todo:
            for part in ast.walk(todo.pop()):
                if isinstance(part, ast.Attribute) and ast.unparse(part.value) == "logging":
                    found.add(part.attr.lower())
                elif isinstance(part, ast.Name) and part.id in known and part.id not in seen:
                    seen.add(part.id)
                    todo.append(known[part.id])
        if not found:
            raise self._unclear(call, "has no level")
        return found

    # -- fields -------------------------------------------------------------------------------------------------------

    def _extra(self, node: ast.expr, module: Module, function: Function | None) -> set[str]:
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "values":
            return self._keywords(node, module, function)
        if isinstance(node, ast.Dict) and [ast.unparse(key) for key in node.keys if key] == ["'values'"]:
            return self._fields(node.values[0], module, function)
        return self._follow(node, module, function, self._extra)

    def _keywords(self, node: ast.Call, module: Module, function: Function | None) -> set[str]:
        found = {keyword.arg for keyword in node.keywords if keyword.arg is not None}
        for keyword in node.keywords:
            if keyword.arg is None:
                found |= self._fields(keyword.value, module, function)
        return found

    def _fields(self, node: ast.expr, module: Module, function: Function | None) -> set[str]:
        if isinstance(node, ast.Dict) and all(isinstance(key, ast.Constant) for key in node.keys):
            return {str(key.value) for key in node.keys if isinstance(key, ast.Constant)}
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            return self._fields(node.left, module, function) | self._fields(node.right, module, function)
        return self._follow(node, module, function, self._fields)

    def _follow(self, node: ast.expr, module: Module, function: Function | None, resolve: Resolve) -> set[str]:
        """Resolve a local variable, or a call of a function of the package."""
        if isinstance(node, ast.Name) and function is not None:
            if function.args.kwarg is not None and function.args.kwarg.arg == node.id:
                return set()  # the keywords are those of the call
            statements = [part for part in ast.walk(function) if isinstance(part, ast.stmt)]
            given = [value for name, value in _assignments(statements) if name == node.id]
            if given:
                found = set[str]().union(*(resolve(value, module, function) for value in given))
                return found | _items_set(statements, node.id)
        if isinstance(node, ast.Call):
            target = self._function(node.func, module)
            if target is not None:
                other, called = target
                results = [part.value for part in ast.walk(called) if isinstance(part, ast.Return) and part.value]
                found = set[str]().union(*(resolve(value, other, called) for value in results))
                return found | (self._keywords(node, module, function) if called.args.kwarg is not None else set())
        raise self._unclear(node, "cannot be followed")

    def _function(self, node: ast.expr, module: Module) -> tuple[Module, Function] | None:
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self" and node.attr in module.functions:
            return module, module.functions[node.attr]
        if isinstance(node, ast.Name) and node.id in module.functions:
            return module, module.functions[node.id]
        if isinstance(node, ast.Name) and node.id in module.imports:
            source, name = module.imports[node.id]
            if source in self._modules and name in self._modules[source].functions:
                return self._modules[source], self._modules[source].functions[name]
        return None

    def _unclear(self, node: ast.expr, why: str) -> ValueError:
        return ValueError(f"{self._module.path.relative_to(SRC)}:{node.lineno}: {ast.unparse(node)} {why}")


def _items_set(statements: list[ast.stmt], name: str) -> set[str]:
    """Return the keys of ``name["key"] = …``."""
    return {
        str(target.slice.value)
        for statement in statements
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Subscript)
        and ast.unparse(target.value) == name
        and isinstance(target.slice, ast.Constant)
    }
