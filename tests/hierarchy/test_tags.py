"""The rules of tags, one by one: which calls have a tag of their own, how it is made, and that it names one call."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hieronnx.errors import InputError
from hieronnx.hierarchy.records import ROOT, Call, CallId
from hieronnx.hierarchy.tags import CallSite, Segment, TagPolicy, build_calls, escape, parse_tag, unescape
from hieronnx.hierarchy.targets import match_calls
from support.exports import exported

LAYER_NORM = "torch.nn.modules.normalization.LayerNorm"
EMBEDDING = "torch.nn.modules.sparse.Embedding"
LINEAR = "torch.nn.modules.linear.Linear"
SEQUENTIAL = "torch.nn.modules.container.Sequential"


def build(
    *paths: str, classes: Mapping[str, str] | None = None, torch_nn: str = "default", parents: Mapping[str, str] = {}
) -> dict[str, Call]:
    """Return the calls of modules that run in this order, each in the latest call of the module that has it.

    A path may say its own number, `a@1`; `parents` says so for the caller. Classes default to `zoo.Cell`.
    """
    named = {"": "zoo.Net", **(classes or {})}
    sites = [CallSite(ROOT, None, "")]
    for path in paths:
        parent = parents.get(path, read_call(path).module.rpartition(".")[0])
        sites.append(CallSite(read_call(path), read_call(parent), read_call(path).module))
    known = {site.id.module: named.get(site.id.module, "zoo.Cell") for site in sites}
    return {str(call.id): call for call in build_calls(sites, known, TagPolicy.parse(torch_nn))}


def read_call(text: str) -> CallId:
    module, _, number = text.partition("@")
    return CallId(module, int(number or 0))


def tags(calls: Mapping[str, Call]) -> dict[str, str]:
    return {name: call.tag for name, call in calls.items()}


# -- the rules ------------------------------------------------------------------------------------------------


def test_the_root_has_the_tag_of_its_class() -> None:
    assert tags(build()) == {"": "/Net"}


@pytest.mark.parametrize("torch_nn", ["default", "none"])
def test_the_root_has_a_tag_also_where_its_class_does_not_belong(torch_nn: str) -> None:
    root = build(classes={"": SEQUENTIAL}, torch_nn=torch_nn)[""]
    assert (root.tag, root.tagged) == ("/Sequential", True)


def test_a_class_that_is_alone_among_its_siblings_has_no_suffix() -> None:
    assert tags(build("stem", "head", classes={"head": "zoo.Head"})) == {
        "": "/Net",
        "stem": "/Net/Cell",
        "head": "/Net/Head",
    }


def test_a_number_is_a_suffix_even_for_a_class_that_is_alone() -> None:
    assert build("cells.0", parents={"cells.0": ""})["cells.0"].tag == "/Net/Cell.0"


def test_siblings_of_one_class_are_told_apart_by_the_last_segment() -> None:
    found = tags(build("left", "right", "head", classes={"head": "zoo.Head"}))
    assert found == {"": "/Net", "left": "/Net/Cell.left", "right": "/Net/Cell.right", "head": "/Net/Head"}


def test_the_name_of_the_class_decides_not_where_it_is_defined() -> None:
    found = tags(build("left", "right", classes={"left": "zoo.Cell", "right": "other.place.Cell"}))
    assert (found["left"], found["right"]) == ("/Net/Cell.left", "/Net/Cell.right")


def test_siblings_with_the_same_last_segment_have_the_shortest_tail_that_differs() -> None:
    paths = ["text.0", "image.0"]
    found = tags(build(*paths, parents=dict.fromkeys(paths, "")))
    assert (found["text.0"], found["image.0"]) == ("/Net/Cell.text.0", "/Net/Cell.image.0")


def test_tails_have_the_same_length_for_all_siblings_of_the_class() -> None:
    paths = ["a.text.0", "a.image.0", "a.image.1", "other"]
    found = tags(build(*paths, classes={"other": "zoo.Other"}, parents=dict.fromkeys(paths, "")))
    assert found == {
        "": "/Net",
        "a.text.0": "/Net/Cell.text.0",
        "a.image.0": "/Net/Cell.image.0",
        "a.image.1": "/Net/Cell.image.1",  # its last segment alone would do
        "other": "/Net/Other",
    }


def test_a_path_that_is_shorter_than_the_tails_is_written_whole() -> None:
    paths = ["x", "a.x", "b.a.x"]
    found = tags(build(*paths, parents=dict.fromkeys(paths, "")))
    assert [found[path] for path in paths] == ["/Net/Cell.x", "/Net/Cell.a.x", "/Net/Cell.b.a.x"]


def test_siblings_are_the_calls_under_one_tagged_parent_whatever_lies_between() -> None:
    classes = {"left": SEQUENTIAL, "right": SEQUENTIAL}
    found = build("left", "left.0", "right", "right.0", classes=classes)
    assert found["left.0"].tag == "/Net/Cell.left.0"
    assert found["right.0"].tag == "/Net/Cell.right.0"


def test_calls_under_different_tagged_parents_are_no_siblings() -> None:
    classes = {"left": "zoo.Left", "right": "zoo.Right"}
    found = build("left", "left.cell", "right", "right.cell", classes=classes)
    assert (found["left.cell"].tag, found["right.cell"].tag) == ("/Net/Left/Cell", "/Net/Right/Cell")


def test_a_module_that_does_not_belong_has_the_tag_of_the_nearest_call_above_that_does() -> None:
    classes = {"block": "zoo.Block", "block.seq": SEQUENTIAL, "block.seq.0": LINEAR, "lone": LINEAR}
    found = build("block", "block.seq", "block.seq.0", "lone", classes=classes)
    assert {name: (call.tag, call.tagged) for name, call in found.items()} == {
        "": ("/Net", True),
        "block": ("/Net/Block", True),
        "block.seq": ("/Net/Block", False),
        "block.seq.0": ("/Net/Block", False),
        "lone": ("/Net", False),
    }


def test_a_module_that_does_not_belong_is_no_sibling() -> None:
    classes = {"norm": LAYER_NORM, "other": "torch.nn.modules.other.LayerNorm", "lin": LINEAR}
    assert build("norm", "lin", classes=classes)["norm"].tag == "/Net/LayerNorm"
    assert build("norm", "other", classes=classes)["norm"].tag == "/Net/LayerNorm.norm"


@pytest.mark.parametrize(
    ("option", "belonging"),
    [
        ("default", {LAYER_NORM, EMBEDDING}),
        ("all", {LAYER_NORM, EMBEDDING, LINEAR, SEQUENTIAL}),
        ("none", set()),
        ("Linear", {LINEAR}),
        ("Linear, LayerNorm", {LINEAR, LAYER_NORM}),
    ],
)
def test_the_option_says_which_classes_of_torch_nn_belong(option: str, belonging: set[str]) -> None:
    policy = TagPolicy.parse(option)
    assert {name for name in (LAYER_NORM, EMBEDDING, LINEAR, SEQUENTIAL) if policy.belongs(name)} == belonging


@pytest.mark.parametrize("option", ["default", "all", "none", "Linear"])
@pytest.mark.parametrize(
    "qualified", ["zoo.Cell", "zoo.Linear", "torch.nnlike.Cell", "torchvision.ops.Conv", "__main__.f.<locals>.Net"]
)
def test_classes_from_outside_torch_nn_always_belong(option: str, qualified: str) -> None:
    assert TagPolicy.parse(option).belongs(qualified)


@pytest.mark.parametrize("option", ["", "Linear,", "Linear;Conv", "torch.nn.Linear", "Lin ear"])
def test_what_is_no_class_name_is_refused_as_an_option(option: str) -> None:
    with pytest.raises(InputError, match=r"^--torch-nn: .* is not a class name; use default, all, none, or names"):
        TagPolicy.parse(option)


def test_a_later_call_with_the_same_tag_is_numbered() -> None:
    found = tags(build("cell", "cell@1", "cell@2"))
    assert [found[name] for name in ("cell", "cell@1", "cell@2")] == ["/Net/Cell", "/Net/Cell@1", "/Net/Cell@2"]


def test_repeated_calls_of_one_module_are_one_sibling() -> None:
    found = tags(build("left", "right", "left@1"))
    assert [found[name] for name in ("left", "right", "left@1")] == [
        "/Net/Cell.left",
        "/Net/Cell.right",
        "/Net/Cell.left@1",
    ]


def test_the_number_counts_the_calls_with_the_tag_not_those_of_the_module() -> None:
    classes = {"a": "zoo.A", "b": "zoo.B", "a.cell": "zoo.Cell"}
    found = build("a", "a.cell", "b", "a.cell@1", "a.cell@2", classes=classes, parents={"a.cell@1": "b"})
    assert found["a.cell"].tag == "/Net/A/Cell"
    assert found["a.cell@1"].tag == "/Net/B/Cell"  # the first of this tag, though the module's second call
    assert found["a.cell@2"].tag == "/Net/A/Cell@1"


def test_children_of_a_repeated_parent_extend_the_tag_of_their_own_parent() -> None:
    classes = {"block": "zoo.Block"}
    parents = {"block.cell@1": "block@1"}
    found = tags(build("block", "block.cell", "block@1", "block.cell@1", classes=classes, parents=parents))
    assert found["block.cell"] == "/Net/Block/Cell"
    assert found["block.cell@1"] == "/Net/Block@1/Cell"


def test_a_filtered_module_called_anew_does_not_number_its_children_apart() -> None:
    classes = {"seq": SEQUENTIAL}
    found = tags(build("seq", "seq.x", "seq@1", "seq.x@1", classes=classes, parents={"seq.x@1": "seq@1"}))
    assert (found["seq.x"], found["seq.x@1"]) == ("/Net/Cell", "/Net/Cell@1")
    assert (found["seq"], found["seq@1"]) == ("/Net", "/Net")


def test_slash_at_and_tilde_in_a_name_are_escaped() -> None:
    found = build_calls(
        [CallSite(ROOT, None, ""), *(CallSite(CallId(path, 0), ROOT, path) for path in ("d.a/b", "d.x@1", "d.~"))],
        {"": "zoo.Net", "d.a/b": "zoo.Cell", "d.x@1": "zoo.Cell", "d.~": "zoo.Cell"},
        TagPolicy(),
    )
    assert [call.tag for call in found[1:]] == ["/Net/Cell.a~1b", "/Net/Cell.x~21", "/Net/Cell.~0"]


@pytest.mark.parametrize(("text", "escaped"), [("~1", "~01"), ("~/@", "~0~1~2"), ("plain.0", "plain.0"), ("", "")])
def test_escapes_as_written_in_the_design(text: str, escaped: str) -> None:
    assert escape(text) == escaped
    assert unescape(escaped) == text


def test_a_tag_is_read_segment_by_segment() -> None:
    assert parse_tag("/Net/Cell.text.0@12/Odd.a~1b@1/Plain@1") == (
        Segment("Net", "", 0),
        Segment("Cell", "text.0", 12),
        Segment("Odd", "a/b", 1),
        Segment("Plain", "", 1),
    )


@pytest.mark.parametrize(
    "text", ["", "Net", "/", "/Net/", "//Net", "/Net@", "/Net@0", "/Net@x", "/.x", "/Net.", "/N@1@2"]
)
def test_what_is_no_tag_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"is not a tag; a tag looks like /Model/"):
        parse_tag(text)


def test_a_pattern_matches_any_of_the_names_by_case() -> None:
    call = Call(CallId("encoder.layer.1", 0), ROOT, "encoder.layer.1", "/Net/Layer.1", True)
    assert match_calls([call], "*Layer.?") == match_calls([call], "*layer.1") == {call.id}
    assert not match_calls([call], "*Layer.1.*")
    assert not match_calls([call], "*LAYER.1")


# -- what holds for every call tree -----------------------------------------------------------------------------

NAMES = st.text("ab01/@~", min_size=1, max_size=3)
CLASSES = st.sampled_from(["zoo.A", "zoo.B", "other.A", LAYER_NORM, EMBEDDING, LINEAR, SEQUENTIAL])
OPTIONS = st.sampled_from(["default", "all", "none", "Linear"])


@st.composite
def call_trees(draw: st.DrawFn) -> tuple[list[CallSite], dict[str, str]]:
    """Draw modules in modules, and calls: any module from any call, again and again."""
    paths = [""]
    for _ in range(draw(st.integers(0, 8))):
        parent, name = draw(st.sampled_from(paths)), draw(NAMES)
        paths.append(f"{parent}.{name}" if parent else name)
    paths = list(dict.fromkeys(paths))
    classes = {path: draw(CLASSES) for path in paths}
    sites, counts, stack = [CallSite(ROOT, None, "")], dict.fromkeys(paths, 0), [ROOT]
    for _ in range(draw(st.integers(0, 14)) if len(paths) > 1 else 0):
        del stack[draw(st.integers(1, len(stack))) :]
        path = draw(st.sampled_from(paths[1:]))
        call = CallId(path, counts[path])
        counts[path] += 1
        sites.append(CallSite(call, stack[-1], path))
        stack.append(call)
    return sites, classes


@given(call_trees(), OPTIONS)
def test_one_tag_names_one_tagged_call(tree: tuple[list[CallSite], dict[str, str]], option: str) -> None:
    calls = build_calls(*tree, TagPolicy.parse(option))
    tagged = [call.tag for call in calls if call.tagged]
    assert len(set(tagged)) == len(tagged)
    assert [call.id for call in calls] == [site.id for site in tree[0]]


@given(call_trees(), OPTIONS)
def test_exactly_the_calls_that_belong_are_tagged(tree: tuple[list[CallSite], dict[str, str]], option: str) -> None:
    policy = TagPolicy.parse(option)
    for call in build_calls(*tree, policy):
        assert call.tagged == (call.parent is None or policy.belongs(tree[1][call.id.module]))


@given(call_trees(), OPTIONS)
def test_a_tag_extends_that_of_the_tagged_parent_by_one_segment(
    tree: tuple[list[CallSite], dict[str, str]], option: str
) -> None:
    calls = build_calls(*tree, TagPolicy.parse(option))
    by_id = {call.id: call for call in calls}
    for call in calls[1:]:
        assert call.parent is not None
        above = by_id[call.parent].tag  # its own, or that of the nearest call above that has one
        if call.tagged:
            assert call.tag.rpartition("/")[0] == above
        else:
            assert call.tag == above


@given(call_trees(), OPTIONS)
def test_a_tag_reads_back_as_the_classes_and_tails_on_the_way_down(
    tree: tuple[list[CallSite], dict[str, str]], option: str
) -> None:
    calls = build_calls(*tree, TagPolicy.parse(option))
    by_id = {call.id: call for call in calls}
    for call in calls:
        if not call.tagged:
            continue
        segments = parse_tag(call.tag)
        assert write_tag(segments) == call.tag
        assert segments[-1].class_name == tree[1][call.id.module].rpartition(".")[2]
        assert f".{call.id.module}".endswith(f".{segments[-1].suffix}" if segments[-1].suffix else "")
        if call.parent is not None:
            assert segments[:-1] == parse_tag(by_id[call.parent].tag)


def write_tag(segments: tuple[Segment, ...]) -> str:
    written = ""
    for segment in segments:
        suffix = f".{escape(segment.suffix)}" if segment.suffix else ""
        written += f"/{escape(segment.class_name)}{suffix}" + (f"@{segment.index}" if segment.index else "")
    return written


@given(call_trees(), OPTIONS)
def test_siblings_of_a_class_have_suffixes_of_one_length_and_no_longer_than_needed(
    tree: tuple[list[CallSite], dict[str, str]], option: str
) -> None:
    calls = [call for call in build_calls(*tree, TagPolicy.parse(option)) if call.tagged]
    families: dict[tuple[str, str], dict[str, tuple[str, ...]]] = {}
    for call in calls:
        segment = parse_tag(call.tag)[-1]
        family = families.setdefault((call.tag.rpartition("/")[0], segment.class_name), {})
        family[call.id.module] = tuple(segment.suffix.split(".")) if segment.suffix else ()
    for members in families.values():
        parts = {module: tuple(module.split(".")) for module in members}
        length = max(len(suffix) for suffix in members.values())
        assert members == {module: parts[module][-length:] if length else () for module in members}
        if length > 1:
            assert len({part[-(length - 1) :] for part in parts.values()}) < len(members)
        elif length == 1:
            assert len(members) > 1 or next(iter(parts.values()))[-1].isdecimal()
        else:
            assert len(members) == 1


@given(st.text())
def test_escape_is_undone_by_unescape_and_leaves_nothing_that_has_a_meaning(text: str) -> None:
    assert unescape(escape(text)) == text
    assert not set(escape(text)) & set("/@")


@given(st.text("~012/@"), st.text("~012/@"))
def test_different_names_stay_different_when_escaped(a: str, b: str) -> None:
    assert (escape(a) == escape(b)) == (a == b)


# -- the design's example -------------------------------------------------------------------------------------

BERT = {
    "/BertModel": "",
    "/BertModel/BertEmbeddings": "embeddings",
    "/BertModel/BertEmbeddings/Embedding.word_embeddings": "embeddings.word_embeddings",
    "/BertModel/BertEmbeddings/Embedding.token_type_embeddings": "embeddings.token_type_embeddings",
    "/BertModel/BertEmbeddings/Embedding.position_embeddings": "embeddings.position_embeddings",
    "/BertModel/BertEmbeddings/LayerNorm": "embeddings.LayerNorm",
    "/BertModel/BertEncoder": "encoder",
    "/BertModel/BertEncoder/BertLayer.0": "encoder.layer.0",
    "/BertModel/BertEncoder/BertLayer.0/BertAttention": "encoder.layer.0.attention",
    "/BertModel/BertEncoder/BertLayer.0/BertAttention/BertSelfAttention": "encoder.layer.0.attention.self",
    "/BertModel/BertEncoder/BertLayer.0/BertAttention/BertSelfOutput": "encoder.layer.0.attention.output",
    "/BertModel/BertEncoder/BertLayer.0/BertAttention/BertSelfOutput/LayerNorm": (
        "encoder.layer.0.attention.output.LayerNorm"
    ),
    "/BertModel/BertEncoder/BertLayer.0/BertIntermediate": "encoder.layer.0.intermediate",
    "/BertModel/BertEncoder/BertLayer.0/BertIntermediate/GELUActivation": (
        "encoder.layer.0.intermediate.intermediate_act_fn"
    ),
    "/BertModel/BertEncoder/BertLayer.0/BertOutput": "encoder.layer.0.output",
    "/BertModel/BertEncoder/BertLayer.0/BertOutput/LayerNorm": "encoder.layer.0.output.LayerNorm",
    "/BertModel/BertEncoder/BertLayer.1": "encoder.layer.1",
    "/BertModel/BertEncoder/BertLayer.1/BertAttention": "encoder.layer.1.attention",
    "/BertModel/BertEncoder/BertLayer.1/BertAttention/BertSelfAttention": "encoder.layer.1.attention.self",
    "/BertModel/BertEncoder/BertLayer.1/BertAttention/BertSelfOutput": "encoder.layer.1.attention.output",
    "/BertModel/BertEncoder/BertLayer.1/BertAttention/BertSelfOutput/LayerNorm": (
        "encoder.layer.1.attention.output.LayerNorm"
    ),
    "/BertModel/BertEncoder/BertLayer.1/BertIntermediate": "encoder.layer.1.intermediate",
    "/BertModel/BertEncoder/BertLayer.1/BertIntermediate/GELUActivation": (
        "encoder.layer.1.intermediate.intermediate_act_fn"
    ),
    "/BertModel/BertEncoder/BertLayer.1/BertOutput": "encoder.layer.1.output",
    "/BertModel/BertEncoder/BertLayer.1/BertOutput/LayerNorm": "encoder.layer.1.output.LayerNorm",
    "/BertModel/BertPooler": "pooler",
}


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_bert_has_exactly_the_tags_of_the_design(exporter: str) -> None:
    hierarchy = exported("bert", exporter).hierarchy
    assert dict(hierarchy.tags) == BERT
    assert list(hierarchy.tags) == list(BERT)  # in the order of execution


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_the_projections_of_berts_attention_carry_the_tag_of_the_attention(exporter: str) -> None:
    hierarchy = exported("bert", exporter).hierarchy
    attention = "encoder.layer.1.attention.self"
    projections = {f"{attention}.{name}" for name in ("query", "key", "value")}
    found = {n.scope.module: hierarchy.tag_of(n.scope) for n in hierarchy.nodes if n.scope.module in projections}
    assert found == dict.fromkeys(projections, "/BertModel/BertEncoder/BertLayer.1/BertAttention/BertSelfAttention")
