"""The reference of the public names of `topics`, from the sources: signatures and docstrings.

The sources are parsed and not imported: a compiled module has no signatures, and the page must be the same for both
forms of the package.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path


def python_page(source: Path) -> str:
    """`source` is the folder that has the package."""
    origins = _origins(source)
    parts = [
        """\
What `import topics` offers, from the docstrings. [Clients](../client.md) and [the log inside a
program](../embedded.md) explain the names with longer examples. `AsyncClient`, `AsyncLog`, `AsyncProducer`,
`AsyncTopic`, `AsyncWorker` and `async_worker` have the methods of the names without `Async`, to be awaited.
"""
    ]
    for name in sorted(origins, key=lambda name: (name.lower(), name)):
        if name.startswith(("Async", "async_", "__")):
            continue
        module, _, attribute = origins[name].partition(":")
        node = _definition(source, module, attribute or name)
        parts += _function(name, node, "##") if isinstance(node, ast.FunctionDef) else _class(name, node)
    return "\n".join(parts)


def _origins(source: Path) -> dict[str, str]:
    """Where each public name is, as `topics/__init__.py` says it."""
    for statement in _parsed(source, "topics").body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "_ORIGINS":
            found: dict[str, str] = ast.literal_eval(statement.value)
            return found
    raise AssertionError("topics/__init__.py has no _ORIGINS")


def _parsed(source: Path, module: str) -> ast.Module:
    path = source.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text("utf-8"))


def _definition(source: Path, module: str, name: str) -> ast.ClassDef | ast.FunctionDef:
    """Follows an import to the module that defines the name."""
    tree = _parsed(source, module)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name and not _is_overload(node):
            return node
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and any((one.asname or one.name) == name for one in node.names):
            return _definition(
                source, str(node.module), next(one.name for one in node.names if (one.asname or one.name) == name)
            )
    raise AssertionError(f"{module} has no {name}")


def _class(name: str, node: ast.ClassDef) -> Iterator[str]:
    yield f"## {name}\n"
    yield _docstring(node)
    fields = [
        (statement.target.id, ast.unparse(statement.annotation))
        for statement in node.body
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
        if not statement.target.id.startswith("_")
    ]
    if fields:
        yield "Fields: " + ", ".join(f"`{field}: {kind}`" for field, kind in fields) + ".\n"
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and ast.get_docstring(method) and not method.name.startswith("_"):
            yield from _function(f"{name}.{method.name}", method, "###")


def _function(name: str, node: ast.FunctionDef, level: str) -> Iterator[str]:
    yield f"{level} {name}\n"
    if not any(ast.unparse(one) in ("property", "cached_property") for one in node.decorator_list):
        yield f"```python\n{_signature(name.rpartition('.')[2], node)}\n```\n"
    yield _docstring(node)


def _signature(name: str, node: ast.FunctionDef) -> str:
    arguments = node.args
    if arguments.posonlyargs[:1] or arguments.args[:1]:
        first = (arguments.posonlyargs or arguments.args)[0]
        if first.arg in ("self", "cls"):
            (arguments.posonlyargs or arguments.args).pop(0)
    result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    inside = [_spaced(part) for part in _split(ast.unparse(arguments)) if part]
    line = f"{name}({', '.join(inside)}){result}"
    if len(line) <= 100:
        return line
    return f"{name}(\n" + "".join(f"    {part},\n" for part in inside) + f"){result}"


def _split(text: str) -> list[str]:
    """At the commas that are not inside brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def _spaced(parameter: str) -> str:
    """A default after an annotation has spaces around its sign."""
    name, sign, kind = parameter.partition(": ")
    return name + sign + re.sub(r"(?<![=!<>])=(?!=)", " = ", kind, count=1) if sign else parameter


def _docstring(node: ast.ClassDef | ast.FunctionDef) -> str:
    """With its examples as code."""
    text = ast.get_docstring(node) or ""
    return re.sub(r"^(>>> .*(?:\n.+)*)", r"```pycon\n\1\n```", text, flags=re.MULTILINE) + "\n"


def _is_overload(node: ast.ClassDef | ast.FunctionDef) -> bool:
    return any(ast.unparse(one).endswith("overload") for one in node.decorator_list)
