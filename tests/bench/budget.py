"""The rows of the budget table: what was measured beside what must and what should hold."""


class Row:
    """One measure, of which less is better.

    `must` and `aim` are in the unit of the row; a row without them is told, not judged. `why_not` says why there is no
    figure. `gauge` tells whether other programs disturbed the measurement.
    """

    def __init__(self, name, unit, freeway, must=None, aim=None, nginx=None, direct=None, gauge=None, why_not=""):
        self.name, self.unit, self.freeway, self.must, self.aim = name, unit, freeway, must, aim
        self.nginx, self.direct, self.gauge, self.why_not = nginx, direct, gauge, why_not

    @property
    def void(self):
        return self.gauge is not None and self.gauge.void

    @property
    def missed(self):
        return not self.void and self.freeway is not None and self.must is not None and self.freeway > self.must

    def verdict(self):
        if self.freeway is None:
            return f"not measured: {self.why_not}"
        if self.must is None:
            return ""
        if self.void:
            return f"void: others took {self.gauge.others:.0%}, steal {self.gauge.steal:.0%}"
        if self.missed:
            return "MISSED"
        if self.aim is None or self.freeway <= self.aim:
            return "ok, aim met"
        return f"ok, {self.freeway / self.aim:.1f} x the aim" if self.aim else "ok"

    def cells(self):
        figures = [self.must, self.aim, self.freeway, self.nginx, self.direct]
        return [f"{self.name}, {self.unit}", *map(_figure, figures), self.verdict()]


def _figure(value):
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if abs(value) >= 100 or value == int(value):
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3f}" if abs(value) < 1 else f"{value:.2f}"


def table(rows):
    """A Markdown table whose columns line up."""
    head = ["measure", "must", "aim", "freeway", "nginx", "direct", "verdict"]
    lines = [head, *(row.cells() for row in rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(head))]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join("| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths)) + " |" for line in lines)
