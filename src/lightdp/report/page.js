const {shared, charts} = JSON.parse(document.getElementById("specs").textContent);  // as _packed.py writes them
const rows = columns => Object.values(columns)[0].map((_, at) =>
  Object.fromEntries(Object.entries(columns).map(([name, values]) => [name, values[at]])));
function whole(part) {
  if (part === null || typeof part !== "object") return part;
  if (Array.isArray(part)) return part.map(whole);
  if ("#" in part) return whole(shared[part["#"]]);
  if ("*" in part) return part["*"].flatMap((value, at, all) => at % 2 ? [] : Array(all[at + 1]).fill(whole(value)));
  const found = Object.fromEntries(Object.entries(part).map(([name, inner]) => [name, whole(inner)]));
  return "$" in found ? rows(found.$) : found;
}
for (const [id, spec] of Object.entries(charts))
  vegaEmbed("#" + id, whole(spec), {actions: false, renderer: "svg"});
