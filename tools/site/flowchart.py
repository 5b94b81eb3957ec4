"""Mermaid's flowcharts as inline SVG, drawn when the site is built: a reader's browser loads no diagram library.

The sources stay Mermaid, which notebooks and repository hosts draw themselves. The subset that lessons use: `flowchart LR` or `TD`, nodes
`a["text"]` and `a[("text")]`, links `-->`, `-. .->` and `<-. .->` with or without a label, groups `a & b`, and subgraphs.

The layout is K. Sugiyama's (1981): each node gets a layer, long links pass through invisible nodes, and layers are ordered by barycentres.
"""

import html
import re
from dataclasses import dataclass, field

from minllm.figures.figure import FONT_SIZE, MUTED, colour, element, label, over_lines, text_width

LINE = 17.0  # height of a line of text
PAD = 11.0  # between a node's text and its border, on each side
GAP, SEPARATION = 36.0, 16.0  # between layers, and between the nodes of a layer
TITLE = 24.0  # height of a subgraph's title
SWEEPS = 8
WIDEST, NARROW = 850.0, 360.0  # pixels: of a page beside its navigation, and of a phone
BREAK = re.compile(r"<br\s*/?>")
NODE = re.compile(r'(?P<name>\w+)(?:\[(?P<store>\()?"(?P<text>[^"]*)"\)?\])?')
LINK = re.compile(
    r'(?P<both><)?(?:--\s*"(?P<before>[^"]*)"\s*-->|-\.\s*(?:"(?P<dashed>[^"]*)"\s*)?(?P<dots>\.?->)|-->\s*(?:\|"(?P<after>[^"]*)"\|)?)'
)
SUBGRAPH = re.compile(r'subgraph (?P<name>\w+)\["(?P<title>[^"]*)"\]')


class FlowchartError(ValueError):
    """A flowchart uses something outside the subset that this module draws."""


@dataclass
class Node:
    """A box of text, or a bend of a long link if it has no lines. Its centre is `along` the layers and `across` them."""

    lines: list[str]
    room: tuple[float, float] = (0.0, 0.0)  # (width, height) of the label at a bend
    store: bool = False  # a data store: drawn in another colour
    layer: int = 0
    thickness: float = 0.0  # the thickness of its layer
    along: float = 0.0
    across: float = 0.0

    @property
    def size(self) -> tuple[float, float]:
        """(width, height)."""
        if not self.lines:
            return self.room
        return 1.06 * max(map(text_width, self.lines)) + 2 * PAD, LINE * len(self.lines) + 2 * PAD - 4


@dataclass
class Link:
    """An arrow. Dashed links do not order the layers; `both`: a head at each end."""

    source: str
    target: str
    lines: list[str] = field(default_factory=list)
    dashed: bool = False
    both: bool = False


@dataclass
class Flowchart:
    """A parsed flowchart: nodes by name, in the order of their first mention."""

    down: bool
    nodes: dict[str, Node] = field(default_factory=dict)
    links: list[Link] = field(default_factory=list)
    groups: list[tuple[str, list[str]]] = field(default_factory=list)  # (title, the names of its nodes)


def parse(source: str) -> Flowchart:
    """Parse the source text of a flowchart. Raises FlowchartError for a line outside the subset."""
    head, *statements = [line.strip() for line in source.strip().splitlines() if line.strip()]
    if head not in ("flowchart LR", "flowchart TD"):
        raise FlowchartError(f"a diagram begins with {head!r}; the site draws `flowchart LR` and `flowchart TD` only")
    chart, inside = Flowchart(down=head.endswith("TD")), None
    for statement in statements:
        if found := SUBGRAPH.fullmatch(statement):
            inside = []
            chart.groups.append((found["title"], inside))
        elif statement == "end":
            inside = None
        else:
            mentioned = read_statement(chart, statement)
            if inside is not None:
                inside += [name for name in mentioned if name not in inside]
    return chart


def read_statement(chart: Flowchart, statement: str) -> list[str]:
    """Add a chain of nodes and links to the chart; the names of its nodes."""
    rest, sources, link, mentioned = statement, [], None, []
    while True:
        targets, rest = read_nodes(chart, rest, statement)
        mentioned += targets
        if link:
            lines = BREAK.split(link["before"] or link["dashed"] or link["after"] or "")
            chart.links += [
                Link(a, b, [line for line in lines if line], link["dots"] is not None, link["both"] is not None)
                for a in sources
                for b in targets
            ]
        if not rest:
            return mentioned
        link = LINK.match(rest)
        if not link:
            raise FlowchartError(f"this line of a flowchart is outside the subset that the site draws: {statement}")
        sources, rest = targets, rest[link.end() :].lstrip()


def read_nodes(chart: Flowchart, text: str, statement: str) -> tuple[list[str], str]:
    """(names, the rest of the text) of `a & b["text"]` at its beginning."""
    names = []
    while True:
        found = NODE.match(text)
        if not found:
            raise FlowchartError(f"this line of a flowchart is outside the subset that the site draws: {statement}")
        name = found["name"]
        if found["text"] is not None or name not in chart.nodes:
            chart.nodes[name] = Node(BREAK.split(found["text"] or name), store=found["store"] is not None)
        names.append(name)
        text = text[found.end() :].lstrip()
        if not text.startswith("&"):
            return names, text
        text = text[1:].lstrip()


def forward_links(chart: Flowchart) -> list[tuple[str, str, Link]]:
    """(upper, lower, link) of each link that orders layers; a link that would close a cycle is turned round."""
    targets = {name: [link for link in chart.links if link.source == name and not link.dashed] for name in chart.nodes}
    state, found = {}, []

    def visit(name):
        state[name] = "open"
        for link in targets[name]:
            turned = state.get(link.target) == "open"
            found.append((link.target, name, link) if turned else (name, link.target, link))
            if link.target not in state:
                visit(link.target)
        state[name] = "closed"

    for name in chart.nodes:
        if name not in state:
            visit(name)
    return found


def set_layers(nodes: dict[str, Node], links) -> None:
    """Put each node below all that point to it; then pull nodes to which nothing points down to their first target."""
    for _ in nodes:
        for upper, lower, _link in links:
            nodes[lower].layer = max(nodes[lower].layer, nodes[upper].layer + 1)
    pointed_at = {lower for _, lower, _ in links}
    for name, node in nodes.items():
        below = [nodes[lower].layer for upper, lower, _ in links if upper == name]
        if name not in pointed_at and below:
            node.layer = min(below) - 1


def routes(nodes: dict[str, Node], links) -> list[tuple[Link, list[Node], bool]]:
    """(link, the nodes that it passes from top to bottom, whether it is turned round); bends are added to `nodes`."""
    found = []
    for number, (upper, lower, link) in enumerate(links):
        passed = [nodes[upper]]
        for layer in range(nodes[upper].layer + 1, nodes[lower].layer):
            room = measure(link.lines) if len(passed) == 1 else (0.0, 0.0)
            bend = nodes[f"bend {number} {layer}"] = Node([], room, layer=layer)
            passed.append(bend)
        found.append((link, [*passed, nodes[lower]], link.source == lower))
    return found


def components(nodes: dict[str, Node], passes, dashed) -> list[list[Node]]:
    """The parts of the chart that no link joins, each as its nodes."""
    parts = [[node] for node in nodes.values()]
    for joined in [passed for _, passed, _ in passes] + [[nodes[link.source], nodes[link.target]] for link in dashed]:
        touched = [part for part in parts if any(node is one for node in part for one in joined)]
        merged = [node for node in nodes.values() if any(node is one for part in touched for one in part)]
        at = next(i for i, part in enumerate(parts) if part is touched[0])
        parts[at] = merged
        parts = [part for i, part in enumerate(parts) if i == at or not any(part is one for one in touched)]
    return parts


def place_across(part: list[Node], neighbours, breadth, separation: float) -> None:
    """Order the nodes of each layer by the mean of their neighbours, and set `across` so that none overlap."""
    layers: dict[int, list[Node]] = {}
    for node in part:
        layers.setdefault(node.layer, []).append(node)
    for sweep in range(SWEEPS):
        for number in sorted(layers, reverse=sweep % 2 == 1):
            layer = layers[number]
            wanted = {id(node): mean([one.across for one in neighbours[id(node)]], node.across) for node in layer}
            if sweep:
                layer.sort(key=lambda node: wanted[id(node)])
            edge, shift = None, 0.0
            for node in layer:
                half = breadth(node) / 2
                node.across = wanted[id(node)] if edge is None else max(wanted[id(node)], edge + separation + half)
                edge = node.across + half
                shift += wanted[id(node)] - node.across
            for node in layer:
                node.across += shift / len(layer)


def mean(numbers: list[float], otherwise: float) -> float:
    return sum(numbers) / len(numbers) if numbers else otherwise


def drawing(source: str, down: bool | None = None) -> tuple[float, float, str]:
    """(width, height, SVG) of a flowchart; `down` overrides the direction in which it is written."""
    chart = parse(source)
    down = chart.down if down is None else down
    nodes, dashed = chart.nodes, [link for link in chart.links if link.dashed]
    links = forward_links(chart)
    set_layers(nodes, links)
    passes = routes(nodes, links)
    neighbours = {id(node): [] for node in nodes.values()}
    for _, passed, _ in passes:
        for upper, lower in zip(passed, passed[1:]):
            neighbours[id(upper)].append(lower)
            neighbours[id(lower)].append(upper)

    def breadth(node):
        return node.size[0 if down else 1]

    room = max([SEPARATION] + [measure(link.lines)[0 if down else 1] + 34 for link in dashed])
    start, enclosing = 0.0, None
    for part in components(nodes, passes, dashed):
        place_across(part, neighbours, breadth, room)
        groups = [(title, names) for title, names in chart.groups if any(nodes[name] in part for name in names)]
        if enclosing is not None and (groups or enclosing) and groups != enclosing:
            start += 10 if down else TITLE + 10  # the borders of two subgraphs, or of one
        enclosing = groups
        titles = [text_width(title) + 2 * PAD for title, names in groups if down and len(names) <= len(part)]
        low = min(node.across - breadth(node) / 2 for node in part)
        high = max(node.across + breadth(node) / 2 for node in part)
        spare = max(0.0, max(titles, default=0.0) - (high - low)) / 2
        for node in part:
            node.across += start + spare - low
        start += high - low + 2 * spare + SEPARATION
    place_along(nodes, passes, down)
    return paint(chart, passes, dashed, down)


def measure(lines: list[str]) -> tuple[float, float]:
    """(width, height) of a label."""
    return (max(map(text_width, lines)), LINE * len(lines)) if lines else (0.0, 0.0)


def place_along(nodes: dict[str, Node], passes, down: bool) -> None:
    """Set `along`: layers one after another, with room for the labels between them."""
    at = 0.0
    for number in range(max(node.layer for node in nodes.values()) + 1):
        layer = [node for node in nodes.values() if node.layer == number]
        thickness = max((node.size[1 if down else 0] for node in layer), default=0.0)
        for node in layer:
            node.along, node.thickness = at + thickness / 2, thickness
        labels = [measure(link.lines)[1 if down else 0] for link, passed, _ in passes if passed[0].layer == number and len(passed) == 2]
        at += thickness + max([GAP] + [length + 28 for length in labels if length])


def paint(chart: Flowchart, passes, dashed, down: bool) -> tuple[float, float, str]:
    """(width, height, SVG) of the placed chart."""

    def point(along, across):
        return (across, along) if down else (along, across)

    def half(node):
        return node.size[1 if down else 0] / 2

    drawn, labels = [], []
    boxes = [box_of(node, point) for node in chart.nodes.values()]
    for title, names in chart.groups:
        inner = [box_of(chart.nodes[name], point) for name in names]
        left, top = min(box[0] for box in inner) - 8, min(box[1] for box in inner) - TITLE
        width = max(max(box[2] for box in inner) + 8 - left, text_width(title) + 2 * PAD)
        box = (left, top, left + width, max(box[3] for box in inner) + 8)
        boxes.append(box)
        drawn.append(
            element("rect", x=left, y=top, width=width, height=box[3] - top, rx=6, fill="none", stroke=MUTED, stroke_dasharray="3 3")
        )
        labels.append(label(left + 9, top + 16, title, fill=MUTED))
    for link, passed, turned in passes:
        path = [(passed[0].along + half(passed[0]), passed[0].across)]
        for bend in passed[1:-1]:  # straight past its layer, so that the line crosses no node
            path += [(bend.along - bend.thickness / 2, bend.across), (bend.along + bend.thickness / 2, bend.across)]
        path.append((passed[-1].along - half(passed[-1]), passed[-1].across))
        drawn.append(curve([point(*one) for one in path], down))
        if turned or link.both:
            drawn.append(head(*point(*path[0]), *point(-1, 0)))
        if not turned or link.both:
            drawn.append(head(*point(*path[-1]), *point(1, 0)))
        (first, one), (second, other) = path[:2] if len(passed) == 2 else path[1:3]
        labels += written(link.lines, *point((first + second) / 2, (one + other) / 2))
    for link in dashed:
        source, target = chart.nodes[link.source], chart.nodes[link.target]
        sign = 1 if target.across > source.across else -1
        start = source.across + sign * source.size[0 if down else 1] / 2
        end = target.across - sign * target.size[0 if down else 1] / 2
        drawn.append(curve([point(source.along, start), point(target.along, end)], not down, stroke_dasharray="4 3"))
        drawn.append(head(*point(target.along, end), *point(0, sign)))
        if link.both:
            drawn.append(head(*point(source.along, start), *point(0, -sign)))
        x, y = point((source.along + target.along) / 2, (start + end) / 2)
        labels += written(link.lines, x, y - (9 if down else 0))
    for node in chart.nodes.values():
        if node.lines:
            drawn.append(node_box(node, *point(node.along, node.across)))
    left, top = min(box[0] for box in boxes) - 2, min(box[1] for box in boxes) - 2
    width, height = max(box[2] for box in boxes) + 2 - left, max(box[3] for box in boxes) + 2 - top
    body = "".join(drawn + labels)
    size = f'viewBox="{left:.0f} {top:.0f} {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
    spoken_so, letters = html.escape(spoken(chart)), f'font-size="{FONT_SIZE}" font-family="inherit"'
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{spoken_so}" {letters}>{body}</svg>'
    return width, height, svg


def box_of(node: Node, point) -> tuple[float, float, float, float]:
    """(left, top, right, bottom)."""
    (x, y), (width, height) = point(node.along, node.across), node.size
    return x - width / 2, y - height / 2, x + width / 2, y + height / 2


def node_box(node: Node, x: float, y: float) -> str:
    """A rounded box with its lines of text."""
    width, height = node.size
    tint = colour(1 if node.store else 0)
    box = {"x": x - width / 2, "y": y - height / 2, "width": width, "height": height, "rx": 5, "stroke": tint, "stroke_width": 1.4}
    return element("rect", fill=tint, fill_opacity=0.1, **box) + "".join(centred(node.lines, x, y, label))


def centred(lines: list[str], x: float, y: float, write) -> list[str]:
    """Lines of text around a point."""
    top = y - LINE * (len(lines) - 1) / 2 + 0.36 * FONT_SIZE
    return [write(x, top + LINE * i, line, "middle") for i, line in enumerate(lines)]


def written(lines: list[str], x: float, y: float) -> list[str]:
    """A link's label, which its line does not strike out."""
    return centred(lines, x, y, over_lines)


def curve(points: list[tuple[float, float]], down: bool, **style) -> str:
    """A smooth line that leaves and enters along the direction of the chart."""
    path = [f"M{points[0][0]:.1f} {points[0][1]:.1f}"]
    for (x, y), (to_x, to_y) in zip(points, points[1:]):
        middle = (y + to_y) / 2 if down else (x + to_x) / 2
        first, second = ((x, middle), (to_x, middle)) if down else ((middle, y), (middle, to_y))
        path.append(f"C{first[0]:.1f} {first[1]:.1f} {second[0]:.1f} {second[1]:.1f} {to_x:.1f} {to_y:.1f}")
    return element("path", d=" ".join(path), fill="none", stroke=MUTED, stroke_width=1.4, **style)


def head(x: float, y: float, dx: float, dy: float) -> str:
    """An arrow's head with its tip at (x, y), in the direction (dx, dy)."""
    corners = [(x, y), (x - 8 * dx - 4 * dy, y - 8 * dy + 4 * dx), (x - 8 * dx + 4 * dy, y - 8 * dy - 4 * dx)]
    return element("polygon", points=" ".join(f"{a:.1f},{b:.1f}" for a, b in corners), fill=MUTED)


def spoken(chart: Flowchart) -> str:
    """The chart in words, for a screen reader."""
    said = {name: " ".join(node.lines) for name, node in chart.nodes.items()}
    steps = [
        f"{said[link.source]} {'and' if link.both else 'to'} {said[link.target]}" + (f" ({' '.join(link.lines)})" if link.lines else "")
        for link in chart.links
    ]
    alone = [said[name] for name in chart.nodes if name in said and not any(name in (link.source, link.target) for link in chart.links)]
    return "Diagram: " + "; ".join(steps + [text for text in alone if text])


def figure(source: str) -> str:
    """The flowchart for screens of both widths, as HTML; the style sheet shows one."""
    chart = parse(source)
    written_so, other = drawing(source, chart.down), drawing(source, not chart.down)
    wide = written_so if written_so[0] <= WIDEST else other
    narrow = min(written_so, other, key=lambda drawn: drawn[0])
    if wide[0] <= NARROW:
        return f'<div class="diagram">{wide[2]}</div>'
    return f'<div class="diagram"><div class="diagram-wide">{wide[2]}</div><div class="diagram-narrow">{narrow[2]}</div></div>'
