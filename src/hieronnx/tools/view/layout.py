"""A layered layout: boxes in rows from top to bottom, edges through the rows between them.

    boxes 0 1 2, edges 0→1 1→2 0→2        row 0:   0
                                          row 1:   1  ·      the edge 0→2 goes through a place of its own
                                          row 2:   2

Every edge leads downwards, but for those in a circle (two calls that read of each other): of these the ones against the
order of the boxes, which is that of execution, are drawn upwards. All edges of one box that go the same way share
their places, so that what is read in many rows is one line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

_GAP_X, _GAP_Y, _LINE_WIDTH, _MARGIN = 28, 46, 6, 24
_SWEEPS = 8
_MOST_PLACES = 20_000
"""Of the places that long edges go through; where all are taken, an edge is one straight line over what is there."""


@dataclass(frozen=True, slots=True)
class Box:
    """A box to be placed: its size, and whether it belongs into the first or the last row."""

    width: int
    height: int
    border: str = ""
    """`first`, `last`, or nothing."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where everything is: the left upper corner of each box, the points of each edge, and the size of it all."""

    corners: tuple[tuple[int, int], ...]
    routes: tuple[tuple[tuple[int, int], ...], ...]
    width: int
    height: int


@dataclass(slots=True)
class _Rows:
    """Boxes and the places of long edges, numbered on; the neighbours of each in the rows above and below it."""

    row_of: list[int]
    widths: list[int]
    above: list[list[int]]
    below: list[list[int]]
    rows: list[list[int]] = field(default_factory=list)

    def add_place(self, row: int) -> int:
        self.row_of.append(row)
        self.widths.append(_LINE_WIDTH)
        self.above.append([])
        self.below.append([])
        return len(self.row_of) - 1

    def connect(self, upper: int, lower: int) -> None:
        self.below[upper].append(lower)
        self.above[lower].append(upper)


def lay_out(boxes: Sequence[Box], edges: Sequence[tuple[int, int]]) -> Layout:
    """Place boxes and edges."""
    row_of = _choose_rows(boxes, edges)
    rows = _Rows(row_of, [box.width for box in boxes], [[] for _ in boxes], [[] for _ in boxes])
    chains = _route(rows, edges)
    for vertex, row in enumerate(rows.row_of):
        rows.rows += [[] for _ in range(row + 1 - len(rows.rows))]
        rows.rows[row].append(vertex)
    _order(rows)
    centres = _place(rows)
    return _draw(boxes, edges, rows, chains, centres)


def order_boxes(boxes: int, edges: Iterable[tuple[int, int]]) -> list[int]:
    """Order boxes so that every edge leads forward, but for those in circles; what is in one circle stays together.

    Kosaraju's algorithm: against the order in which a walk along the edges leaves the boxes, a walk back from a box
    reaches those in a circle with it, and else only what has been placed.
    """
    readers: list[list[int]] = [[] for _ in range(boxes)]
    feeders: list[list[int]] = [[] for _ in range(boxes)]
    for start, end in edges:
        readers[start].append(end)
        feeders[end].append(start)
    seen = [False] * boxes
    left = [box for root in reversed(range(boxes)) for box in _walk(root, readers, seen)]
    placed = [False] * boxes
    return [box for root in reversed(left) for box in sorted(_walk(root, feeders, placed))]


def _walk(root: int, neighbours: Sequence[Sequence[int]], seen: list[bool]) -> list[int]:
    """Return what a walk from a box finds that was not seen before, in the order in which it leaves them."""
    if seen[root]:
        return []
    seen[root] = True
    left: list[int] = []
    way = [(root, iter(neighbours[root]))]
    while way:
        box, ahead = way[-1]
        following = next((other for other in ahead if not seen[other]), None)
        if following is None:
            left.append(box)
            way.pop()
        else:
            seen[following] = True
            way.append((following, iter(neighbours[following])))
    return left


def _choose_rows(boxes: Sequence[Box], edges: Sequence[tuple[int, int]]) -> list[int]:
    """Give each box the first row below all that it reads; what reads nothing comes right above its first reader."""
    readers: list[list[int]] = [[] for _ in boxes]
    fed = [False] * len(boxes)
    order = order_boxes(len(boxes), edges)
    rank = {box: place for place, box in enumerate(order)}
    for edge in edges:
        start, end = sorted(edge, key=rank.__getitem__)
        readers[start].append(end)
        fed[end] = True
    top = 1 if any(box.border == "first" for box in boxes) else 0
    rows = [0 if box.border == "first" else top for box in boxes]
    for start in order:
        for end in readers[start]:
            rows[end] = max(rows[end], rows[start] + 1)
    for start in reversed(order):
        if not fed[start] and not boxes[start].border and readers[start]:
            rows[start] = min(rows[end] for end in readers[start]) - 1
    inner = (row for row, box in zip(rows, boxes, strict=True) if box.border != "last")
    last = max(inner, default=-1) + 1
    used = sorted({last if box.border == "last" else row for row, box in zip(rows, boxes, strict=True)})
    number = {row: position for position, row in enumerate(used)}
    return [number[last if box.border == "last" else row] for row, box in zip(rows, boxes, strict=True)]


def _route(rows: _Rows, edges: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Make the places that edges go through; return those of each edge, its ends left out."""
    lines: dict[tuple[int, bool], list[int]] = {}
    """For each box, and whether its line goes down, the places of the line by row."""
    chains: list[list[int]] = []
    joined, most = set[tuple[int, int]](), len(rows.row_of) + _MOST_PLACES
    for start, end in edges:
        down = rows.row_of[end] > rows.row_of[start]
        # A line upwards begins at the upper end: it is one line for all that lead there.
        upper, lower = (start, end) if down else (end, start)
        line = lines.setdefault((upper, down), [])
        needed = max(rows.row_of[lower] - rows.row_of[upper] - 1, 0)
        if needed - len(line) > most - len(rows.row_of):
            chains.append([])
            continue
        while len(line) < needed:
            place = rows.add_place(rows.row_of[upper] + len(line) + 1)
            rows.connect(line[-1] if line else upper, place)
            line.append(place)
        chain = line[:needed]
        last = chain[-1] if chain else upper
        if rows.row_of[lower] > rows.row_of[last] and (last, lower) not in joined:
            joined.add((last, lower))
            rows.connect(last, lower)
        chains.append(chain if down else chain[::-1])
    return chains


def _order(rows: _Rows) -> None:
    """Order each row by where its neighbours are, downwards and upwards by turns; the fewest crossings win."""
    best = [row.copy() for row in rows.rows]
    fewest = _count_crossings(rows)
    for sweep in range(_SWEEPS):
        if not fewest:
            break
        neighbours = rows.below if sweep % 2 else rows.above
        position = {vertex: place for row in rows.rows for place, vertex in enumerate(row)}
        for row in reversed(rows.rows) if sweep % 2 else rows.rows:
            means = {v: _mean((position[n] for n in neighbours[v]), position[v]) for v in row}
            row.sort(key=means.__getitem__)
            position.update((vertex, place) for place, vertex in enumerate(row))
        crossings = _count_crossings(rows)
        if crossings < fewest:
            best, fewest = [row.copy() for row in rows.rows], crossings
    rows.rows = best


def _mean(numbers: Iterable[float], default: float) -> float:
    listed = list(numbers)
    return sum(listed) / len(listed) if listed else default


def _count_crossings(rows: _Rows) -> int:
    """Count the crossings of edges between neighbouring rows, with a tree of sums over the lower row."""
    total = 0
    for upper, lower in zip(rows.rows, rows.rows[1:], strict=False):
        position = {vertex: place for place, vertex in enumerate(lower)}
        sums = [0] * (len(lower) + 1)
        ends = (place for v in upper for place in sorted(position[n] for n in rows.below[v]))
        for seen, place in enumerate(ends):
            index, left = place + 1, 0
            while index:
                left += sums[index]
                index &= index - 1
            total += seen - left
            index = place + 1
            while index < len(sums):
                sums[index] += 1
                index += index & -index
    return total


def _place(rows: _Rows) -> list[float]:
    """Place everything in its row: as near to its neighbours' middle as the order and the widths let it be."""
    centres = [0.0] * len(rows.row_of)
    for row in rows.rows:
        _settle(rows, row, dict.fromkeys(row, 0.0), centres)
    for sweep in range(_SWEEPS):
        before = centres.copy()
        neighbours: Sequence[Sequence[int]] = rows.below if sweep % 2 else rows.above
        for row in reversed(rows.rows) if sweep % 2 else rows.rows:
            wanted = {v: _mean((centres[n] for n in neighbours[v]), centres[v]) for v in row}
            _settle(rows, row, wanted, centres)
        if sweep and before == centres:
            break  # nothing moves any more, whichever way
    return centres


def _settle(rows: _Rows, row: Sequence[int], wanted: Mapping[int, float], centres: list[float]) -> None:
    """Place a row with the least squared distance from where its members want to be: blocks that touch move as one."""
    offset, offsets = 0.0, []
    for position, vertex in enumerate(row):
        if position:
            offset += (rows.widths[row[position - 1]] + rows.widths[vertex]) / 2 + _GAP_X
        offsets.append(offset)
    blocks: list[tuple[float, int]] = []  # the sum of what the members want, and how many they are
    for vertex, shift in zip(row, offsets, strict=True):
        total, size = wanted[vertex] - shift, 1
        while blocks and blocks[-1][0] / blocks[-1][1] > total / size:
            before = blocks.pop()
            total, size = total + before[0], size + before[1]
        blocks.append((total, size))
    starts = (total / size for total, size in blocks for _ in range(size))
    for vertex, shift, start in zip(row, offsets, starts, strict=True):
        centres[vertex] = start + shift


def _draw(
    boxes: Sequence[Box],
    edges: Sequence[tuple[int, int]],
    rows: _Rows,
    chains: Sequence[Sequence[int]],
    centres: Sequence[float],
) -> Layout:
    heights = [max((boxes[v].height for v in row if v < len(boxes)), default=0) for row in rows.rows]
    middles, y = [], _MARGIN
    for height in heights:
        middles.append(y + height // 2)
        y += height + _GAP_Y
    left = min((c - w / 2 for c, w in zip(centres, rows.widths, strict=True)), default=0.0) - _MARGIN
    xs = [round(centre - left) for centre in centres]
    corners = tuple((xs[v] - box.width // 2, middles[rows.row_of[v]] - box.height // 2) for v, box in enumerate(boxes))

    def end_at(vertex: int, side: int) -> tuple[int, int]:
        return xs[vertex], corners[vertex][1] + (boxes[vertex].height if side > 0 else 0)

    routes = []
    for (start, end), chain in zip(edges, chains, strict=True):
        side = 1 if rows.row_of[end] > rows.row_of[start] else -1
        inner = [(xs[place], middles[rows.row_of[place]]) for place in chain]
        routes.append((end_at(start, side), *inner, end_at(end, -side)))
    width = max((x + w // 2 for x, w in zip(xs, rows.widths, strict=True)), default=0) + _MARGIN
    return Layout(corners, tuple(routes), width, max(y - _GAP_Y, 0) + _MARGIN)
