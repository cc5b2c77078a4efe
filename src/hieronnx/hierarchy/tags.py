"""Tags: building them from a call tree (which classes have one, the suffix, `@n`), and reading them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from hieronnx.errors import InputError, check_known
from hieronnx.hierarchy.records import Call, CallId

_DEFAULT_TORCH_NN = frozenset({"LayerNorm", "Embedding"})
_SEGMENT = re.compile(r"(?P<name>[^./@]+)(?:\.(?P<suffix>[^/@]+))?(?:@(?P<index>[1-9]\d*))?")


@dataclass(frozen=True, slots=True)
class CallSite:
    """A call before it has a tag: which module, under which call, through which attribute path."""

    id: CallId
    parent: CallId | None
    via: str


@dataclass(frozen=True, slots=True)
class TagPolicy:
    """Which modules get a tag of their own: all classes from outside torch.nn, and a set of those inside."""

    torch_nn: frozenset[str] | None = _DEFAULT_TORCH_NN
    """Class names of torch.nn that belong; None for all of them."""

    @classmethod
    def parse(cls, given: str | Iterable[str], known: Iterable[str] | None = None) -> TagPolicy:
        """Read the `--torch-nn` option: default, all, none, or class names, as a list or with commas between.

        Raises:
            InputError: If a name cannot be that of a class, or is not a known one.
        """
        special = {"default": _DEFAULT_TORCH_NN, "all": None, "none": frozenset[str]()}
        if isinstance(given, str) and given in special:
            return cls(special[given])
        listed: Iterable[object] = given.split(",") if isinstance(given, str) else given
        names = []
        for name in listed if isinstance(listed, Iterable) else [listed]:
            if not isinstance(name, str) or not name.strip().isidentifier():
                bad = repr(name.strip() if isinstance(name, str) else name)
                choices = "default, all, none, or names such as Linear,Conv2d"
                raise InputError(f"--torch-nn: {bad} is not a class name; use {choices}")
            names.append(name.strip())
        if known is not None:
            classes = list(known)
            for name in names:
                check_known("class in torch.nn", name, classes)
        return cls(frozenset(names))

    def belongs(self, qualified_class: str) -> bool:
        """Say whether modules of this class are part of the tag hierarchy."""
        package, _, name = qualified_class.rpartition(".")
        inside = package == "torch.nn" or package.startswith("torch.nn.")
        return not inside or self.torch_nn is None or name in self.torch_nn


@dataclass(frozen=True, slots=True)
class Segment:
    """One step of a tag: `Class`, `Class.suffix`, either with `@n`."""

    class_name: str
    suffix: str
    index: int


def escape(text: str) -> str:
    """Escape what has a meaning in tags."""
    return text.replace("~", "~0").replace("/", "~1").replace("@", "~2")


def unescape(text: str) -> str:
    """Undo `escape`."""
    return text.replace("~2", "@").replace("~1", "/").replace("~0", "~")


def parse_tag(tag: str) -> tuple[Segment, ...]:
    """Split a tag into its segments.

    Raises:
        InputError: If the text is not a tag.
    """
    matches = [_SEGMENT.fullmatch(part) for part in tag[1:].split("/")] if tag.startswith("/") else [None]
    segments = []
    for match in matches:
        if match is None:
            raise InputError(f"{tag!r} is not a tag; a tag looks like /Model/Encoder/Layer.0 or /Model/Cell@1")
        segments.append(Segment(unescape(match["name"]), unescape(match["suffix"] or ""), int(match["index"] or 0)))
    return tuple(segments)


def label_call(call: Call, class_name: str) -> str:
    """Return the last segment of a call's tag; for one without a tag of its own, what it would look like."""
    if call.tagged:
        return call.tag.rpartition("/")[2]
    path, number = call.id
    name = f"{escape(class_name)}.{escape(path.rpartition('.')[2])}"
    return f"{name}@{number}" if number else name


def build_calls(sites: Sequence[CallSite], classes: Mapping[str, str], policy: TagPolicy) -> tuple[Call, ...]:
    """Give every call its tag.

    Args:
        sites: The calls in execution order, each after its parent.
        classes: Qualified class by module path.
        policy: Which modules get a tag of their own.
    """
    tagged_parent = _find_tagged_parents(sites, classes, policy)
    names = _name_siblings(tagged_parent, classes)
    tags: dict[CallId, str] = {}
    seen: dict[str, int] = defaultdict(int)
    for site in sites:
        if site.id in tagged_parent:
            above = tagged_parent[site.id]
            base = (tags[above] if above is not None else "") + "/" + names[site.id]
            tags[site.id] = f"{base}@{seen[base]}" if seen[base] else base
            seen[base] += 1
        else:
            assert site.parent is not None  # the root always has a tag
            tags[site.id] = tags[site.parent]
    return tuple(Call(site.id, site.parent, site.via, tags[site.id], site.id in tagged_parent) for site in sites)


def expect_tags(classes: Mapping[str, str], containers: Collection[str], policy: TagPolicy) -> dict[str, str]:
    """Return the tag of each module's call, if each were called once, by the nearest module above it that can be.

    Args:
        classes: Qualified class by module path, the root's among them.
        containers: The modules that cannot be called; they have no tag.
        policy: Which modules get a tag of their own.
    """
    sites: dict[str, CallSite] = {}
    for path in sorted(classes, key=lambda path: (path != "", path.split("."))):  # each after those above it
        above = path.rpartition(".")[0]
        while above and above not in sites:
            above = above.rpartition(".")[0]
        if path not in containers:
            sites[path] = CallSite(CallId(path, 0), CallId(above, 0) if path else None, path)
    return {call.id.module: call.tag for call in build_calls(list(sites.values()), classes, policy)}


def _find_tagged_parents(
    sites: Iterable[CallSite], classes: Mapping[str, str], policy: TagPolicy
) -> dict[CallId, CallId | None]:
    """Map each tagged call to the nearest tagged call above it."""
    nearest: dict[CallId, CallId] = {}
    tagged: dict[CallId, CallId | None] = {}
    for site in sites:
        above = nearest[site.parent] if site.parent is not None else None
        if above is None or policy.belongs(classes[site.id.module]):
            tagged[site.id] = above
            nearest[site.id] = site.id
        else:
            nearest[site.id] = above
    return tagged


def _name_siblings(tagged_parent: Mapping[CallId, CallId | None], classes: Mapping[str, str]) -> dict[CallId, str]:
    """Name each tagged call among its siblings, call indices aside."""
    families: dict[tuple[CallId | None, str], list[CallId]] = defaultdict(list)
    for call, above in tagged_parent.items():
        families[above, classes[call.module].rpartition(".")[2]].append(call)
    names = {}
    for (_, class_name), members in families.items():
        tails = _shortest_tails(list(dict.fromkeys(member.module for member in members)))
        for member in members:
            suffix = ".".join(escape(part) for part in tails[member.module])
            names[member] = f"{escape(class_name)}.{suffix}" if suffix else escape(class_name)
    return names


def _shortest_tails(paths: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the shortest tails of one length that tell the paths apart; none where nothing needs telling."""
    parts = [tuple(path.split(".")) for path in paths]
    if len(parts) == 1 and not parts[0][-1].isdecimal():
        return {paths[0]: ()}
    length = 1
    while len({part[-length:] for part in parts}) < len(parts):
        length += 1
    return {path: part[-length:] for path, part in zip(paths, parts, strict=True)}
