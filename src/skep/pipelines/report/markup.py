"""HTML that is safe by construction: every value that is not Markup is text, and text is escaped."""

import html
from functools import cache

LONGEST = 80


class Markup(str):
    """Escaped HTML. Only this module creates it."""

    __slots__ = ()


def text(value: object) -> Markup:
    return value if isinstance(value, Markup) else Markup(html.escape(visible(str(value))))


def visible(value: str) -> str:
    """Escape characters that are invisible or change the direction of text."""
    if value.isprintable():
        return value
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in value)


def short(value: str, longest: int = LONGEST) -> str:
    """Return a name, shortened to this length."""
    found = visible(value)
    return found if len(found) <= longest else f"{found[: longest - 1]}…"


def el(name: str, /, *children: object, **attributes: object) -> Markup:
    """Return an element. `class_` is class, `stroke_width` is stroke-width; an attribute that is None is omitted."""
    given = "".join(
        f' {_attribute(key)}="{text(_number(value))}"' for key, value in attributes.items() if value is not None
    )
    inner = "".join(text(child) for child in children if child is not None)
    if not children and name in VOID:
        return Markup(f"<{name}{given}>")
    return Markup(f"<{name}{given}>{inner}</{name}>")


def joined(parts: "list[Markup]") -> Markup:
    return Markup("".join(parts))


VOID = ("meta", "br")


@cache
def _attribute(key: str) -> str:
    return key.rstrip("_").replace("_", "-").replace("viewbox", "viewBox")


def _number(value: object) -> object:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else value


def document(title: str, style: str, body: Markup) -> str:
    """Return a page whose security policy forbids it to load or run anything."""
    head = joined(
        [
            el("meta", charset="utf-8"),
            el("meta", http_equiv="Content-Security-Policy", content="default-src 'none'; style-src 'unsafe-inline'"),
            el("meta", name="viewport", content="width=device-width, initial-scale=1"),
            el("meta", name="color-scheme", content="light dark"),
            el("title", title),
            Markup(f"<style>{style}</style>"),
        ]
    )
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>{body}</body></html>\n'
