// The logs of the folder, asked for again while the page is seen.
import {$, make, number, percent, say, time, took, up, whole} from "./ui.js";

const chosen = new Set();
const STATES = {running: "running", finished: "finished", quiet: "no end recorded", damaged: "damaged", starting: "starting", gone: "gone"};
const link = (path, names) => path + "?" + new URLSearchParams(names.map((name) => ["run", name]));

function card(run) {
  const box = make("input", {type: "checkbox", "aria-label": `select ${run.name}`, ...(chosen.has(run.name) ? {checked: ""} : {})});
  box.addEventListener("change", () => { box.checked ? chosen.add(run.name) : chosen.delete(run.name); buttons(); });
  const head = make("h3", {}, make("span", {}, box, make("a", {href: link("/runs/view", [run.name])}, run.name)), make("span", {class: "state " + run.status}, STATES[run.status]));
  if (run.rounds === undefined) return make("li", {}, head, make("p", {class: "error"}, run.error ?? ""));
  const facts = [["accuracy", percent(run.accuracy)], ["round", run.total ? `${whole(run.rounds)} / ${whole(run.total)}` : whole(run.rounds)], ["ε spent", run.private ? `${up(run.epsilon)} of ${number(run.budget)}` : "∞"], run.status === "running" ? ["time left", time(run.left)] : ["took", took(run.seconds)]];
  const meter = make("div", {class: "meter" + (run.exceeds ? " over" : ""), role: "img", "aria-label": run.private && run.epsilon !== null ? `${Math.round(100 * run.epsilon / run.budget)} % of the budget spent` : "no budget"}, make("i"));
  meter.firstChild.style.width = run.private && run.epsilon !== null ? Math.min(100, 100 * run.epsilon / run.budget) + "%" : "0";
  return make("li", {}, head, ...run.not_private.map((text) => make("p", {class: "error"}, text)), make("p", {class: "note"}, [run.scheme, run.data, run.model_name, run.clients ? `${whole(run.clients)} clients` : null].filter(Boolean).join(" · ")), make("dl", {}, ...facts.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)])), meter, run.error ? make("p", {class: "error"}, run.error) : null);
}

function buttons() {
  $("compare").disabled = chosen.size < 2 || chosen.size > 8;
  say("count", chosen.size ? `${chosen.size} selected` : "Select two to eight runs to lay them over each other.");
}

let before = "";
async function refresh() {
  try {
    const reply = await fetch("/api/runs");
    if (!reply.ok) throw new Error();
    const {runs} = await reply.json(), text = JSON.stringify(runs);
    say("error", "");
    if (text !== before) {
      const focus = document.activeElement?.getAttribute("aria-label") ?? document.activeElement?.getAttribute("href");
      $("runs").replaceChildren(...runs.map(card));
      if (focus) [...$("runs").querySelectorAll("input, a")].find((node) => [node.getAttribute("aria-label"), node.getAttribute("href")].includes(focus))?.focus();
      $("none").hidden = runs.length > 0;
      if (!before) say("said", `${runs.length} runs`);
      before = text;
    }
  } catch { say("error", "The server does not answer: is lightdp ui still running?"); }
  setTimeout(refresh, document.hidden ? 10000 : 1500);
}
$("compare").addEventListener("click", () => { location.href = link("/runs/view", [...chosen]); });
buttons();
refresh();
