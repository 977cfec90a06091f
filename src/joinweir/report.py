"""Pages that show results: self-contained HTML that needs no network, all with one look.

plotly draws; it is imported when a page is made, not before.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .errors import JoinweirError

# One colour a policy wherever it is drawn (Okabe and Ito's palette, which the colour-blind can
# tell apart); policies beyond these take the rest in turn.
COLOURS = {
    "full": "#000000",
    "fifo": "#e69f00",
    "rand": "#999999",
    "prob": "#0072b2",
    "gdj": "#d55e00",
}
OTHER_COLOURS = ("#009e73", "#cc79a7", "#56b4e9", "#8c6d1f", "#7a5195", "#2f4b7c")

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1c1c1c; background: #fff; margin: 0 auto;
       max-width: 58rem; padding: 1rem 1.2rem 4rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
table { border-collapse: collapse; margin: 1rem 0; width: 100%; }
th, td { padding: .3rem .7rem; border-bottom: 1px solid #ddd; text-align: left; }
th { border-bottom: 2px solid #888; } td.n, th.n { text-align: right; white-space: nowrap; }
.bar { background: #e8e8e8; width: 9rem; height: .8rem; } .bar div { height: 100%; }
.wide { overflow-x: auto; } .chart { height: 26rem; }
code { background: #f1f1f1; padding: .1rem .3rem; }
"""


def require_plotly() -> None:
    """Say how to get plotly if it is not there, before any work is done for a page."""
    try:
        import plotly.graph_objects  # noqa: F401
    except ImportError:
        raise JoinweirError(
            "a page needs plotly, which is not installed; run: pip install 'joinweir[report]'"
        ) from None


def colour(name: str, others: Sequence[str] = ()) -> str:
    """A policy's colour; `others` are the names among which it takes its turn."""
    plain = name.partition(":")[0]
    if name in COLOURS or (plain in COLOURS and name not in others):
        return COLOURS[plain]
    rest = [other for other in others if other not in COLOURS]
    place = rest.index(name) if name in rest else 0
    return OTHER_COLOURS[place % len(OTHER_COLOURS)]


def page(title: str, parts: Iterable[str]) -> str:
    """A whole page of parts that are HTML already."""
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{html.escape(title)}</h1>\n{body}\n</body>\n</html>\n"
    )


def paragraph(text: str) -> str:
    """Plain text as a paragraph."""
    return f"<p>{html.escape(text)}</p>"


def heading(text: str) -> str:
    """A heading below the page's title."""
    return f"<h2>{html.escape(text)}</h2>"


def recall_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Policies with their results and a bar for recall, in the order given.

    A row has ``policy``, ``summary``, ``n_out``, ``recall``, ``rows_held`` and ``n_shed``.
    """
    names = [row["policy"] for row in rows]
    lines = [
        "<table>",
        '<tr><th>policy</th><th>what goes</th><th class="n">results</th>'
        '<th class="n">recall</th><th></th><th class="n">rows held</th>'
        '<th class="n">rows shed</th></tr>',
    ]
    for row in rows:
        share = min(1.0, max(0.0, row["recall"]))
        fill = f"width:{share:.1%};background:{colour(row['policy'], names)}"
        lines.append(
            f"<tr><td><code>{html.escape(row['policy'])}</code></td>"
            f"<td>{html.escape(row['summary'])}</td>"
            f'<td class="n">{row["n_out"]:,}</td><td class="n">{row["recall"]:.1%}</td>'
            f'<td><div class="bar"><div style="{fill}"></div></div></td>'
            f'<td class="n">{sum(row["rows_held"]):,}</td>'
            f'<td class="n">{row["n_shed"]:,}</td></tr>'
        )
    return "\n".join([*lines, "</table>"])


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of texts; the first column is flushed left, the others right."""

    def line(tag: str, cells: Sequence[str]) -> str:
        first, *others = (html.escape(cell.replace("\n", " ")) for cell in cells)
        numbers = "".join(f'<{tag} class="n">{cell}</{tag}>' for cell in others)
        return f"<tr><{tag}>{first}</{tag}>{numbers}</tr>"

    lines = ["<table>", line("th", columns), *(line("td", r) for r in rows), "</table>"]
    return "\n".join(['<div class="wide">', *lines, "</div>"])  # on a phone it scrolls


def line_chart(
    series: Mapping[str, Sequence[tuple[float, float]]],
    *,
    x: str,
    y: str,
    first: bool,
    percent: bool = False,
    limit: tuple[str, float] | None = None,
) -> str:
    """Values over time or micro-batches; `limit` is a named horizontal line.

    A series that is named after a policy has the policy's colour.
    """
    require_plotly()
    import plotly.graph_objects as go

    figure = go.Figure()
    for name, points in series.items():
        figure.add_trace(
            go.Scatter(
                x=[at for at, _ in points],
                y=[value for _, value in points],
                name=name,
                mode="lines",
                line={"color": colour(name, list(series))},
            )
        )
    if limit is not None:
        figure.add_hline(y=limit[1], line_dash="dash", line_color="#888", annotation_text=limit[0])
    figure.update_layout(
        template="simple_white",
        margin={"l": 60, "r": 10, "t": 10, "b": 50},
        xaxis={"title": {"text": x}},
        yaxis={
            "title": {"text": y},
            "rangemode": "tozero",
            "tickformat": ".0%" if percent else None,
        },
        hovermode="x unified",
        showlegend=True,
    )
    return _drawn(figure, first)


@dataclass(frozen=True)
class Panel:
    """One picture: named lines over common axes. A line "… random order" or "… Zipf" is dashed."""

    title: str
    text: str  # what there is to see
    lines: Mapping[str, Sequence[tuple[float, float]]]
    x: str
    y: str
    log_x: bool = False
    log_y: bool = False
    percent: bool = False
    zero: bool = False  # the y axis begins at 0
    limit: tuple[str, float] | None = None  # a named horizontal line


_STREAM_COLOURS = ("#0072b2", "#d55e00")


def figure(panels: Sequence[Panel]) -> Any:
    """Panels below and beside each other in one plotly figure."""
    require_plotly()
    from plotly.subplots import make_subplots

    rows = -(-len(panels) // 2)
    drawn = make_subplots(rows=rows, cols=2, subplot_titles=[panel.title for panel in panels])
    for number, panel in enumerate(panels):
        place = {"row": number // 2 + 1, "col": number % 2 + 1}
        for trace in _traces(panel):
            trace.legendgroup = panel.title
            drawn.add_trace(trace, **place)
        if panel.limit is not None:
            drawn.add_hline(y=panel.limit[1], line_dash="dash", line_color="#888", **place)
        across, up = _axes(panel)
        drawn.update_xaxes(across, **place)
        drawn.update_yaxes(up, **place)
    drawn.update_layout(template="simple_white", height=380 * rows, showlegend=False)
    return drawn


def panel_chart(panel: Panel, *, first: bool) -> str:
    """One panel as a part of a page."""
    require_plotly()
    import plotly.graph_objects as go

    drawn = go.Figure(_traces(panel))
    if panel.limit is not None:
        name, at = panel.limit
        drawn.add_hline(y=at, line_dash="dash", line_color="#888", annotation_text=name)
    across, up = _axes(panel)
    drawn.update_layout(
        template="simple_white",
        margin={"l": 60, "r": 10, "t": 10, "b": 50},
        xaxis=across,
        yaxis=up,
        # Below the chart: beside it there is no room on a phone.
        legend={"orientation": "h", "yanchor": "top", "y": -0.18, "x": 0.0},
        showlegend=len(panel.lines) > 1,
    )
    return _drawn(drawn, first)


def _traces(panel: Panel) -> list[Any]:
    import plotly.graph_objects as go

    own = list(dict.fromkeys(name.rpartition(": ")[0] for name in panel.lines))
    traces = []
    for name, points in panel.lines.items():
        stream, _, what = name.rpartition(": ")
        style = {"color": _STREAM_COLOURS[own.index(stream) % len(_STREAM_COLOURS)]}
        if what.startswith(("random order", "Zipf")):
            style["dash"] = "dash"
        traces.append(
            go.Scatter(
                x=[x for x, _ in points],
                y=[y for _, y in points],
                name=name,
                mode="lines+markers" if len(points) < 12 else "lines",
                line=style,
            )
        )
    return traces


def _axes(panel: Panel) -> tuple[dict[str, Any], dict[str, Any]]:
    across = {"title": {"text": panel.x}, "type": "log" if panel.log_x else "linear"}
    up = {
        "title": {"text": panel.y},
        "type": "log" if panel.log_y else "linear",
        "tickformat": ".0%" if panel.percent else None,
        "rangemode": "tozero" if panel.zero or panel.percent else "normal",
    }
    if panel.log_x:
        across |= {"dtick": 1, "exponentformat": "power"}
    if panel.log_y:
        up |= {"dtick": 1, "exponentformat": "power"}
    return across, up


def recall_chart(curves: Mapping[str, Sequence[tuple[float, float]]], *, first: bool) -> str:
    """Recall over memory, a line a policy; the `first` chart of a page carries the library.

    `curves` has points (share of the exact join's memory, recall).
    """
    require_plotly()
    import plotly.graph_objects as go

    figure = go.Figure()
    for name, points in curves.items():
        figure.add_trace(
            go.Scatter(
                x=[share for share, _ in points],
                y=[recall for _, recall in points],
                name=name,
                mode="lines+markers",
                line={"color": colour(name, list(curves))},
                hovertemplate="%{x:.0%} of the memory: %{y:.1%} of the results",
            )
        )
    figure.update_layout(
        template="simple_white",
        margin={"l": 60, "r": 10, "t": 10, "b": 50},
        xaxis={"title": {"text": "memory, of what the exact join needs"}, "tickformat": ".0%"},
        yaxis={"title": {"text": "recall"}, "tickformat": ".0%", "range": [0, 1.03]},
        legend={"title": {"text": "policy"}},
        hovermode="x unified",
    )
    return _drawn(figure, first)


def _drawn(figure: Any, first: bool) -> str:
    """A figure as HTML; the `first` of a page carries the library."""
    drawn = figure.to_html(
        full_html=False,
        include_plotlyjs=first,
        include_mathjax=False,
        default_height="26rem",
        config={"displaylogo": False, "responsive": True},
    )
    return f'<div class="chart">{drawn}</div>'
