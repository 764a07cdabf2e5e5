"""What is explained as one HTML page: the diagram with its hosts, failures against readers, and a block per node.

Rules:
1. The page is that of `holdfast.console.page`: no script, no request, light and dark; names are escaped.
2. A sight has a word as well as a colour.
3. The drawing has a column for the sources and one for each depth of the chain; lines go from left to right only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.console.page import escaped, page
from holdfast.explain.failure import Effect, NodeEffect, Sight, SinkEffect
from holdfast.explain.promise import NodePromise
from holdfast.explain.text import failing_text, failure_summary, node_block, sight_text
from holdfast.host.catalog import Catalog
from holdfast.model.time import duration_text

_BOX, _ROW, _GAP, _COLUMN = 200, 46, 18, 280
_MORE = """
.box{fill:var(--panel);stroke:var(--line)}.source{stroke:var(--mark)}.way{stroke:var(--hole);fill:none;stroke-width:1.5}
.label{font-size:13px;font-weight:600;fill:var(--text);stroke:none}.where{font-size:11px;stroke:none}
.seen{font-weight:600;white-space:nowrap;border-left:5px solid transparent;padding-left:8px}
.nothing{color:var(--soft);font-weight:400}.switch{border-left-color:var(--mark)}
.guess{border-left-color:var(--tentative)}.silence{border-left-color:var(--control)}
pre{background:var(--panel);border-radius:8px;padding:12px 14px;overflow-x:auto;font-size:12.5px}
"""
_CLASS = {Sight.NOTHING: "nothing", Sight.SWITCH: "switch", Sight.TENTATIVE: "guess", Sight.SILENCE: "silence"}


def explained_html(catalog: Catalog, promised: Sequence[NodePromise], effects: Sequence[Effect]) -> str:
    """The whole page."""
    name = catalog.diagram.app
    blocks = "".join(f"<pre>{escaped(node_block(promise))}</pre>" for promise in promised)
    body = f"""<figure>{_drawing(catalog, promised)}
<figcaption>Streams from outside on the left; each node with its X and the hosts of its replicas.</figcaption></figure>
<h2>If this fails, readers see</h2>
<div style="overflow-x:auto">{_table(effects)}</div>
<p>{escaped(failure_summary(effects))}</p>
<h2>What each node promises</h2>
{blocks}"""
    where = "in one process" if catalog.deployment is None else f"on {', '.join(catalog.hosts)}"
    return page(f"{name}, explained", where, body, style=_MORE)


def _table(effects: Sequence[Effect]) -> str:
    first = effects[0]
    names = [*(node.node for node in first.nodes), *(f"sink {sink.sink}" for sink in first.sinks)]
    head = "".join(f"<th scope='col'>{escaped(name)}</th>" for name in names)
    rows = "".join(_row(effect) for effect in effects)
    return f"<table><thead><tr><th scope='col'>fails</th>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _row(effect: Effect) -> str:
    seen: list[NodeEffect | SinkEffect] = [*effect.nodes, *effect.sinks]
    cells = "".join(_cell(one, effect) for one in seen)
    return f"<tr><th scope='row'>{escaped(failing_text(effect))}</th>{cells}</tr>"


def _cell(one: NodeEffect | SinkEffect, effect: Effect) -> str:
    word = one.sight.value
    if one.sight is Sight.TENTATIVE and one.seen is not None:
        word = f"tentative after {duration_text(one.seen.begins_us)}"
    elif one.sight is Sight.SWITCH and one.seen is not None:
        word = f"switch to {one.seen.now}"
    told = escaped(sight_text(one, effect))
    return f"<td class='seen {_CLASS[one.sight]}' title='{told}'>{escaped(word)}</td>"


def _drawing(catalog: Catalog, promised: Sequence[NodePromise]) -> str:
    columns: list[list[tuple[str, str, str]]] = [
        [(stream, stream, f"at {', '.join(catalog.placement.homes[stream])}") for stream in catalog.diagram.sources]
    ]
    for depth in range(1, max(promise.depth for promise in promised) + 1):
        columns.append([
            (made.node.output, made.node.name,
             f"X = {duration_text(made.node.max_delay_us)}; {', '.join(one.host for one in made.replicas)}")
            for made in promised if made.depth == depth
        ])  # fmt: skip
    places = {
        stream: (20 + x * _COLUMN, 10 + y * (_ROW + _GAP))
        for x, column in enumerate(columns)
        for y, (stream, _, _) in enumerate(column)
    }
    width = 20 + (len(columns) - 1) * _COLUMN + _BOX + 20
    height = 20 + max(map(len, columns)) * (_ROW + _GAP)
    shapes = "".join((*_ways(places, promised), *_boxes(places, columns)))
    return (
        f"<svg class='plot' style='max-width:{width}px' viewBox='0 0 {width} {height}' role='img' "
        f"aria-label='The diagram of {escaped(catalog.diagram.app)}'>{shapes}</svg>"
    )


def _ways(places: dict[str, tuple[int, int]], promised: Sequence[NodePromise]) -> Iterator[str]:
    for made in promised:
        x, y = places[made.node.output]
        for stream in made.node.inputs:
            from_x, from_y = places[stream][0] + _BOX, places[stream][1] + _ROW // 2
            middle, end = (from_x + x) // 2, y + _ROW // 2
            yield f"<path class='way' d='M{from_x} {from_y}C{middle} {from_y} {middle} {end} {x} {end}'/>"


def _boxes(places: dict[str, tuple[int, int]], columns: Sequence[Sequence[tuple[str, str, str]]]) -> Iterator[str]:
    for number, column in enumerate(columns):
        for stream, name, where in column:
            x, y = places[stream]
            kind, round_ = ("box source", _ROW // 2) if number == 0 else ("box", 6)
            yield (
                f"<rect class='{kind}' x='{x}' y='{y}' width='{_BOX}' height='{_ROW}' rx='{round_}'/>"
                f"<text class='label' x='{x + 14}' y='{y + 20}'>{escaped(name)}</text>"
                f"<text class='where' x='{x + 14}' y='{y + 36}'>{escaped(where)}</text>"
            )
