"""The page in a real browser: what is on the screen after each thing that a reader does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import onnx
import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

import hieronnx
from support.annotated import annotated
from support.browser import Page
from support.dynamic import export_dynamic
from support.exports import exported

ATTENTION = "/BertModel/BertEncoder/BertLayer.1/BertAttention/BertSelfAttention"


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("view") / "bert.html"
    hieronnx.view(exported("bert", "torchscript").result.path, output=path)
    return path


@pytest.fixture
def page(browser: Page, bert: Path) -> Iterator[Page]:
    """The page of a BERT, opened; whatever is done to it, it asks nobody for anything and complains of nothing."""
    browser.open(bert)
    yield browser
    assert browser.messages() == []
    assert browser.requests() == []


# -- the tree -------------------------------------------------------------------------------------------------------


def test_the_tree_has_the_calls_with_their_counts(page: Page) -> None:
    hierarchy = exported("bert", "torchscript").hierarchy
    root = page.row("(root)")
    assert root.find_element(By.CSS_SELECTOR, "b").text == "BertModel"
    assert root.find_elements(By.CSS_SELECTOR, ".num")[0].text == str(len(hierarchy.nodes))
    parameters = hierarchy.modules["pooler"].parameter_count
    assert page.row("pooler").find_elements(By.CSS_SELECTOR, ".num")[1].text == f"{parameters / 1000:.2f}k"


def test_multiply_adds_of_dynamic_axes_are_marked_and_their_formula_is_shown(browser: Page, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    export_dynamic("bert", "dynamo", path)
    cell = browser.show(tmp_path, onnx.load(path)).row("pooler").find_elements(By.CSS_SELECTOR, ".num")[2]
    assert cell.text.endswith("×…")
    assert re.fullmatch(r"[\d,]+ × \w+", cell.get_attribute("title"))


def test_rows_expand_and_fold_with_the_mouse(page: Page) -> None:
    shown = page.texts(".tree .row")
    page.click(page.row("encoder.layer.0").find_element(By.CSS_SELECTOR, ".twist"))
    assert len(page.texts(".tree .row")) == len(shown) + 3  # attention, intermediate, output
    page.click(page.row("encoder.layer.0").find_element(By.CSS_SELECTOR, ".twist"))
    assert page.texts(".tree .row") == shown


def test_the_keyboard_alone_leads_through_the_tree(page: Page) -> None:
    page.driver.execute_script("document.querySelector('.tree .row').focus()")
    page.type(Keys.ARROW_DOWN, Keys.ARROW_LEFT, Keys.ARROW_DOWN, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ENTER)
    assert page.crumbs == ["BertModel", "BertEncoder", "BertLayer.0"]
    page.type(Keys.HOME, Keys.ENTER)
    assert page.crumbs == ["BertModel"]


# -- search ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [("layer.1.attention.self", "BertSelfAttention"), ("BertPooler", "pooler"), ("Softmax", "Softmax")],
)
def test_search_finds_by_path_class_and_operator(page: Page, text: str, found: str) -> None:
    hits = page.search(text)
    assert hits
    assert found in hits[0]


def test_search_leads_to_a_node_in_its_call(page: Page) -> None:
    hits = page.search("Softmax")
    assert [hit.split()[0] for hit in hits] == ["Softmax", "Softmax", "tensor", "tensor"]  # of each layer
    page.type(Keys.ENTER)
    assert page.crumbs[-1] == "BertSelfAttention"
    assert page.find(".box.chosen").text == "Softmax"
    assert page.details.startswith("Softmax")


def test_search_finds_tensors_and_says_where_nothing_is(page: Page) -> None:
    assert any(hit.startswith("tensor last_hidden_state") for hit in page.search("last_hidden_state"))
    assert page.search("no such thing") == []
    assert page.texts(".hits .count") == ["0 found"]


# -- the picture ----------------------------------------------------------------------------------------------------


def test_clicks_lead_three_levels_down_and_crumbs_back(page: Page) -> None:
    for words in ("BertEncoder", "layer.1", "attention"):
        page.click_box(words, "call")
    assert page.crumbs == ["BertModel", "BertEncoder", "BertLayer.1", "BertAttention"]
    assert page.boxes("call") == ["BertSelfAttention", "BertSelfOutput"]
    page.click(page.driver.find_elements(By.CSS_SELECTOR, ".crumbs a")[1])
    page.wait(lambda: len(page.crumbs) == 2)
    assert page.crumbs == ["BertModel", "BertEncoder"]
    assert page.boxes("call") == ["BertLayer", "BertLayer"]


def test_the_picture_of_the_root_has_what_is_fed_and_returned_at_its_borders(page: Page) -> None:
    file = onnx.load(exported("bert", "torchscript").result.path, load_external_data=False)
    assert set(page.boxes("out")) == {"last_hidden_state", "pooler_output"}
    assert set(page.boxes("in")) <= {value.name for value in file.graph.input}
    assert page.boxes("call") == ["BertEmbeddings", "BertEncoder", "BertPooler"]


def test_borders_have_the_names_of_arguments_and_edges_those_of_tensors(browser: Page, tmp_path: Path) -> None:
    model = annotated(
        "net (float[2,3] x) => (float[2,3] y) { h = Relu(x)  y = Tanh(h) }",
        ["a", "b"],
        {"b": (["hidden=h"], ["=y"])},
    )
    page = browser.show(tmp_path, model, "#/Net/b")
    assert page.boxes("in") == ["hidden"]
    assert page.texts(".label tspan") == ["y", "2×3"]  # what is fed has its name on it, and no shape is known
    page.open(tmp_path / "page.html")
    assert page.edges() == ["x  FLOAT 2×3", "h", "y  FLOAT 2×3"]


def test_parameters_are_folded_away_and_listed_in_the_details(page: Page, bert: Path) -> None:
    page.open(bert, "#call:pooler.dense")
    assert page.boxes("in") != []
    assert not any("pooler.dense" in text for text in page.boxes())
    assert "parameter pooler.dense.bias" in page.details


def test_a_shared_node_is_marked_and_leads_to_the_calls_it_works_for(browser: Page, tmp_path: Path) -> None:
    model = annotated(
        "net (float[2] x) => (float[2] y) { m = Relu(x)  h = Add(x, m)  y = Mul(h, m) }", [("a", "b"), "a", "b"]
    )
    page = browser.show(tmp_path, model, "#/Net/a")
    relu = page.box("Relu", "node")
    assert relu.find_elements(By.CSS_SELECTOR, "circle.shared")
    page.click(relu)
    links = [link for link in page.driver.find_elements(By.CSS_SELECTOR, ".details th a") if link.text == "b"]
    page.click(links[0])
    page.wait(lambda: page.crumbs == ["Net", "b"])
    assert page.box("m", "in").find_elements(By.CSS_SELECTOR, "circle.shared")
    page.click(page.box("m", "in"))
    page.click(page.find(".details td .link"))  # what made it
    assert page.crumbs == ["Net", "a"]
    assert page.find(".box.chosen").text == "Relu"


def test_long_repeats_are_one_box_until_they_are_unfolded(browser: Page, tmp_path: Path) -> None:
    nodes = "  ".join(f"t{i + 1} = Relu(t{i})" for i in range(6))
    model = annotated(f"net (float[2] t0) => (float[2] t6) {{ {nodes} }}", [f"layer{i}" for i in range(6)])
    page = browser.show(tmp_path, model)
    assert page.boxes("fold") == ["6 × Net"]
    assert page.texts(".bar .folds") == ["unfold repeats"]
    page.click(page.box("6 × Net"))
    assert page.boxes("call") == ["Net"] * 6
    assert page.texts(".bar .folds") == ["fold repeats"]
    page.click(page.find(".bar .folds"))
    assert page.boxes("fold") == ["6 × Net"]


def test_colours_follow_what_is_asked_for(page: Page, bert: Path) -> None:
    page.open(bert, f"#{ATTENTION}")
    assert "c3" in page.box("Softmax").get_attribute("class").split()
    assert "activation" in page.texts(".legend span")
    for option in page.driver.find_elements(By.CSS_SELECTOR, "header select option"):
        if option.text == "Evidence":
            option.click()
    assert "captured (high)" in page.texts(".legend span")
    assert "activation" not in page.texts(".legend span")


def test_a_picture_for_documents_shows_in_the_browser(browser: Page, tmp_path: Path) -> None:
    model = annotated("net (float[2] x) => (float[2] y) { h = Relu(x)  y = Tanh(h) }", ["a", "b"])
    hieronnx.view(model, svg="/Net", output=tmp_path / "net.svg")
    browser.driver.get((tmp_path / "net.svg").as_uri())
    assert browser.texts("text.first") == ["x", "Net", "Net", "y"]
    sizes = browser.driver.execute_script("return [...document.querySelectorAll('rect')].map(r => r.getBBox().width)")
    assert min(sizes) > 50


# -- forms of a model side by side ------------------------------------------------------------------------------------


def test_forms_are_shown_in_step_with_what_differs(browser: Page, tmp_path: Path) -> None:
    nodes = "h = Relu(x)  k = Tanh(h)  y = Neg(k)"
    other = "h = Relu(x)  k = Sigmoid(h)  y = Neg(k)"
    before, after = (
        annotated(f"net (float[2] x) => (float[2] y) {{ {body} }}", ["a", "b", "b"]) for body in (nodes, other)
    )
    hieronnx.view(before, against=after, output=tmp_path / "page.html")
    browser.open(tmp_path / "page.html")
    assert browser.driver.find_element(By.CSS_SELECTOR, "header select").get_attribute("value") == "difference"
    assert browser.row("a").find_elements(By.CSS_SELECTOR, ".num")[-1].text == ""
    assert browser.row("b").find_elements(By.CSS_SELECTOR, ".num")[-1].text == "−1 +1"
    assert browser.texts(".picture-box:first-child .legend span") == ["module, the same", "differs inside"]
    browser.click(browser.row("b"))
    first, second = ".picture-box:nth-child(1) .box.node", ".picture-box:nth-child(2) .box.node"
    assert browser.texts(f"{first} text") == ["Tanh", "Neg"]
    assert browser.texts(f"{second} text") == ["Sigmoid", "Neg"]
    assert browser.texts(f"{first}.bad text") == ["Tanh"]
    assert browser.texts(f"{second}.c3 text") == ["Sigmoid"]
    browser.click(browser.box("Sigmoid"))
    assert browser.details.startswith("Sigmoid")
    assert browser.messages() == []


@pytest.mark.parametrize(
    ("bodies", "kinds", "column"),
    [
        (("Relu", "Tanh", "Tanh"), [["removed"], ["added"], ["the same"]], "−1 +1"),
        (("Relu", "Relu", "Tanh"), [["the same"], ["removed"], ["added"]], "−1 +1"),
        (("Relu", "Tanh", "Exp"), [["removed"], ["added"], ["added"]], "−2 +2"),
    ],
)
def test_three_forms_each_with_what_changed_from_one_to_the_next(
    browser: Page, tmp_path: Path, bodies: tuple[str, ...], kinds: list[list[str]], column: str
) -> None:
    models = [annotated(f"net (float[2] x) => (float[2] y) {{ y = {op}(x) }}", ["a"]) for op in bodies]
    browser.show(tmp_path, models[0], "#/Net/a", against=models[1:])
    assert [browser.texts(f".picture-box:nth-child({n}) .legend span") for n in (1, 2, 3)] == kinds
    assert browser.row("a").find_elements(By.CSS_SELECTOR, ".num")[-1].text == column


# -- links and details ----------------------------------------------------------------------------------------------


def test_a_link_opens_its_call_and_what_is_opened_is_in_the_link(page: Page, bert: Path) -> None:
    page.open(bert, f"#{ATTENTION}")
    assert page.crumbs[-1] == "BertSelfAttention"
    assert page.texts("[aria-selected=true] b") == ["BertSelfAttention"]
    page.click(page.row("pooler"))
    assert page.hash == "#/BertModel/BertPooler"
    page.driver.back()
    page.wait(lambda: page.hash == f"#{ATTENTION}")
    assert page.crumbs[-1] == "BertSelfAttention"


def test_a_call_without_a_tag_has_a_link_too(page: Page) -> None:
    page.click(page.row("pooler.dense"))
    assert page.hash == "#call:pooler.dense"
    page.driver.refresh()
    page.wait(lambda: page.crumbs[-1:] == ["Linear.dense"])


def test_the_buttons_copy_the_tag_the_path_and_the_command(page: Page, bert: Path) -> None:
    page.open(bert, "#/BertModel/BertPooler")
    copied = [button.get_attribute("data-copy") for button in page.driver.find_elements(By.CSS_SELECTOR, ".copy")]
    assert copied == ["/BertModel/BertPooler", "pooler", "hieronnx extract model.onnx pooler -o part.onnx"]
    page.click(page.find(".copy"))
    field = page.find("input[type=search]")
    field.send_keys(Keys.CONTROL + "v")
    assert field.get_attribute("value") == "/BertModel/BertPooler"


def test_the_details_of_a_node_have_all_that_is_known(page: Page, bert: Path) -> None:
    page.open(bert, f"#{ATTENTION}")
    page.click_box("Softmax")
    for text in ("ATTRIBUTES", "axis", "-1", "EVIDENCE"):
        assert text.lower() in page.details.lower()
    assert "encoder.layer.1.attention.self" in page.details


# -- names ----------------------------------------------------------------------------------------------------------

NAMES = {
    "markup": "<img src=x onerror=document.title='owned'><script>document.title='owned'</script>",
    "quotes": "\"'`${document.title='owned'}\\",
    "right to left": "\u202egnihtyna\u2066",
    "ten thousand characters": "x" * 10_000,
}


@pytest.mark.parametrize("kind", NAMES)
def test_a_name_is_a_name_whatever_is_in_it(browser: Page, tmp_path: Path, kind: str) -> None:
    model = annotated("net (float[2] x) => (float[2] y) { h = Relu(x)  y = Tanh(h) }", ["a", "b"])
    for node in model.graph.node:
        node.name = NAMES[kind] + node.op_type
        for names in (node.input, node.output):
            names[:] = [NAMES[kind] if name == "h" else name for name in names]
    page = browser.show(tmp_path, model, "#/Net/a")
    page.click(page.box("Relu"))
    shown = page.details
    assert "owned" not in page.driver.title
    assert page.driver.find_elements(By.CSS_SELECTOR, "img, iframe, .details script") == []
    assert not any(mark in page.find("body").text for mark in "\u202e\u2066")
    start = {"right to left": "\\u202egnihtyna\\u2066", "ten thousand characters": "x" * 200}.get(kind, NAMES[kind])
    assert start in shown
    overflow = page.driver.execute_script("return document.documentElement.scrollWidth - innerWidth")
    assert overflow <= 0
    assert page.messages() == []


def test_a_link_may_have_any_characters(browser: Page, tmp_path: Path) -> None:
    model = annotated("net (float[2] x) => (float[2] y) { h = Relu(x)  y = Tanh(h) }", ["a b#%é<", "b"])
    page = browser.show(tmp_path, model, "#/Net/" + quote("a b#%é<"))
    assert page.crumbs[-1] == "a b#%é<" or page.boxes("node") == ["Relu"]
    page.open(tmp_path / "page.html", "#/%E0%A4%A")  # what cannot be read leads to the root
    assert page.crumbs == ["Net"]


# -- what the policy forbids ----------------------------------------------------------------------------------------


def test_the_page_may_load_and_send_nothing(page: Page) -> None:
    refused = page.driver.execute_async_script(
        "const done = arguments[0]; fetch('http://127.0.0.1:9/').then(() => done('sent'), e => done(String(e)));"
    )
    assert "Failed to fetch" in refused
    assert any("Content Security Policy" in message for message in page.messages())
    added = "const s = document.createElement('script'); s.textContent = 'document.title=1'; document.body.append(s);"
    page.driver.execute_script(added)
    assert page.driver.title != "1"
    assert any("Content Security Policy" in message for message in page.messages())


# -- large models ---------------------------------------------------------------------------------------------------


def make_large(layers: int, *, flat: bool = False) -> onnx.ModelProto:
    """Make a model of so many layers of fifty nodes, in five blocks each; or all in one module."""
    nodes, scopes, tensor = [], [], "x"
    for layer in range(layers):
        start = tensor
        for number in range(50):
            made, op = f"t{layer}_{number}", "Relu" if number % 5 else "Add"
            nodes.append(onnx.helper.make_node(op, [tensor] if op == "Relu" else [tensor, start], [made]))
            scopes.append("a" if flat else f"layer{layer}.block{number // 10}")
            tensor = made
    ends = [onnx.helper.make_tensor_value_info(name, 1, [2]) for name in ("x", tensor)]
    graph = onnx.helper.make_graph(nodes, "net", ends[:1], ends[1:])
    opsets = [onnx.helper.make_opsetid("", 21)]
    return annotated(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10), list(scopes))


CLICK = """
const before = performance.now();
arguments[0].dispatchEvent(new MouseEvent('click', {bubbles: true}));
document.body.getBoundingClientRect();
return performance.now() - before;
"""


@pytest.mark.long
@pytest.mark.parametrize("flat", [False, True])
def test_five_thousand_nodes_are_there_in_a_second_and_clicks_answer_at_once(
    browser: Page, tmp_path: Path, flat: bool
) -> None:
    hieronnx.view(make_large(100, flat=flat), output=tmp_path / "page.html")
    assert browser.open(tmp_path / "page.html", "#/Net/a" if flat else "") < 1000
    assert "5,000 nodes" in browser.texts("header .facts")[0]
    rows = browser.driver.find_elements(By.CSS_SELECTOR, ".tree .row")
    assert max(browser.driver.execute_script(CLICK, row) for row in (rows[:5])) < 100
    assert browser.boxes() != []


@pytest.mark.long
def test_fifty_thousand_nodes_open(browser: Page, tmp_path: Path) -> None:
    hieronnx.view(make_large(1000), output=tmp_path / "page.html")
    browser.open(tmp_path / "page.html", "#/Net/layer999/block4")
    assert browser.boxes("node") == ["Add", *["Relu"] * 4] * 2
    assert browser.search("t999_49")[0].startswith("tensor")
