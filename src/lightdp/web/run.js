// Runs as they go on. The server says what is new; a round that comes again replaces what is here of it.
import {$, become, chart, make, number, onResize, percent, say, time, took, up, whole} from "./ui.js";

const names = JSON.parse($("names").textContent), many = names.length > 1;
const STATES = {running: "running", finished: "finished", quiet: "no end recorded", damaged: "damaged", starting: "starting", gone: "waiting for the log"};
const [FATES, WHERE] = JSON.parse($("kinds").textContent);  // words and colour, as on pages of lightdp report
const runs = names.map((name) => ({name, rows: new Map(), facts: {name, status: "gone"}}));
const query = new URLSearchParams(names.map((name) => ["run", name]));
let source, last = "", stopped = false;

// --- the connection: taken up again after the last event, closed while the page is not seen
function connect() {
  source?.close();
  source = new EventSource("/api/events?" + query + (last ? "&after=" + encodeURIComponent(last) : ""));
  source.onmessage = (event) => { last = event.lastEventId; stopped = false; take(JSON.parse(event.data)); };
  source.addEventListener("stop", () => { stopped = true; say("connection", "The server has ended; this page keeps what it has shown, and continues if the server comes back."); });
  source.onerror = () => { if (!stopped) say("connection", "The server does not answer; trying again …"); if (source.readyState === EventSource.CLOSED) setTimeout(() => document.hidden || connect(), 1500); };
}
document.addEventListener("visibilitychange", () => document.hidden ? source?.close() : connect());

function take({runs: found, warnings}) {
  found.forEach((each, place) => {
    const run = runs[place];
    if (each.reset) run.rows.clear();
    for (const row of each.rows) run.rows.set(row.round, row);
    run.facts = each.figures;
  });
  $("warnings").hidden = !warnings.length;
  $("warnings").querySelector("ul").replaceChildren(...warnings.map((text) => make("li", {}, text)));
  if (!many) $("warnings").querySelector("h2").textContent = "Notes";
  const live = runs.some((run) => ["running", "starting", "gone"].includes(run.facts.status));
  say("connection", live ? "Live." : runs.some((run) => run.facts.status === "quiet") ? "No new line for a while; this page continues when there is one." : "");
  requestAnimationFrame(draw);
}

const sorted = (run) => [...run.rows.values()].sort((a, b) => a.round - b.round);
const card = (head, big, words, share, over) => {
  const node = make("article", {class: "card"}, make("h3", {}, head), make("p", {class: "big"}, big), make("p", {}, words));
  if (share !== undefined && share !== null) { const meter = make("div", {class: "meter" + (over ? " over" : ""), role: "img", "aria-label": `${Math.round(100 * share)} %`}, make("i")); meter.firstChild.style.width = Math.min(100, 100 * share) + "%"; node.append(meter); }
  return node;
};

function head(run) {
  const f = run.facts, title = make("h2", many ? {} : {class: "vh"}, run.name);
  if (many) { const dot = make("i", {class: "dot"}); dot.style.background = f.colour ?? "var(--soft)"; title.prepend(dot); }
  const button = make("button", {type: "button", class: many ? null : "primary", "data-audit": run.name, "aria-disabled": String(f.rounds === undefined || auditing.has(run.name))}, auditing.has(run.name) ? "Auditing …" : "Audit");
  const own = new URLSearchParams([["run", run.name]]), links = [["CSV", "/runs/csv"], ["Log", "/runs/log"], ["Model", "/runs/model"], ["Report", "/runs/report"]];
  const line = make("div", {class: "head"}, title, make("span", {class: "state " + f.status}, STATES[f.status]), make("div", {class: "tabs"}, ...links.map(([text, path]) => make("a", {class: "button", href: path + "?" + own, hidden: text === "Model" && !f.model, ...(text === "Report" ? {target: "_blank", rel: "noopener"} : {})}, text)), button));
  if (f.rounds === undefined) return [line, make("p", {class: "error"}, f.error ?? "")];
  const u = f.uploads, all = u.used + u.next + u.late + u.void + u.lost, rows = sorted(run), now = rows.at(-1);
  const cards = make("section", {class: "cards grid", "aria-label": run.name},
    card("Accuracy", percent(f.accuracy), `${f.status === "finished" ? "of the final model, " : ""}on the test set${f.loss === null ? "" : `; loss ${number(f.loss)} at round ${whole(f.loss_round)}`}`),
    f.private ? card("Privacy spent", "ε = " + (f.epsilon_text ?? "–"), `of ${number(f.budget)} at δ = ${f.delta}${f.gdp ? "" : ", batches sampled"}`, f.epsilon === null ? null : f.epsilon / f.budget, f.exceeds) : card("Privacy spent", "∞", "no noise: nothing is guaranteed to anybody"),
    f.private ? card(f.gdp ? "μ" : "μ at this δ", f.mu_text ?? "–", `of ${up(f.mu_budget)} in the budget`, f.mu === null ? null : f.mu / f.mu_budget, f.exceeds) : null,
    card("Round", f.total ? `${whole(f.rounds)} / ${whole(f.total)}` : whole(f.rounds), f.status === "running" ? (f.left === null ? "time left: not known yet" : `about ${time(f.left)} left`) : f.stopped ? `ended early: ${f.stopped}` : f.seconds !== null ? `took ${took(f.seconds)}` : "no end recorded", f.total ? f.rounds / f.total : null),
    card("Uploads", all ? percent((u.used + u.next) / all) : "–", all ? `used; ${whole(u.late)} too late, ${u.void ? `${whole(u.void)} in void rounds, ` : ""}${whole(u.lost)} lost of ${whole(all)}` : "none yet"),
    card("Noise", number(f.noise), `std in the mean that stays${f.status !== "finished" && now && now.goes !== null ? `; residual ${number(now.goes)} until repaired` : ""}`));
  const what = [f.scheme, f.data, f.model_name, f.clients ? `${whole(f.clients)} clients` : null, `${whole(f.parameters)} parameters`].filter(Boolean).join(" · ");
  return [line, ...f.not_private.map((text) => make("p", {class: "error"}, text)), make("p", {class: "note"}, what), cards, f.error ? make("p", {class: "error"}, f.error) : null];
}

// --- charts: made once, drawn again when something is new
const panels = new Map(), jobs = [];  // panels are all there before the first is drawn, since they share the width
const reach = (run) => { const done = run.rows.size, total = run.facts.total ?? done; return done > total / 2 ? total : Math.min(total, Math.max(10, 2 * done)); };
function panel(key, title, note) {
  if (!panels.has(key)) {
    const place = make("div"), readout = make("p", {class: "readout"}), legend = make("ul", {class: "legend"}), words = make("p");
    const figure = make("figure", {}, make("figcaption", {}, make("div", {}, make("h3", {}, title), words), readout), place, legend);
    $("charts").append(figure);
    panels.set(key, {place, readout, legend, figure, words});
  }
  const found = panels.get(key);
  if (found.words.textContent !== note) found.words.textContent = note;
  return found;
}
function legend(node, entries) {
  node.replaceChildren(...entries.map(([text, colour]) => { const dot = make("i"); dot.style.background = colour; return make("li", {}, dot, text); }));
}
function lines(key, title, note, value, options) {
  const drawn = runs.map((run) => ({name: run.name, colour: run.facts.colour ?? "var(--soft)", dash: run.facts.dash, points: sorted(run).filter((row) => row[value] !== null && row[value] !== undefined).map((row) => [row.round, row[value]])}));
  if (!drawn.some((line) => line.points.length)) return;
  const {place, readout, legend: names} = panel(key, title, note), high = Math.max(...runs.map(reach), 1);
  const text = drawn.filter((line) => line.points.length).map((line) => `${line.name} ${options.show(line.points.at(-1)[1])}`).join(", ");
  jobs.push(() => { const named = chart(place, {lines: drawn, high, from: 1, readout, label: `${title}: ${text}`, ...options}); if (many) legend(names, named ? [] : drawn.map((line) => [line.name, line.colour])); });
}
function stacked(key, title, note, run, kinds) {
  const rows = sorted(run), used = Object.keys(kinds).filter((kind) => rows.some((row) => row[kind] > 0));
  if (!rows.length || !used.length) return;
  const {place, readout, legend: names} = panel(key, title, note);
  jobs.push(() => chart(place, {lines: used.map((kind) => ({name: kinds[kind][0], colour: kinds[kind][1], points: rows.map((row) => [row.round, row[kind] ?? 0])})), high: reach(run), from: 1, stacked: true, readout, show: (y) => whole(y), height: 170, label: `${title}, last round: ` + used.map((kind) => `${rows.at(-1)[kind]} ${kinds[kind][0]}`).join(", ")}));
  legend(names, used.map((kind) => [kinds[kind][0], kinds[kind][1]]));
}

let saidAt = 0;
function draw() {
  become($("heads"), make("div", {}, ...runs.flatMap(head).filter(Boolean)));
  const budgets = (key, show) => [...new Set(runs.map((run) => run.facts[key]).filter((x) => x !== null && x !== undefined))].map((y) => ({y, text: `budget ${show(y)}`}));
  lines("accuracy", "Test accuracy", "after each round that was evaluated", "accuracy", {show: (y, short) => percent(y, short ? 1 : 2)});
  lines("epsilon", "Privacy spent, ε", "by the client that spent most", "epsilon", {show: (y, short) => short ? number(y) : up(y), zero: true, rules: budgets("budget", (y) => number(y, 4))});
  lines("loss", "Test loss", "after each round that was evaluated", "loss", {show: (y) => number(y)});
  lines("mu", "Privacy spent, μ", runs.every((run) => run.facts.gdp) ? "the training so far is μ-GDP" : "of Gaussian noise with this ε at this δ", "mu", {show: (y, short) => short ? number(y) : up(y), zero: true, rules: budgets("mu_budget", (y) => up(y))});
  runs.forEach((run, place) => stacked(`uploads-${place}`, many ? `Uploads: ${run.name}` : "Uploads", "what became of them, round by round", run, FATES));
  const empty = runs.filter((run) => run.facts.noise > 0).flatMap(sorted).filter((row) => row.used === 0 && row.stays === 0).length;
  lines("stays", "Noise that stays, std", "in a coordinate of the mean, for good" + (empty ? `; 0 in ${whole(empty)} round${empty === 1 ? "" : "s"} that added no upload to the mean` : ""), "stays", {show: (y) => number(y), zero: true});
  lines("goes", "Residual until repaired, std", "shared with missing clients: 0 where all came or no upload was used, gone once they are repaired", "goes", {show: (y) => number(y), zero: true});
  runs.forEach((run, place) => { if (run.facts.federated) stacked(`members-${place}`, many ? `Members: ${run.name}` : "Members", `${whole(run.facts.population)} clients`, run, WHERE); });
  jobs.splice(0).forEach((job) => job());
  become($("statements"), make("div", {}, ...runs.flatMap((run) => run.facts.statement?.length ? [make("h2", {}, many ? `Guaranteed: ${run.name}` : "What was guaranteed to whom"), make("div", {class: "panel"}, ...run.facts.statement.concat(run.facts.notes).map((text) => make("p", {}, text)))] : [])));
  numbers();
  if (performance.now() - saidAt > 5000) { saidAt = performance.now(); say("said", runs.map(({facts: f}) => f.rounds === undefined ? "" : `${f.name}: round ${f.rounds}, accuracy ${percent(f.accuracy)}, ε ${f.epsilon_text ?? "–"}, ${STATES[f.status]}`).join("; ")); }
}
function numbers() {
  if (!$("numbers").open) return;
  const heads = [...(many ? ["run"] : []), "round", "accuracy", "loss", "ε", "μ", ...Object.values(FATES).map(([text]) => text), "noise std"];
  const table = $("numbers").querySelector("table");
  table.tHead.replaceChildren(make("tr", {}, ...heads.map((text) => make("th", {scope: "col"}, text))));
  table.tBodies[0].replaceChildren(...runs.flatMap((run) => sorted(run).slice(-30).reverse().map((row) => make("tr", {}, ...[...(many ? [run.name] : []), whole(row.round), percent(row.accuracy, 2), number(row.loss), up(row.epsilon), up(row.mu), ...Object.keys(FATES).map((kind) => whole(row[kind])), number(row.stays)].map((text) => make("td", {}, text))))));
}
$("numbers").addEventListener("toggle", numbers);

// --- the audit: lightdp audit of the log
const auditing = new Set();
$("heads").addEventListener("click", ({target}) => { const button = target.closest("[data-audit][aria-disabled=false]"); if (button) audit(button.dataset.audit); });
async function audit(name) {
  auditing.add(name); draw();
  let found;
  try { found = await (await fetch("/api/audit?" + new URLSearchParams([["run", name]]), {method: "POST"})).json(); } catch { found = {error: "The server does not answer."}; }
  auditing.delete(name); draw();
  const both = (each) => each === null || each === undefined ? "–" : Array.isArray(each) ? each.map(both).join(" to ") : typeof each === "object" ? `ε ${up(each.epsilon)}${each.mu === null || each.mu === undefined ? "" : `, μ ${up(each.mu)}`}` : String(each);
  const facts = found.error ? [] : [["budget", both(found.budget)], ["as the log says", both(found.logged)], ["recomputed", both(found.recomputed ?? found.between)], ["exact, of what was sent", both(found.exact)]];
  const verdict = found.error ? found.error : found.verdict ?? (found.holds ? "holds" : "does not hold");
  const node = make("section", {class: "panel", "data-audited": name, tabindex: "-1"}, make("h2", {}, "Audit of " + name), make("p", {class: found.error || !found.holds ? "bad" : "good"}, verdict[0].toUpperCase() + verdict.slice(1) + "."),
    make("dl", {}, ...facts.flatMap(([text, value]) => [make("dt", {}, text), make("dd", {}, value)])), make("ul", {}, ...[...(found.problems ?? []), ...(found.notes ?? [])].map((text) => make("li", {}, text))), make("p", {class: "note"}, "The same as ", make("code", {}, `lightdp audit ${name}`)));
  document.querySelector(`[data-audited="${CSS.escape(name)}"]`)?.remove();
  $("audits").append(node);
  node.scrollIntoView({block: "nearest"});
}

onResize(draw);
connect();
