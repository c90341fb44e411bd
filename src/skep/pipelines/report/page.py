"""The page of the report."""

from importlib import resources

from skep.pipelines.report.figures import figures
from skep.pipelines.report.listing import tables
from skep.pipelines.report.markup import Markup, document, el, joined, short
from skep.pipelines.report.result import Result
from skep.pipelines.report.story import findings, sentences
from skep.pipelines.report.words import mark, time

NAMES, FINDINGS = 6, 12
NOTES = (
    """Times are UTC. Pushed messages are read from the archive and the log; lag and consumption from samples, which
    are kept for a week; times in queue from the lease log, for queues with the option lease_log_seconds.""",
    """A message is completed at the end of the lease that completed it. Times do not include dead letters.
    The error of a percentile is at most a ten-thousandth of the ranks.""",
    """These need attention: groups that are dead, that missed messages, or whose oldest message has waited for more
    than five minutes; dead letters; more than 1 % expired leases; a partition with half of its queue's messages.""",
)


def render(result: Result) -> str:
    """Return the page as HTML."""
    title = f"Skep analytics, {time(result.made_at)} UTC"
    style = (resources.files("skep.pipelines.report") / "style.css").read_text()
    parts = [_header(result), _summary(result), figures(result), *tables(result), _notes(result)]
    return document(title, style, el("main", *parts))


def _header(result: Result) -> Markup:
    queues = ", ".join(short(name) for name in result.queues[:NAMES])
    more = f" and {len(result.queues) - NAMES} more" if len(result.queues) > NAMES else ""
    about = f"{queues}{more}" if queues else "No queues"
    return el("header", el("h1", "Skep analytics"), el("p", f"{about} · created {time(result.made_at)} UTC"))


def _summary(result: Result) -> Markup:
    return joined([_verdict(result), el("section", *(el("p", text) for text in sentences(result)), class_="summary")])


def _verdict(result: Result) -> Markup:
    found = findings(result)
    if not found:
        healthy = "Healthy: nothing needs attention" if result.messages or result.groups else "There are no messages"
        return el("section", el("h2", healthy), class_="verdict good")
    head = "One thing needs attention" if len(found) == 1 else f"{len(found)} things need attention"
    items = [el("li", finding.text, class_=finding.kind) for finding in found[:FINDINGS]]
    more = el("li", f"and {len(found) - FINDINGS} more") if len(found) > FINDINGS else None
    return el("section", el("h2", head), el("ul", *items, more), class_=f"verdict {found[0].kind}")


def _notes(result: Result) -> Markup:
    steps = ", ".join(f"{kind} {mark(step)}" for kind, step in result.steps.items())
    notes = (" ".join(note.split()) for note in (*NOTES, f"Time steps: {steps}."))
    return el("footer", *(el("p", note) for note in notes))
