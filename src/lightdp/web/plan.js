// The planner: sliders and fields make a query, Python answers it. Nothing is computed here but positions of sliders.
import {$, bars, chart, make, number, onResize, percent, say, size, whole} from "./ui.js";

const form = $("form"), fields = [...form.querySelectorAll("[name]")], start = new Map(fields.map((field) => [field.name, field.value]));
const colour = (scheme) => `var(--scheme-${scheme})`;
let answer = null, others = null, chosen = null, copied = "command", refused = false;

// --- sliders
const sliderOf = (field) => $(field.name + "-slider");
function toValue(slider) {
  const {low, high, kind, log} = slider.dataset, share = slider.value / 1000;
  const x = log === undefined ? +low + share * (high - low) : low * (high / low) ** share;
  return kind === "int" ? String(x > 2000 ? +x.toPrecision(2) : Math.round(x)) : String(+x.toPrecision(x < 0.01 ? 1 : 3));
}
function toPosition(slider, text) {
  const {low, high, log} = slider.dataset, x = Math.min(Math.max(Number(text), +low), +high);
  slider.value = text === "" ? 0 : log === undefined ? 1000 * (x - low) / (high - low) : 1000 * Math.log(x / low) / Math.log(high / low);
}
function place(field) {
  const slider = sliderOf(field);
  if (!slider) return;
  if (["colluders", "stragglers"].includes(field.name)) slider.dataset.high = Math.max(1, Math.min(200000, Number($("clients").value) - 2 || 1));
  toPosition(slider, field.value);
  slider.setAttribute("aria-valuetext", field.value === "" ? "none" : field.value);
}

// --- the query holds the whole request, also fields that were emptied; one that it does not name has its starting value
const query = () => new URLSearchParams(fields.filter((field) => field.value.trim() !== "" || start.get(field.name) !== "").map((field) => [field.name, field.value.trim()]));
function fill(text) {
  const given = new URLSearchParams(text);
  for (const field of fields) {
    field.value = given.get(field.name) ?? start.get(field.name);
    if (field.tagName === "SELECT" && field.selectedIndex < 0) field.append(make("option", {selected: true}, given.get(field.name)));
  }
  fields.forEach(place);
}

// --- one request at a time, for the newest settings; an answer to older ones is dropped
let busy = false, again = false, version = 0, waiting;
function changed(delay = 30) {
  version += 1;
  clearTimeout(waiting);
  waiting = setTimeout(ask, delay);
}
async function ask() {
  if (busy) { again = true; return; }
  busy = true; again = false;
  const own = version, text = query().toString(), began = performance.now();
  $("answer").setAttribute("aria-busy", "true");
  history.replaceState(null, "", "/plan?" + text);
  try {
    const found = await get("/api/plan?" + text);
    if (own === version) { show(found, performance.now() - began); $("answer").dataset.query = text; $("answer").setAttribute("aria-busy", "false"); }
    if (own === version && !found.error) askOthers();
  } catch {
    if (own === version) refuse("The server does not answer: is lightdp ui still running?", null);
  }
  busy = false;
  if (again || own !== version) ask();
}
let comparing = false;
async function askOthers() {
  if (comparing) return;
  comparing = true;
  const own = version;
  try {
    const more = await get("/api/others?" + query());
    if (own === version && !more.error) { others = more; showOthers(); }
  } catch { /* the plan says that the server is gone */ }
  comparing = false;
  if (own !== version) askOthers();
}
async function get(path) {
  const reply = await fetch(path, {headers: {accept: "application/json"}});
  if (reply.status === 403) return {error: "The link has expired: open the one that lightdp ui prints.", field: null};
  return reply.json();
}

function refuse(error, name) {
  for (const field of fields) {
    field.setAttribute("aria-invalid", String(field.name === name));
    say(field.name + "-error", field.name === name ? error : "");
  }
  say("error", name ? "" : error);
  refused = error !== "";
  $("answer").classList.toggle("stale", refused);
  say("stale", refused && answer ? "There is no plan for these settings. What is shown below is for earlier ones." : "");
  if (refused) { say("brief", "no plan for these settings"); say("said", ""); }
  showCopy();
}

function show(found, took) {
  if (!found.error) answer = found;
  refuse(found.error ?? "", found.error ? found.field : null);
  if (found.error) return;
  const plan = found.plan;
  say("mu", found.mu); say("epsilon-shown", found.epsilon); say("delta-shown", String(plan.delta));
  say("unit-shown", plan.unit === "client" ? "all data of one client" : "one record");
  say("sampled", found.sampled ?? "");
  say("power", found.power); say("attacker", found.attacker);
  $("power-bar").style.width = found.power + "%";
  say("ratio", found.ratio === null ? "–" : "× " + number(found.ratio));
  say("ratio-words", found.ratio === null ? "Give the number of parameters." : `norm of a round’s noise over the largest mean update${plan.unit === "record" && plan.records === null ? " of clients with one record" : ""}: ${found.ratio <= 0.3 ? "quiet" : found.ratio <= 1 ? "audible" : "louder than the signal"}`);
  say("upload", size(found.upload)); say("bits", String(found.bits));
  say("received", found.received === null ? "" : `the server gets ${size(found.received)}`);
  say("sigma-u", number(plan.sigma_individual, 4)); say("sigma-k", number(plan.sigma_pairwise, 4)); say("multiplier", number(plan.noise_multiplier, 4));
  say("std", number(found.std, 4)); say("residual", number(found.residual, 4)); say("norm", number(found.norm, 4));
  say("peers", whole(found.peers)); say("masks", found.masks ? `${whole(found.masks)}, ${plan.masks}` : whole(found.masks)); say("turns", whole(found.turns));
  say("why", plan.why ? plan.why[0].toUpperCase() + plan.why.slice(1) + "." : "");
  say("took", took.toFixed(0));
  say("brief", `μ ${found.mu} · noise × ${number(found.ratio)} · ${size(found.upload)}`);
  say("said", `μ ${found.mu}, noise ${number(found.std)}, upload ${size(found.upload)}`);
  showMeasured();
}

function showOthers() {
  bars($("schemes-chart"), others.schemes.map((row) => ({name: row.title, value: row.noise_in_mean, bold: row.chosen, colour: colour(row.scheme), text: row.noise_in_mean === null ? "impossible" : number(row.noise_in_mean)})));
  say("trusting", others.schemes.filter((row) => !row.private).map((row) => row.title).join(" and "));
  $("schemes").tBodies[0].replaceChildren(...others.schemes.map((row) => make("tr", row.chosen ? {class: "differs"} : {},
    make("th", {scope: "row"}, row.cells[0]), ...row.cells.slice(1, -1).map((text) => make("td", {}, text)), make("td", {class: "word"}, row.cells.at(-1)))));
  $("members").hidden = !others.members.length;
  $("members").querySelector("tbody").replaceChildren(...others.members.map((row) => make("tr", {}, make("th", {scope: "row"}, row.title), make("td", {}, row.reason ?? whole(row.turns)), make("td", {}, row.reason ? "" : number(row.noise_in_mean, 4)))));
  say("page", others.page);
  say("advice", others.advice ? others.advice[0].toUpperCase() + others.advice.slice(1) + "." : "");
}

function showMeasured() {
  const models = [...new Set(answer.measured.map((each) => each.model))].sort((a, b) => (b === "scattering-linear") - (a === "scattering-linear"));
  const model = chosen ?? answer.model;
  $("models").replaceChildren(...models.map((name) => { const button = make("button", {type: "button", "aria-pressed": String(name === model)}, name); button.addEventListener("click", () => { chosen = name; showMeasured(); $("models").querySelector("[aria-pressed=true]").focus(); }); return button; }));
  const shown = answer.measured.filter((each) => each.model === model), one = shown[0];
  say("measured-words", `Mean over seeds of trainings on ${one.data} (${one.partition}, ${one.clients} clients, ${one.rounds} rounds, sampling rate ${one.sampling_rate}, unit record), at the measured ε nearest to yours, ${one.epsilon}, and the nearest shares of colluders and stragglers. Your data and model will differ.`);
  chart($("measured-chart"), {lines: shown.map((each) => ({name: each.label, colour: colour(each.scheme), dash: each.scheme === "central" ? "6 4" : "", points: each.curve})), from: 0, show: (y, short) => percent(y, short ? 0 : 1), label: "Measured accuracy against rounds: " + shown.map((each) => `${each.label} ${percent(each.accuracy)}`).join(", ")});
  $("measured-legend").replaceChildren(...shown.map((each) => { const dot = make("i"); dot.style.background = colour(each.scheme); return make("li", {}, dot, `${each.label}: ${percent(each.accuracy)} (C̄ ${each.colluders}, S̄ ${each.stragglers}, ${each.trials} ${each.trials === 1 ? "trial" : "trials"})`); }));
}

function showCopy() {
  if (!answer) return;
  say("text", answer.copy[copied] ?? "Only compared with: lightdp.flower does not deploy this calibration.");
  $("copy").disabled = refused || answer.copy[copied] === null;
  for (const button of document.querySelectorAll("[data-copy]")) button.setAttribute("aria-pressed", String(button.dataset.copy === copied));
}
async function copy(text) {
  try { await navigator.clipboard.writeText(text); say("copied", "copied"); } catch { say("copied", "select the text and copy it"); }
  setTimeout(() => say("copied", ""), 3000);
}

for (const field of fields) {
  field.addEventListener("input", () => { fields.forEach(place); changed(field.tagName === "SELECT" ? 0 : 150); });
  sliderOf(field)?.addEventListener("input", (event) => { field.value = toValue(event.target); event.target.setAttribute("aria-valuetext", field.value); if (field.name === "clients") ["colluders", "stragglers"].forEach((name) => place($(name))); changed(); });
}
form.addEventListener("submit", (event) => { event.preventDefault(); changed(0); });
for (const button of document.querySelectorAll("[data-copy]")) button.addEventListener("click", () => { copied = button.dataset.copy; showCopy(); });
$("copy").addEventListener("click", () => copy($("text").textContent));
$("link").addEventListener("click", () => copy(location.href));
$("helps").addEventListener("change", (event) => form.classList.toggle("helps", event.target.checked));
$("reset").addEventListener("click", () => { fill(""); changed(0); });
addEventListener("popstate", () => { fill(location.search); changed(0); });
onResize(() => { if (answer) showMeasured(); if (others) showOthers(); });
fill(location.search);
ask();
