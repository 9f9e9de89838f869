"""Top screen: a run on a terminal, drawn anew as it changes: its state, how far it is, its nodes, its latest events."""

from __future__ import annotations

from collections.abc import Callable

from rich.markup import escape
from textual.app import App, ComposeResult
from textual.widgets import DataTable, Footer, ProgressBar, RichLog, Sparkline, Static

from elastic.observe.screen import node_rows, screen
from elastic.observe.watching import Watched

_COLOURS = {"training": "green", "finished": "green", "failed": "red", "lost": "red", "silent": "red"}
_CSS = """
#facts { height: auto; padding: 0 1; }
#bar { padding: 0 1; height: 1; }
#bar Bar { width: 1fr; }
Sparkline { height: 3; margin: 1 1 0 1; }
DataTable { height: auto; max-height: 12; margin: 1 1 0 1; }
RichLog { margin: 1 1 0 1; border-top: solid $primary; }
"""


class TopApp(App[None]):
    """`look` tells the run now; it is asked each `interval_s`. Ends with q."""

    CSS = _CSS
    TITLE = "elastic top"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS = [("q", "quit", "Quit"), ("n", "focus('nodes')", "Nodes"), ("e", "focus('events')", "Events")]  # noqa: RUF012 - as textual has it

    def __init__(self, look: Callable[[], Watched], *, interval_s: float) -> None:
        super().__init__()
        self._look, self._interval_s = look, interval_s
        self._told = 0

    def compose(self) -> ComposeResult:
        """The parts from top to bottom."""
        yield Static(id="facts")
        yield ProgressBar(id="bar", show_eta=False)
        yield Sparkline(id="losses", summary_function=lambda values: sum(values) / len(values))
        yield DataTable(id="nodes", cursor_type="row", zebra_stripes=True)
        yield RichLog(id="events", wrap=True, markup=False)
        yield Footer()

    def on_mount(self) -> None:
        """Begin to look."""
        self.query_one("#nodes", DataTable).add_columns("node", "state", "ranks", "heard", "reason")
        self.show()
        self.set_interval(self._interval_s, self.show)

    def show(self) -> None:
        """Draw the run as it is now."""
        seen = self._look()
        status = seen.status
        facts = [row for row in screen(status) if not row[0].startswith("node ")]
        colour = _COLOURS.get(str(status.state), "yellow")
        lines = [f"[bold]{escape(name):13}[/] {escape(text)}" for name, text in facts]
        if len(lines) > 1:
            lines[1] = f"[bold]{'state':13}[/] [{colour}]{escape(facts[1][1])}[/]"
        self.query_one("#facts", Static).update("\n".join(lines))
        goal = status.goal_samples
        self.query_one("#bar", ProgressBar).update(total=goal, progress=status.consumed_samples if goal else 0)
        self.query_one("#losses", Sparkline).data = list(seen.losses)
        table = self.query_one("#nodes", DataTable)
        row = table.cursor_row
        table.clear()
        for cells in node_rows(status):
            table.add_row(*(escape(cell) for cell in cells))
        table.move_cursor(row=row)
        log = self.query_one("#events", RichLog)
        new = seen.told - self._told
        for line in seen.events[-new:] if new else ():
            log.write(line)
        self._told = seen.told
