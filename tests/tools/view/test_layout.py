"""The layout: nothing overlaps, edges go down, and what can be straight is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hieronnx.tools.view.layout import Box, Layout, lay_out, order_boxes

BOXES = st.lists(st.builds(Box, st.integers(10, 200), st.integers(10, 60)), min_size=1, max_size=14)


def overlap(layout: Layout, boxes: list[Box], a: int, b: int) -> bool:
    (ax, ay), (bx, by) = layout.corners[a], layout.corners[b]
    apart = ax + boxes[a].width <= bx or bx + boxes[b].width <= ax
    return not apart and not (ay + boxes[a].height <= by or by + boxes[b].height <= ay)


@given(BOXES, st.lists(st.tuples(st.integers(0, 13), st.integers(0, 13)), max_size=30))
def test_boxes_never_overlap_and_edges_join_their_boxes(boxes: list[Box], pairs: list[tuple[int, int]]) -> None:
    edges = list(dict.fromkeys((a, b) for a, b in pairs if a != b and max(a, b) < len(boxes)))
    layout = lay_out(boxes, edges)
    for a in range(len(boxes)):
        assert not any(overlap(layout, boxes, a, b) for b in range(a))
        (x, y), box = layout.corners[a], boxes[a]
        assert x >= 0
        assert y >= 0
        assert x + box.width <= layout.width
        assert y + box.height <= layout.height
    for (start, end), route in zip(edges, layout.routes, strict=True):
        for box, (x, y) in ((start, route[0]), (end, route[-1])):
            left, top = layout.corners[box]
            assert left <= x <= left + boxes[box].width
            assert y in (top, top + boxes[box].height)
        ys = [y for _, y in route]
        assert ys == sorted(ys, reverse=ys[0] > ys[-1])
        assert ys[0] != ys[-1]


def test_a_chain_is_straight() -> None:
    boxes = [Box(width, 30) for width in (80, 120, 60)]
    layout = lay_out(boxes, [(0, 1), (1, 2)])
    assert len({x + box.width // 2 for (x, _), box in zip(layout.corners, boxes, strict=True)}) == 1


def test_two_ladders_do_not_cross() -> None:
    layout = lay_out([Box(50, 20)] * 4, [(0, 3), (1, 2)])
    (left, *_), (right, *_) = layout.corners[:2]
    (end_right, _), (end_left, _) = layout.corners[2:]
    assert (left < right) == (end_left < end_right)


def test_borders_are_in_the_first_and_last_row() -> None:
    boxes = [Box(50, 20, "first"), Box(50, 20, "first"), Box(50, 20), Box(50, 20), Box(50, 20, "last")]
    layout = lay_out(boxes, [(0, 2), (2, 3), (1, 3), (2, 4)])
    tops = [y for _, y in layout.corners]
    assert tops[0] == tops[1] == min(tops)
    assert tops[4] == max(tops) > tops[3] > tops[2]


def test_an_edge_back_is_drawn_upwards() -> None:
    layout = lay_out([Box(50, 20)] * 3, [(0, 1), (1, 2), (2, 0)])
    assert layout.routes[2][0][1] > layout.routes[2][-1][1]


def test_an_edge_leads_down_whatever_the_order_of_the_boxes_is() -> None:
    layout = lay_out([Box(50, 20, "first"), *[Box(50, 20)] * 3], [(0, 2), (2, 1), (0, 1), (3, 2)])
    tops = [y for _, y in layout.corners]
    assert tops[0] < tops[3] < tops[2] < tops[1]


@given(st.integers(1, 12), st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=30))
def test_only_edges_in_a_circle_lead_back(number: int, pairs: list[tuple[int, int]]) -> None:
    edges = [(a, b) for a, b in pairs if a != b and max(a, b) < number]
    order = order_boxes(number, edges)
    assert sorted(order) == list(range(number))
    reached = {box: {box} for box in range(number)}
    for _ in range(number):
        for a, b in edges:
            reached[a] |= reached[b]
    for a, b in edges:
        assert order.index(a) < order.index(b) or a in reached[b]


def test_nothing_is_laid_out_as_nothing() -> None:
    assert lay_out([], []).corners == ()


def test_a_graph_in_which_all_read_all_is_laid_out_in_seconds() -> None:
    boxes = [Box(50, 20)] * 400
    edges = [(start, end) for start in range(400) for end in range(start + 1, 400)]
    layout = lay_out(boxes, edges)
    assert len(layout.routes) == len(edges)
    tops = [y for _, y in layout.corners]
    assert tops == sorted(set(tops))  # a row for each


def test_where_all_places_are_taken_long_edges_are_straight() -> None:
    number = 2_000
    chain = [(n, n + 1) for n in range(number - 1)]
    long = [(n, number - 1) for n in range(0, number - 2, 2)]
    layout = lay_out([Box(50, 20)] * number, chain + long)
    assert {len(route) for route in layout.routes[: len(chain)]} == {2}
    assert sum(len(route) - 2 for route in layout.routes) < 2 * 20_000 + number
    assert any(len(route) == 2 for route in layout.routes[len(chain) :])
