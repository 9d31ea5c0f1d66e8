// What the pages share: elements, numbers, and charts as SVG without any library.
export const $ = (id) => document.getElementById(id);

// An element with attributes and children; text is text, never markup.
export function make(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) if (value !== null && value !== false) node.setAttribute(key, value === true ? "" : value);
  node.append(...children.filter((child) => child !== null));
  return node;
}

// Makes the children of `node` those of `fresh`, keeping every element that has its like there, and with it the focus.
export function become(node, fresh) {
  const old = [...node.childNodes];
  [...fresh.childNodes].forEach((want, place) => {
    const have = old[place];
    if (!have) node.append(want);
    else if (have.nodeName !== want.nodeName) have.replaceWith(want);
    else if (have.nodeType === Node.TEXT_NODE) { if (have.data !== want.data) have.data = want.data; }
    else {
      for (const {name} of [...have.attributes]) if (!want.hasAttribute(name)) have.removeAttribute(name);
      for (const {name, value} of want.attributes) if (have.getAttribute(name) !== value) have.setAttribute(name, value);
      become(have, want);
    }
  });
  old.slice(fresh.childNodes.length).forEach((have) => have.remove());
}

const space = "http://www.w3.org/2000/svg";
function draw(parent, name, attributes, text) {
  const node = document.createElementNS(space, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return parent.appendChild(node);
}

export const say = (id, text) => { const node = $(id); if (node.textContent !== text) node.textContent = text; };
export const number = (x, digits = 3) => x === null || x === undefined ? "–" : Math.abs(x) >= 1e6 || (x !== 0 && Math.abs(x) < 1e-4) ? x.toExponential(digits - 1) : Number(x.toPrecision(digits)).toLocaleString("en", {maximumSignificantDigits: digits});
export const whole = (x) => x === null || x === undefined ? "–" : x.toLocaleString("en");
export const percent = (x, digits = 1) => x === null || x === undefined ? "–" : (100 * x).toFixed(digits) + " %";
export const up = (x, digits = 4) => x === null || x === undefined ? "–" : (Math.ceil(x * 10 ** digits * (1 - 1e-12)) / 10 ** digits).toFixed(digits);
export function size(x) {
  if (x === null || x === undefined) return "–";
  const at = Math.min(4, Math.max(0, Math.floor(Math.log10(Math.max(x, 1)) / 3)));
  return Number((x / 1000 ** at).toPrecision(4)).toLocaleString("en") + " " + ["B", "kB", "MB", "GB", "TB"][at];
}
export function time(s) {
  if (s === null || s === undefined) return "–";
  if (s < 90) return Math.ceil(s) + " s";
  return s < 5400 ? Math.ceil(s / 60) + " min" : (s / 3600).toFixed(1) + " h";
}
// A time that was measured, as exact as the log's; one that is guessed is rounded up.
export const took = (s) => s === null || s === undefined ? "–" : s < 90 ? s.toFixed(1) + " s" : time(s);

function ticks(low, high, count) {
  const raw = (high - low) / count, base = 10 ** Math.floor(Math.log10(raw)), step = base * [1, 2, 2.5, 5, 10].find((k) => k * base >= raw * (1 - 1e-9));
  const found = [];
  for (let x = Math.ceil(low / step - 1e-9) * step; x <= high + step * 1e-9; x += step) found.push(Math.abs(x) < step * 1e-9 ? 0 : x);
  return found;
}

const MOST_POINTS = 1000;  // of a line; more would be thinner than a pixel
const MOST_NAMED = 5, NAME_ROW = 13, NAME_GAP = 8;  // lines with names at their ends; pixels of a name's row, and before it
const pen = document.createElement("canvas").getContext("2d");

// Names beside the ends of lines, or up to two rows above or below; null where one would be over another, a line or a rule.
// The middle one is placed first, so that names stand in the order of their lines.
function ends(lines, X, Y, {high, low, right, rules}) {
  const wanted = lines.map((line) => { const [x, y] = line.points.at(-1); return {line, x: X(x) + NAME_GAP, y: Y(y), long: line.long}; }).sort((a, b) => a.y - b.y);
  const middle = (wanted.length - 1) / 2, placed = [];
  const above = (line, {x, y, long}) => line.points.some((p, k) => { const q = line.points[k + 1] ?? p, [a, b] = [Y(p[1]), Y(q[1])]; return X(q[0]) > x - NAME_GAP / 2 && X(p[0]) < x + long && Math.min(a, b) < y + 7 && Math.max(a, b) > y - 7; });
  const free = (each) => each.y >= high && each.y <= low && !(each.x < right && rules.some((rule) => Math.abs(Y(rule.y) - each.y) < 7)) && !placed.some((other) => Math.abs(other.y - each.y) < NAME_ROW && other.x < each.x + each.long && each.x < other.x + other.long) && !lines.some((line) => line !== each.line && above(line, each));
  for (const [each, side] of wanted.map((each, k) => [each, k - middle]).sort((a, b) => Math.abs(a[1]) - Math.abs(b[1]))) {
    const way = side < 0 ? -1 : 1, found = [0, 0.5, 1, -0.5, -1, 1.5, 2, -1.5, -2].map((rows) => ({...each, y: each.y + way * rows * NAME_ROW})).find(free);
    if (!found) return null;
    placed.push(found);
  }
  return placed;
}

// A chart in `node`: lines [{name, colour, points: [[x, y]]}] or, with `stacked`, layers of the same form.
// Arrow keys and the pointer move a cross; what is there is written to `readout`. Few lines are named at their ends where
// there is room; returns whether they are, and otherwise they need a legend.
export function chart(node, {lines, high, from, rules = [], show, stacked = false, zero = false, label, readout, height = 210, xtitle = "round"}) {
  const width = Math.max(260, node.clientWidth || 600), left = 46, top = 10, bottom = 30;
  let right = 12;
  const longest = lines.reduce((most, line) => Math.max(most, line.points.length), 1), step = Math.ceil(longest / MOST_POINTS);
  lines = lines.map((line) => ({...line, points: line.points.filter((_, place) => place % step === 0 || place === line.points.length - 1)}));
  const xs = [...new Set(lines.flatMap((line) => line.points.map((p) => p[0])))].sort((a, b) => a - b);
  const sums = new Map();
  const layers = lines.map((line) => ({...line, points: stacked ? line.points.map(([x, y]) => { const below = sums.get(x) ?? 0; sums.set(x, below + y); return [x, below + y, below, y]; }) : line.points}));
  const ys = layers.flatMap((line) => line.points.map((p) => p[1])).concat(rules.map((rule) => rule.y));
  let least = zero || stacked ? 0 : Math.min(...ys), most = Math.max(...ys);
  if (!ys.length) [least, most] = [0, 1];
  const pad = (most - least || Math.abs(most) || 1) * 0.08;
  most += pad; if (!(zero || stacked)) least -= pad;
  const first = from ?? (xs[0] ?? 0), last = Math.max(high ?? 0, xs.at(-1) ?? 1, first + 1e-9);
  const X = (x) => left + (x - first) / (last - first) * (width - left - right), Y = (y) => height - bottom - (y - least) / (most - least) * (height - top - bottom);
  let names = null;
  if (!stacked && lines.length > 1 && lines.length <= MOST_NAMED) {
    pen.font = "11px system-ui, sans-serif";
    const named = layers.filter((line) => line.points.length).map((line) => ({...line, long: pen.measureText(line.name).width}));
    const needs = named.map((line) => width - left - (width - left - NAME_GAP - 2 - line.long) * (last - first) / Math.max(line.points.at(-1)[0] - first, 1e-9));
    right = Math.max(right, ...needs);
    if (right < 0.3 * width) names = ends(named, X, Y, {high: top, low: height - bottom, right: width - right, rules});
    if (!names) right = 12;
  }
  const svg = document.createElementNS(space, "svg");
  for (const [key, value] of Object.entries({class: "plot", viewBox: `0 0 ${width} ${height}`, height, role: "img", tabindex: "0", "aria-label": label})) svg.setAttribute(key, value);
  for (const y of ticks(least, most, 5)) { draw(svg, "line", {class: "grid", x1: left, x2: width - right, y1: Y(y), y2: Y(y)}); draw(svg, "text", {x: left - 7, y: Y(y) + 4, "text-anchor": "end"}, show(y, true)); }
  for (const x of ticks(first, last, Math.min(6, width / 90))) draw(svg, "text", {x: Math.min(X(x), width - right), y: height - 12, "text-anchor": X(x) > width - 30 ? "end" : "middle"}, whole(x));
  draw(svg, "text", {x: width - right, y: height - 1, "text-anchor": "end"}, xtitle);
  for (const rule of rules) { draw(svg, "line", {class: "rule", x1: left, x2: width - right, y1: Y(rule.y), y2: Y(rule.y)}); draw(svg, "text", {x: left + 4, y: Y(rule.y) - 5}, rule.text); }
  for (const line of layers) {
    if (!line.points.length) continue;
    if (stacked) {
      const half = 0.5 * (last - first) / Math.max(xs.length - 1, 1), clamp = (x) => Math.min(Math.max(X(x), left), width - right);
      const edge = (at) => line.points.flatMap((p) => [[clamp(p[0] - half), Y(p[at])], [clamp(p[0] + half), Y(p[at])]]);
      draw(svg, "path", {d: "M" + [...edge(1), ...edge(2).reverse()].map((p) => p.map((v) => v.toFixed(1))).join("L") + "Z", style: `fill: ${line.colour}`});
    } else {
      draw(svg, "path", {class: line.points.length > 300 ? "line thin" : "line", d: "M" + line.points.map((p) => X(p[0]).toFixed(1) + "," + Y(p[1]).toFixed(1)).join("L"), style: `stroke: ${line.colour}`, ...(line.dash ? {"stroke-dasharray": line.dash} : {})});
      const end = line.points.at(-1);
      draw(svg, "circle", {cx: X(end[0]), cy: Y(end[1]), r: 3.5, style: `fill: ${line.colour}`});
    }
  }
  for (const {line, x, y} of names ?? []) draw(svg, "text", {class: "end", x, y: y + 4, style: `fill: color-mix(in srgb, ${line.colour} 55%, var(--ink))`}, line.name);
  const cross = draw(svg, "line", {class: "cross", y1: top, y2: height - bottom, x1: -9, x2: -9});
  // Values at x; a line that has none there says of which x its last one is.
  const read = (x) => {
    const found = layers.flatMap((line) => { const p = line.points.findLast((each) => each[0] <= x); return p ? [{name: lines.length > 1 ? line.name : "", at: p[0], text: show(stacked ? p[3] : p[1])}] : []; });
    if (found.every((each) => each.at === x)) return `${xtitle} ${whole(x)}: ` + found.map((each) => `${each.name} ${each.text}`.trim()).join(" · ");
    return found.map((each) => `${each.name}, ${xtitle} ${whole(each.at)}: ${each.text}`).join(" · ");
  };
  let at = xs.length - 1;
  const move = (next) => {
    if (!xs.length) return;
    at = Math.min(Math.max(next, 0), xs.length - 1);
    node.dataset.cross = xs[at];
    cross.setAttribute("x1", X(xs[at])); cross.setAttribute("x2", X(xs[at]));
    if (readout) readout.textContent = read(xs[at]);
  };
  const clear = () => { delete node.dataset.cross; cross.setAttribute("x1", -9); cross.setAttribute("x2", -9); if (readout) readout.textContent = xs.length ? read(xs.at(-1)) : ""; };
  svg.addEventListener("pointermove", (event) => { const box = svg.getBoundingClientRect(), x = first + ((event.clientX - box.left) * width / box.width - left) / (width - left - right) * (last - first); let near = 0; for (let k = 0; k < xs.length; k++) if (Math.abs(xs[k] - x) < Math.abs(xs[near] - x)) near = k; move(near); });
  svg.addEventListener("pointerleave", clear);
  svg.addEventListener("blur", clear);
  svg.addEventListener("keydown", (event) => { const step = {ArrowLeft: -1, ArrowRight: 1, PageUp: 10, PageDown: -10, Home: -1e9, End: 1e9}[event.key]; if (step) { event.preventDefault(); move(at + step); } });
  const focused = node.contains(document.activeElement), kept = xs.indexOf(Number(node.dataset.cross ?? NaN));
  node.replaceChildren(svg);
  if (focused) svg.focus({preventScroll: true});
  kept < 0 ? clear() : move(kept);
  return names !== null;
}

// Bars with names, in the order given: [{name, value, text, colour, bold}].
export function bars(node, rows) {
  const width = Math.max(260, node.clientWidth || 600), names = Math.min(150, width * 0.4), row = 28, end = 66;
  const most = Math.max(...rows.map((each) => each.value ?? 0), 1e-300);
  const svg = document.createElementNS(space, "svg");
  for (const [key, value] of Object.entries({class: "plot", viewBox: `0 0 ${width} ${row * rows.length}`, height: row * rows.length, role: "img", "aria-label": rows.map((each) => `${each.name} ${each.text}`).join(", ")})) svg.setAttribute(key, value);
  rows.forEach((each, place) => {
    const y = place * row;
    draw(svg, "text", {x: 0, y: y + 18, ...(each.bold ? {class: "name"} : {})}, each.name);
    if (each.value !== null) draw(svg, "rect", {x: names, y: y + 5, width: Math.max(2, (width - names - end) * each.value / most), height: row - 10, rx: 4, style: `fill: ${each.colour}`});
    draw(svg, "text", {x: each.value === null ? names : names + 8 + Math.max(2, (width - names - end) * each.value / most), y: y + 18, ...(each.bold ? {class: "name"} : {})}, each.text);
  });
  node.replaceChildren(svg);
}

// Calls `redraw` when the width of the page changes.
export function onResize(redraw) {
  let width = innerWidth, waiting;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; clearTimeout(waiting); waiting = setTimeout(redraw, 100); } });
}
