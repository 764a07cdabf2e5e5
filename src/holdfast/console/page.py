"""The frame of every HTML page: one file without scripts, in the colours that its reader prefers.

Everything that came from outside is escaped (`escaped`); a policy in the page forbids scripts and any request.
"""

from __future__ import annotations

import html

from holdfast.console.style import STYLE


def escaped(text: object) -> str:
    return html.escape(str(text))


def page(title: str, when: str, body: str, *, badge: str = "", style: str = "") -> str:
    """A whole page. `title` and `when` are text, the rest is HTML."""
    shown = f"<p class='when'>{escaped(when)}</p>" if when else ""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escaped(title)}</title>
<style>{STYLE}{style}</style>
</head>
<body>
<header><h1>{escaped(title)}</h1>{shown}{badge}</header>
{body}
</body>
</html>
"""
