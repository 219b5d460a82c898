"""Pictures and Markdown tables of what the benchmarks kept: python -m bench.picture [--markdown] [--fill PAGE] [--results FOLDER]

Reads kafka.json and tables.json of bench/results, whatever rows are there, and draws docs/images/bench-kafka and
bench-tables, each as PNG and SVG. With `--markdown` it prints tables instead; `--fill docs/benchmarks.md` puts them into
that page. Bars begin at zero; the backgrounds are opaque, so that the pictures can be read on light and on dark pages.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LASTWORD, OTHER, INK, FAINT = "#0b6e69", "#c77d0a", "#222222", "#777777"
LESS = "seconds (less is better)"
Row = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=Path("bench/results"))
    parser.add_argument("--images", type=Path, default=Path("docs/images"))
    parser.add_argument("--markdown", action="store_true", help="print tables, and draw nothing")
    parser.add_argument("--fill", type=Path, help="also put the tables into this page, between its marks")
    args = parser.parse_args()
    found = {name: _kept(args.results / f"{name}.json") for name in ("kafka", "tables")}
    if not any(found.values()):
        print(f"nothing to show: neither kafka.json nor tables.json is in {args.results}", file=sys.stderr)
        return 1
    for name, kept in found.items():
        if kept is None:
            continue
        if args.markdown:
            print("\n".join(MARKDOWN[name](kept)))
        else:
            PICTURES[name](kept, args.images / f"bench-{name}")
        if args.fill is not None:
            _fill(args.fill, name, MARKDOWN[name](kept))
    return 0


def _fill(page: Path, name: str, lines: list[str]) -> None:
    begin, end = f"<!-- {name} figures: begin -->\n", f"<!-- {name} figures: end -->"
    before, _, rest = page.read_text().partition(begin)
    _, _, after = rest.partition(end)
    if not after:
        raise SystemExit(f"{page} has no lines '{begin.strip()}' and '{end}' to put the figures between")
    text = "\n".join(lines).strip().replace("\n\n\n", "\n\n")
    page.write_text(f"{before}{begin}{text}\n\n{end}{after}")
    print(f"filled: {page}, {name}")


def _kept(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    kept: dict[str, Any] = json.loads(path.read_text())
    return kept if kept["rows"] else None


def _part(kept: dict[str, Any], part: str) -> list[Row]:
    return [row for row in kept["rows"] if row["part"] == part]


def _source(kept: dict[str, Any]) -> str:
    machine = kept["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in kept["versions"].items())
    size = "A quick run: small data, no figures to quote. " if kept.get("quick") else ""
    return (
        f"{size}{machine['cores']} cores, {machine['memory_gib']} GiB; {versions}; "
        f"Lastword {machine['commit']}; {machine['time'][:10]}"
    )


# -------------------------------------------------------------------------------------------------- Markdown


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [headings, ["---"] * len(headings), *rows]
    return ["", *(f"| {' | '.join(line)} |" for line in lines), ""]


def _n(value: Any) -> str:
    if not isinstance(value, int | float):
        return str(value if value is not None else "")
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def kafka_markdown(kept: dict[str, Any]) -> list[str]:
    lines = [f"{_source(kept)}."]
    for part, title in (
        ("compaction", "Compaction, a first pass"),
        ("steady", "Compaction, a second pass"),
        ("distinct", "Distinct keys only"),
    ):
        if rows := _part(kept, part):
            lines += ["", f"### {title}", *_passes(rows)]
    if rows := _part(kept, "state"):
        lines += ["", "### The last word of every key, seconds"]
        lines += _table(
            [
                "data",
                "",
                "consumer on Kafka",
                "consumer on Lastword",
                "`topic.state()` and a dict",
                "`topic.state()`",
                "times as fast: consumer",
                "dict",
                "`state()`",
            ],
            [
                [row["data"], row["what"]]
                + [_n(row[f]) for f in ("kafka_consumer_s", "lastword_consumer_s", "lastword_dict_s")]
                + [_n(row["lastword_state_s"])]
                + [_n(row[f"times_as_fast_{way}"]) for way in ("consumer", "dict", "state")]
                for row in rows
            ],
        )
    if rows := _part(kept, "wire"):
        lines += ["", "### Produce and consume, acks=all, MB/s"]
        fields = [
            f"{prefix}{name}_{suffix}"
            for name in ("produce", "consume")
            for prefix, suffix in (("kafka_", "mb_per_s"), ("lastword_", "mb_per_s"), ("", "times_as_fast"))
        ]
        lines += _table(
            [
                "data",
                "durability",
                "produce: Kafka",
                "Lastword",
                "times",
                "consume: Kafka",
                "Lastword",
                "times",
            ],
            [[row["data"], row["what"], *(_n(row[field]) for field in fields)] for row in rows],
        )
    return lines


def _passes(rows: list[Row]) -> list[str]:
    headings = [
        "data",
        "pass",
        "Kafka s",
        "Lastword s",
        "times as fast",
        "Kafka records/s",
        "Lastword records/s",
    ]
    headings += ["Kafka MB/s", "Lastword MB/s", "sealing s", "times as fast with sealing"]
    fields = ["kafka_s", "lastword_s", "times_as_fast", "kafka_records_per_s", "lastword_records_per_s"]
    fields += ["kafka_mb_per_s", "lastword_mb_per_s", "seal_s", "times_as_fast_with_sealing"]
    lines = _table(
        headings, [[row["data"], row["what"], *(_n(row[field]) for field in fields)] for row in rows]
    )
    sizes = {"mb_read": "read", "mb_written": "written", "left_mb": "on disk after", "peak_mb": "peak memory"}
    headings = ["MB: Kafka / Lastword", "pass", *sizes.values()]
    for_both = [
        [
            row["data"],
            row["what"],
            *(f"{_n(row[f'kafka_{field}'])} / {_n(row[f'lastword_{field}'])}" for field in sizes),
        ]
        for row in rows
    ]
    return lines + _table(headings, for_both)[1:]


def tables_markdown(kept: dict[str, Any]) -> list[str]:
    lines = [f"{_source(kept)}."]
    fields = ["first_s", "batch_s", "read_s", "batch_times", "read_times", "written_mb", "disk_mb", "live_mb"]
    for data in dict.fromkeys(row["data"] for row in kept["rows"]):
        rows = [row for row in kept["rows"] if row["data"] == data]
        own = next((row for row in rows if row["what"] == "Lastword"), None)
        if own is not None:
            rows = [
                {
                    **row,
                    "batch_times": row["batch_s"] / own["batch_s"],
                    "read_times": row["read_s"] / own["read_s"],
                }
                for row in rows
            ]
        lines += ["", f"### {data}"]
        lines += _table(
            [
                "system",
                "Spark",
                "first batch s",
                "a batch s",
                "read s",
                "batch, times Lastword's",
                "read, times Lastword's",
                "MB written",
                "MB on disk",
                "MB live",
            ],
            [[row["what"], row["spark"], *(_n(row.get(field)) for field in fields)] for row in rows],
        )
        if own is not None:
            lines.append(
                f"Of Lastword's batch: append {_n(own['append_s'])} s, seal {_n(own['seal_s'])} s, compact "
                f"{_n(own['compact_s'])} s (medians over all batches). `topic.state()`: {_n(own['state_s'])} s."
            )
    return lines


# -------------------------------------------------------------------------------------------------- pictures


@dataclass(frozen=True)
class Panel:
    """Groups of bars. A series is its name, its figures and their colour, or a colour for each of them."""

    title: str
    unit: str
    labels: list[str]
    series: dict[str, tuple[list[float], str | list[str]]]

    @property
    def height(self) -> float:
        return 0.75 + len(self.labels) * max(0.38, 0.21 * len(self.series))


def _bars(axes: Any, panel: Panel) -> None:
    """Horizontal bars in groups, from zero, the first group on top, each with its figure."""
    labels, series = panel.labels, panel.series
    width = 0.8 / len(series)
    most = max(value for values, _ in series.values() for value in values)
    for index, (name, (values, colour)) in enumerate(series.items()):
        places = [number + (index - (len(series) - 1) / 2) * width for number in range(len(labels))]
        axes.barh(places, values, width * 0.92, label=name, color=colour)
        for place, value in zip(places, values, strict=True):
            axes.text(value + most * 0.01, place, _n(value), va="center", fontsize=8, color=INK)
    axes.set_yticks(range(len(labels)), labels, fontsize=8.5)
    axes.invert_yaxis()
    axes.set_xlim(0, most * 1.13)
    axes.set_xlabel(panel.unit, fontsize=9)
    axes.grid(axis="x", alpha=0.25)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if len(series) > 1:
        axes.legend(
            fontsize=8.5,
            frameon=False,
            loc="lower right",
            bbox_to_anchor=(1, 0.99),
            ncols=len(series),
            borderpad=0,
        )


def _draw(panels: list[Panel], caption: str, path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    # Text stays text, and the same figures give the same file.
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "lastword", "font.family": "DejaVu Sans"})
    heights = [panel.height for panel in panels]
    figure, grid = pyplot.subplots(
        len(panels),
        1,
        figsize=(9.5, sum(heights) + 0.7),
        height_ratios=heights,
        layout="constrained",
        squeeze=False,
    )
    for panel, axes in zip(panels, grid[:, 0], strict=True):
        _bars(axes, panel)
        pad = 22 if len(panel.series) > 2 else 6  # room for a long legend below it
        axes.set_title(panel.title, fontsize=10.5, loc="left", fontweight="bold", color=INK, pad=pad)
    figure.supxlabel(caption, fontsize=7.5, color=FAINT, wrap=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    for suffix, metadata in ((".png", {"Software": None}), (".svg", {"Date": None})):
        figure.savefig(path.with_suffix(suffix), dpi=130, facecolor="white", metadata=metadata)
        print(f"drawn: {path.with_suffix(suffix)}")
    pyplot.close(figure)


def kafka_picture(kept: dict[str, Any], path: Path) -> None:
    panels = []
    for part, title in (
        ("compaction", "Compaction, a first pass over the log"),
        ("steady", "Compaction, a second pass"),
        ("distinct", "Compaction, distinct keys only"),
    ):
        if rows := _part(kept, part):
            labels = [f"{row['data']}\n{row['what']}" if part == "steady" else row["data"] for row in rows]
            panels.append(Panel(title, LESS, labels, _pair(rows, "kafka_s", "lastword_s")))
    if rows := _part(kept, "state"):
        ways = {
            "consumer on Kafka": ("kafka_consumer_s", OTHER),
            "consumer on Lastword": ("lastword_consumer_s", "#8fc1bd"),
            "topic.state() and a dict": ("lastword_dict_s", "#45989a"),
            "topic.state()": ("lastword_state_s", LASTWORD),
        }
        labels = [f"{row['data']}\n{row['what']}" for row in rows]
        state = {way: ([row[field] for row in rows], colour) for way, (field, colour) in ways.items()}
        panels.append(Panel("The last word of every key", LESS, labels, state))
    if rows := _part(kept, "wire"):
        labels = [f"{row['data']}\n{row['what'].split(':')[0]}" for row in rows]
        for name in ("produce", "consume"):
            pair = _pair(rows, f"kafka_{name}_mb_per_s", f"lastword_{name}_mb_per_s")
            panels.append(
                Panel(f"{name.capitalize()}, acks=all", "MB/s of values (more is better)", labels, pair)
            )
    if panels:
        _draw(panels, _source(kept), path)


def _pair(rows: list[Row], theirs: str, own: str) -> dict[str, tuple[list[float], str | list[str]]]:
    return {
        "Kafka": ([row[theirs] for row in rows], OTHER),
        "Lastword": ([row[own] for row in rows], LASTWORD),
    }


def tables_picture(kept: dict[str, Any], path: Path) -> None:
    data = kept["rows"][-1]["data"]
    rows = [row for row in kept["rows"] if row["data"] == data]
    labels = [row["what"] for row in rows]
    colours = [LASTWORD if label == "Lastword" else OTHER for label in labels]
    panels = [
        Panel(title, unit, labels, {"": ([row[field] for row in rows], colours)})
        for title, field, unit in (
            (f"Apply a batch ({data})", "batch_s", LESS),
            ("Read the latest state on Spark", "read_s", LESS),
            ("Written for the whole changelog", "written_mb", "MB (less is better)"),
        )
    ]
    _draw(panels, _source(kept), path)


MARKDOWN = {"kafka": kafka_markdown, "tables": tables_markdown}
PICTURES = {"kafka": kafka_picture, "tables": tables_picture}

if __name__ == "__main__":
    sys.exit(main())
