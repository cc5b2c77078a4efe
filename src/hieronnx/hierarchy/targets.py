"""The selection language of all commands: calls and nodes by the names that people give them.

A term is a module path, a tag, `path@n`, or a glob over these; `class:X`, `op:X` or `category:X`, globs too. Terms are
put together by `not`, `and`, `or` and brackets. What it selects depends on what is asked for::

                          calls (tree, extract, split, replace)         nodes (--exclude, select, analyze, nodes_in)
    encoder.layer.0       that call, of several the first or all        the nodes of these calls and all below
    encoder.layer.0.*     the calls below it                            the same: the whole of the module
    class:Block           the calls of modules of that class            their nodes
    op:MatMul             the calls that have such a node themselves    the nodes of that operator
    not head              the calls that have nothing to do with it     the other nodes

What works on one call (extract) takes a module's path for its first call; what selects nodes for all its calls. A term
that names nothing is an InputError.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TypeAlias

from hieronnx.errors import InputError, check_known
from hieronnx.hierarchy.categories import CATEGORIES, category_of
from hieronnx.hierarchy.records import Call, CallId, Module, Node

_WORD = re.compile(r"\(|\)|[^\s()]+")
_KINDS = ("class", "op", "category")
_OPERATORS = frozenset({"and", "or", "not", "(", ")"})


# -- reading ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Term:
    """One name or glob; the kind is empty for a call's name, else what stands before the colon."""

    text: str
    kind: str
    pattern: str


@dataclass(frozen=True, slots=True)
class Combined:
    """Selections put together: `and`, `or`, or `not` with one of them."""

    operator: str
    parts: tuple[Selector, ...]


Selector: TypeAlias = Term | Combined


def parse_selector(text: str) -> Selector:
    """Read a selection.

    Raises:
        InputError: If a word is missing or a bracket is open.
    """
    words = _WORD.findall(text)
    if _OPERATORS.isdisjoint(words) or not {"and", "or", "not"}.intersection(words):
        return _make_term(text.strip())  # brackets alone are part of a name
    return _Reader(text, words).read()


def _make_term(text: str) -> Term:
    kind, colon, pattern = text.partition(":")
    return Term(text, kind, pattern.strip()) if colon and kind in _KINDS else Term(text, "", text)


class _Reader:
    """Reads words from left to right: `or` binds least, then `and`, then `not`."""

    def __init__(self, text: str, words: Sequence[str]) -> None:
        self._text, self._words, self._next = text, words, 0

    def read(self) -> Selector:
        selector = self._read_several("or")
        if self._peek():
            raise self._complain(f"'{self._peek()}' has no beginning")
        return selector

    def _read_several(self, operator: str) -> Selector:
        def read_part() -> Selector:
            return self._read_several("and") if operator == "or" else self._read_one()

        parts = [read_part()]
        while self._peek() == operator:
            self._next += 1
            parts.append(read_part())
        return parts[0] if len(parts) == 1 else Combined(operator, tuple(parts))

    def _read_one(self) -> Selector:
        if self._peek() == "not":
            self._next += 1
            return Combined("not", (self._read_one(),))
        if self._peek() == "(":
            self._next += 1
            inner = self._read_several("or")
            if self._peek() != ")":
                raise self._complain("a bracket is open")
            self._next += 1
            return inner
        begin = self._next
        while self._peek() and self._peek() not in _OPERATORS:
            self._next += 1
        if begin == self._next:
            raise self._complain(f"a module, tag or pattern is missing before '{self._peek() or 'the end'}'")
        return _make_term(" ".join(self._words[begin : self._next]))

    def _peek(self) -> str:
        return self._words[self._next] if self._next < len(self._words) else ""

    def _complain(self, reason: str) -> InputError:
        return InputError(f"'{self._text}' is no selection: {reason}; write it like 'class:Block and not (a or b.*)'")


# -- what is selected -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Targets:
    """What a selection chooses from: the calls of a model in order, its modules and its nodes."""

    calls: Sequence[Call]
    modules: Mapping[str, Module]
    nodes: Sequence[Node]

    def find_calls(self, text: str) -> list[Call]:
        """Find calls, each a thing of its own: of those inside one another the outermost; a path is its first call."""
        if exact := _find_exact(self.calls, self.modules, text):
            return [exact]
        outermost = find_outermost(self.calls, self._choose_calls(text))
        return [call for call in self.calls if call.id in outermost]

    def find_range(self, text: str) -> list[Call]:
        """Find calls as `find_calls` does, or with `a..b` all from a call to a later one that are inside neither."""
        first, dots, last = text.partition("..")
        if not dots:
            return self.find_calls(text)
        begin, end = self._find_end(first.strip(), 0, text), self._find_end(last.strip(), -1, text)
        order = {call.id: position for position, call in enumerate(self.calls)}
        around = self._add_above([end.id]) - {end.id}
        inside = [c for c in self.calls if order[begin.id] <= order[c.id] <= order[end.id] and c.id not in around]
        if not inside:
            raise InputError(f"'{text}' is no range: '{last}' runs before '{first}', or is around it")
        outermost = find_outermost(self.calls, {call.id for call in inside})
        return [call for call in inside if call.id in outermost]

    def _find_end(self, text: str, position: int, whole: str) -> Call:
        if not text:
            raise InputError(f"'{whole}' is no range: write the first and the last call, as in 'layers.0..layers.3'")
        return self.find_calls(text)[position]

    def select_calls(self, text: str) -> set[CallId]:
        """Select calls; a module's path stands for all its calls. A term alone gives what it matches, none below."""
        return match_calls(self.calls, text) or self._choose_calls(text)

    def select_nodes(self, text: str, *, shared: bool = False) -> list[Node]:
        """Select nodes by their scopes; with `shared` by their origins, too: those that work for several calls."""
        selector = parse_selector(text)
        chooses = self.make_filter(selector, shared=shared)
        selected = [node for node in self.nodes if chooses(node)]
        if not selected and isinstance(selector, Combined):  # a call alone may have no nodes, and a category none
            raise InputError(f"'{text}' selects no node of the model; 'hieronnx tree --nodes' lists them")
        return selected

    def _choose_calls(self, text: str) -> set[CallId]:
        selector = parse_selector(text)
        if isinstance(selector, Term):
            return self._match(selector)
        chosen = self._combine_calls(selector)
        if not chosen:
            raise InputError(f"'{text}' selects no module call; 'hieronnx tree --all' lists all calls")
        return chosen

    def _combine_calls(self, selector: Selector) -> set[CallId]:
        """Return the calls that a selection has, with all below them."""
        if isinstance(selector, Term):
            return self._add_below(self._match(selector))
        parts = [self._combine_calls(part) for part in selector.parts]
        if selector.operator == "and":
            return set.intersection(*parts)
        if selector.operator == "or":
            return set.union(*parts)
        touched = parts[0] | self._add_above(parts[0])
        return {call.id for call in self.calls} - touched

    def make_filter(self, selector: Selector, *, shared: bool) -> Callable[[Node], bool]:
        """Return what says whether a node is selected; with `shared` by its origins, too."""
        if isinstance(selector, Combined):
            parts = [self.make_filter(part, shared=shared) for part in selector.parts]
            if selector.operator == "not":
                return lambda node: not parts[0](node)
            join = all if selector.operator == "and" else any
            return lambda node: join(part(node) for part in parts)
        if selector.kind in ("op", "category"):
            chosen = {node.key for node in self._match_nodes(selector)}
            return lambda node: node.key in chosen
        inside = self._add_below(self._match_whole(selector))
        if shared:
            return lambda node: node.scope in inside or not inside.isdisjoint(node.origins)
        return lambda node: node.scope in inside

    def _match(self, term: Term) -> set[CallId]:
        """Return the calls that a term names."""
        if term.kind == "class":
            return self._match_class(term)
        if term.kind:
            return {node.scope for node in self._match_nodes(term)}
        if matched := match_calls(self.calls, term.pattern):
            return matched
        exact = _find_exact(self.calls, self.modules, term.pattern)
        if exact is None:
            raise InputError(f"no module call '{term.text}'; {_suggest(self.calls, self.modules, term.pattern)}")
        return {exact.id}

    def _match_whole(self, term: Term) -> set[CallId]:
        """Return the calls that a term stands for where nodes are asked for: all that is in a module is the module."""
        whole = term.pattern[:-2] if not term.kind and term.pattern.endswith((".*", "/*")) else ""
        outer = match_calls(self.calls, whole) if whole else set()
        return outer | (match_calls(self.calls, term.pattern) if outer else self._match(term))

    def _match_class(self, term: Term) -> set[CallId]:
        classes = {path: (module.class_name, module.qualified_class) for path, module in self.modules.items()}
        matched = {c.id for c in self.calls if any(fnmatchcase(n, term.pattern) for n in classes[c.id.module])}
        if not matched:
            check_known("class", term.pattern, dict.fromkeys(classes[c.id.module][0] for c in self.calls), "there are")
        return matched

    def _match_nodes(self, term: Term) -> list[Node]:
        if term.kind == "category":
            check_known("category", term.pattern, CATEGORIES)
            return [node for node in self.nodes if category_of(node.op_type, node.domain) == term.pattern]
        names = {node.key: (node.op_type, f"{node.domain}::{node.op_type}") for node in self.nodes}
        matched = [node for node in self.nodes if any(fnmatchcase(name, term.pattern) for name in names[node.key])]
        if not matched:
            check_known("operator", term.pattern, sorted({node.op_type for node in self.nodes}), "the model has")
        return matched

    def _add_below(self, calls: Collection[CallId]) -> set[CallId]:
        inside = set[CallId | None]()
        for call in self.calls:  # each after the one above it
            if call.id in calls or call.parent in inside:
                inside.add(call.id)
        return {call for call in inside if call is not None}

    def _add_above(self, calls: Collection[CallId]) -> set[CallId]:
        above = set(calls)
        for call in reversed(self.calls):
            if call.id in above and call.parent is not None:
                above.add(call.parent)
        return above


# -- names ------------------------------------------------------------------------------------------------


def match_calls(calls: Sequence[Call], pattern: str) -> set[CallId]:
    """Return the calls whose path, path@n, attribute path or own tag a glob matches."""
    return {call.id for call in calls if any(fnmatchcase(name, pattern) for name in _names(call))}


def find_outermost(calls: Iterable[Call], matched: Collection[CallId]) -> set[CallId]:
    """Return the matched calls that lie below no other."""
    inside: set[CallId | None] = set()
    outermost: set[CallId] = set()
    for call in calls:  # each after the one above it
        if call.parent in inside or call.id in matched:
            inside.add(call.id)
            if call.parent not in inside:
                outermost.add(call.id)
    return outermost


def _names(call: Call) -> tuple[str, ...]:
    return (str(call.id), call.id.module, call.via, *((call.tag,) if call.tagged else ()))


def _find_exact(calls: Sequence[Call], modules: Mapping[str, Module], target: str) -> Call | None:
    for position in range(3):  # a call's own name before its module's, and that before the names of others
        for call in calls:
            if _names(call)[position] == target:
                return call
    if numbered := _find_numbered(calls, target):
        return numbered
    tagged = next((call for call in calls if call.tagged and call.tag == target), None)
    if tagged is None and target in modules:
        below = any(call.via.startswith(f"{target}.") for call in calls)
        hint = f"; '{target}.*' matches the calls below it" if below else ", so the file has no nodes of it"
        raise InputError(f"module '{target}' ({modules[target].class_name}) is never called itself{hint}")
    return tagged


def _find_numbered(calls: Sequence[Call], target: str) -> Call | None:
    """Find what `path@n` means where that is no call's own name: the first call, or one that is not there."""
    path, at, number = target.rpartition("@")
    runs = [call for call in calls if call.id.module == path] if at else []
    if not runs or not (number.isascii() and number.isdecimal()):
        return None
    if int(number) == 0:
        return runs[0]
    name = f"'{path}'" if path else "the root"
    last = f"has {len(runs)} calls, the last is '{runs[-1].id}'" if len(runs) > 1 else "has one call; name it so"
    raise InputError(f"no call '{target}': {name} {last}")


def _suggest(calls: Sequence[Call], modules: Mapping[str, Module], target: str) -> str:
    """Suggest what may have been meant: a wider pattern, or names that look alike."""
    wider = f"*{target.strip('*')}*"
    patterns = [wider] if wider != target and match_calls(calls, wider) else []
    names = dict.fromkeys(name for call in calls for name in _names(call) if name)
    near = difflib.get_close_matches(target, [*names, *(m for m in modules if m not in names)], 3, 0.5)
    near = [*patterns, *near][:3]
    return f"did you mean {' or '.join(map(repr, near))}?" if near else "'hieronnx tree --all' lists all calls"
