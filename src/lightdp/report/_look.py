"""How the page of runs looks: on screens wide and small, light and dark, and on paper."""

from lightdp.report._style import FONT

CSS = """
:root { color-scheme: light dark; --ink: #0f172a; --soft: #526077; --line: #e2e8f0; --page: #f6f8fb; --card: #fff;
  --accent: #2563eb; --warn: #92400e; --warn-page: #fffbeb; --warn-line: #fcd34d; --bad: #b91c1c; --lift: none; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8edf5; --soft: #9fb0c7; --line: #2a3750; --page: #0b1220;
  --card: #131d30; --accent: #7aa7ff; --warn: #fcd34d; --warn-page: #2a2110; --warn-line: #7c5e12; --bad: #fca5a5;
  --lift: brightness(1.45) saturate(.9); } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); line-height: 1.5; font: 15px/1.5 FONT; }
main { max-width: 1200px; margin: 0 auto; padding: 40px 24px 64px; }
header p { margin: 0; color: var(--soft); }
header .mark { color: var(--accent); font-weight: 650; letter-spacing: .02em; }
h1 { font-size: clamp(26px, 4vw, 38px); line-height: 1.15; letter-spacing: -.02em; margin: 4px 0 6px; }
h2 { font-size: 20px; letter-spacing: -.01em; margin: 44px 0 14px; }
h3 { font-size: 15px; margin: 0; overflow-wrap: anywhere; }
.grid { display: grid; gap: 16px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 205px), 1fr)); }
.cards { margin-top: 28px; }
.card, .statements article, figure, .scroll { background: var(--card); border: 1px solid var(--line);
  border-radius: 12px; }
.card, .statements article { padding: 16px 18px; }
.card p { margin: 0; color: var(--soft); font-size: 13.5px; }
.card p b { color: var(--ink); }
.card .big { font-size: 34px; font-weight: 680; letter-spacing: -.02em; line-height: 1.25; color: var(--ink);
  font-variant-numeric: tabular-nums; }
.statements { grid-template-columns: repeat(auto-fit, minmax(min(100%, 330px), 1fr)); }
.statements p { margin: 8px 0 0; overflow-wrap: anywhere; }
.swatch { width: 26px; height: 8px; margin-right: 8px; vertical-align: middle; filter: var(--lift); }
.swatch line { stroke-width: 4; }
aside { margin-top: 16px; padding: 14px 18px; border: 1px solid var(--warn-line); border-radius: 12px;
  background: var(--warn-page); color: var(--warn); }
aside h2 { margin: 0 0 4px; font-size: 15px; }
aside ul { margin: 0; padding-left: 20px; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; margin-bottom: 16px; }
.charts .scroll { flex: 1 1 0; min-width: 0; margin: 0; align-self: flex-start; }
table { border-collapse: collapse; width: 100%; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { padding: 9px 10px; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th[scope=row] { white-space: normal; min-width: 150px; overflow-wrap: anywhere; }
tbody tr:last-child > * { border-bottom: 0; }
thead th { color: var(--soft); font-weight: 550; }
th:first-child, .word, .settings th, .settings td { text-align: left; }
th[scope=row] { font-weight: 600; }
.settings th[scope=row] { font-weight: 450; color: var(--soft); width: 1%; white-space: nowrap; }
.settings td { white-space: normal; overflow-wrap: anywhere; }
.settings th, .settings td { padding: 5px 12px; }
.differs td { font-weight: 650; }
.bad { color: var(--bad); font-weight: 650; }
.note { color: var(--soft); font-size: 13.5px; margin: 0 0 14px; max-width: 120ch; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 6px 22px; margin: 0 0 14px; padding: 0; }
.charts { display: flex; flex-wrap: wrap; gap: 16px; }
figure { margin: 0; padding: 16px 18px 10px; min-width: 0; break-inside: avoid; flex: 1 1 min(100%, 440px); }
figure.wide { flex-basis: 100%; }
figure.small { flex-basis: min(100%, 330px); }
figcaption p { margin: 0 0 8px; color: var(--soft); font-size: 13px; }
.chart { width: 100%; }
.chart svg { display: block; max-width: 100%; height: auto; }
.chart svg text { fill: var(--soft) !important; }
.chart svg .role-axis-grid line { stroke: var(--line) !important; }
.chart svg .mark-line path, .chart svg .mark-symbol.role-mark path, .chart svg .mark-rect path { filter: var(--lift); }
.chart svg .mark-symbol.role-mark path:hover { opacity: .6; }
#vg-tooltip-element.vg-tooltip { background: var(--card); color: var(--ink); border: 1px solid var(--line);
  border-radius: 8px; font: 12.5px/1.4 FONT; }
#vg-tooltip-element.vg-tooltip table tr td.key { color: var(--soft); border: 0; padding: 1px 6px; }
#vg-tooltip-element.vg-tooltip table tr td.value { border: 0; padding: 1px 6px; text-align: left; max-width: none; }
footer { color: var(--soft); font-size: 13px; margin-top: 40px; }
@media print { :root { --ink: #000; --soft: #444; --line: #ccc; --page: #fff; --card: #fff; --accent: #1d4ed8;
  --warn: #000; --warn-page: #fff; --warn-line: #999; --bad: #b91c1c; --lift: none; color-scheme: light; }
  body { font-size: 11px; } main { padding: 0; max-width: none; } .scroll { overflow: visible; }
  table { font-size: 8.5px; } th, td, .settings th, .settings td { padding: 3px 4px; } th[scope=row] { min-width: 0; }
  .swatch { width: 14px; margin-right: 4px; } .card .big { font-size: 24px; } .card p, .note { font-size: 10.5px; }
  .card, .statements article, tr { break-inside: avoid; } h2 { break-after: avoid; margin-top: 24px; }
  .statements { grid-template-columns: repeat(auto-fit, minmax(200px, 1fr)); }
  .grid { grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); } figure { flex-basis: 40%; }
  figure.small { flex-basis: 30%; } }
""".replace("FONT", FONT)

DRAW = """
for (const [id, spec] of Object.entries(JSON.parse(document.getElementById("specs").textContent)))
  vegaEmbed("#" + id, spec, {actions: false, renderer: "svg"});
"""

# The policy forbids every request; drawing compiles expressions of the charts, hence 'unsafe-eval'.
PAGE = """<!doctype html>
<html lang=en>
<head>
<meta charset=utf-8>
<meta http-equiv=Content-Security-Policy content="default-src 'none'; style-src 'unsafe-inline'; \
script-src 'unsafe-inline' 'unsafe-eval'">
<meta name=viewport content="width=device-width, initial-scale=1">
<title>{title} · lightdp</title>
<style>{css}</style>
</head>
<body>
<main>
<header><p class=mark>lightdp</p><h1>{title}</h1><p>{summary}</p></header>
<section class="cards grid">
{cards}
</section>
{caveats}
<h2>The runs</h2>
<div class=scroll>{table}</div>
<p class=note>Accuracy is that of the final model on the test set, not the best one seen. ε true is what the client \
that spent most has spent, rounded up; ε claimed is the budget. Noise is the std that a round leaves in a coordinate \
of the mean for good, root mean square over the rounds. Up and down: bytes of one client in one round.</p>
<h2>What was guaranteed to whom</h2>
<section class="statements grid">
{statements}
</section>
<h2>Round by round</h2>
{legend}
<noscript><p class=bad>The charts need JavaScript; the tables and statements do not.</p></noscript>
<section class=charts>
{figures}
</section>
<h2>Settings</h2>
<section class=charts>
{settings}
</section>
<footer>This file holds everything it shows and asks no server for anything.</footer>
</main>
<script type="application/json" id=specs>{specs}</script>
<script>{vega}</script>
</body>
</html>
"""
