"""The frame of every HTML page: one file without scripts, in the colours that its reader prefers.

Everything that came from outside is escaped (`escaped`); a policy in the page forbids scripts and any request.
"""

from __future__ import annotations

import html

#: In the light and in the dark scheme. Text in the drawing has a halo: lines may cross it.
STYLE = """
:root{color-scheme:light dark;--ground:#fff;--text:#1b1f24;--soft:#5b6570;--line:#d5dae0;--panel:#f5f7f9;
--stable:#2a8f4a;--tentative:#e0a100;--control:#cf2e2e;--mark:#0b6f92;--bound:#8b3fb5;--hole:#9aa3ad}
@media (prefers-color-scheme:dark){:root{--ground:#14171a;--text:#e6e9ec;--soft:#9aa5b0;--line:#343b42;--panel:#1d2226;
--stable:#3fb765;--tentative:#f2c037;--control:#ff6b61;--mark:#4cc2e6;--bound:#c78bf0;--hole:#5d6770}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1080px;padding:24px 20px 48px;background:var(--ground);color:var(--text);
font:15px/1.45 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans","DejaVu Sans",sans-serif}
header{display:flex;flex-wrap:wrap;align-items:baseline;gap:4px 16px}
h1{font-size:24px;margin:0}h2{font-size:17px;margin:30px 0 8px}
.when{color:var(--soft);margin:0}
.badge{margin:0 0 0 auto;padding:3px 12px;border-radius:99px;font-weight:600;border:1.5px solid currentColor}
.pass{color:var(--stable)}.fail{color:var(--control)}
ul{list-style:none;margin:0;padding:0}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(190px,1fr));gap:10px;margin:18px 0}
.figures li{background:var(--panel);border-radius:8px;padding:10px 14px}
.figures b{display:block;font-size:22px;font-variant-numeric:tabular-nums}
.figures span{color:var(--soft);font-size:13px}
.legend{display:flex;flex-wrap:wrap;gap:6px 20px;font-size:13px;color:var(--soft)}
.legend svg{width:12px;height:12px;margin-right:6px;vertical-align:-1px}
figure{margin:0 0 8px;overflow-x:auto}figcaption{font-size:13px;color:var(--soft);margin:6px 0}
.plot{display:block;width:100%;min-width:640px;height:auto}
.stable{fill:var(--stable)}.tentative{fill:var(--tentative)}.control{fill:var(--control)}
.hole{fill:var(--hole);fill-opacity:.18;stroke:var(--hole);stroke-opacity:.55;stroke-width:1}
.axis{stroke:var(--soft);fill:none}.grid{stroke:var(--line);fill:none}
.mark{stroke:var(--mark);stroke-width:1.5;stroke-dasharray:5 3;fill:none}
.moment{stroke:var(--control);stroke-width:1;stroke-dasharray:1 3;fill:none}
.bound{stroke:var(--bound);stroke-width:1.5;stroke-dasharray:8 4;fill:none}
text{font-size:12px;fill:var(--soft);paint-order:stroke;stroke:var(--ground);stroke-width:4px;stroke-linejoin:round}
.name{font-weight:600}
.event{font-weight:600;fill:var(--mark)}.control-text{fill:var(--control)}.bound-text{fill:var(--bound);font-weight:600}
table{border-collapse:collapse;width:100%;font-size:14px}
th,td{text-align:left;padding:7px 12px 7px 0;border-bottom:1px solid var(--line);vertical-align:top}
.settings td{overflow-wrap:anywhere}
thead th{color:var(--soft);font-weight:500}.settings th{width:30%;font-weight:500;color:var(--soft)}
td.pass,td.fail{font-weight:600;white-space:nowrap;width:80px}
@media (max-width:640px){table{font-size:12px}th,td{padding-right:8px}td.pass,td.fail{width:auto}}
@media print{body{max-width:none;padding:0}}
"""


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
