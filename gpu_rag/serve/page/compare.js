// One question by several methods, side by side.

import { at, button, count, fill, make } from "./dom.js";
import { GROUNDING, openPassage } from "./answer.js";
import { fetched, link } from "./server.js";

const USUAL = ["bm25", "dense", "ppr"], SHOWN = 5;
let running = null;

const chosen = () => [...at("compare-methods").querySelectorAll("input:checked")].map((box) => box.value);

function column(method) {
  const body = make("div", { "aria-busy": "true" }, make("p", { class: "dim" }, "working …"));
  return { body, card: make("article", { class: "card", "aria-label": method }, make("h2", {}, method), body) };
}

// A method's row. seen: by passage id, how many of the methods found it.
function shown(row, seconds, seen, n, where) {
  const status = row.status === "retrieved" || row.status === "failed" ? row.status : row.grounding.status;
  const passages = row.evidence.slice(0, SHOWN).map((item) => make("li", {},
    button(item.title || item.passage_id, () => openPassage(item.passage_id), { class: "plain" }),
    seen.get(item.passage_id) === n && n > 1 ? make("span", { class: "small shared" }, " all") : null));
  return [
    make("p", { class: "pill " + status }, GROUNDING[status].split(":")[0]),
    make("p", { class: "answer" }, row.status === "failed" ? row.error.message : row.answer ?? (row.support?.[0]?.text || "No answer")),
    make("p", { class: "small dim" }, `${seconds.toFixed(1)} s · ${row.usage.llm_calls ? count(row.usage.llm_calls, "model call") : "no model call"} · ${count(row.evidence.length, "passage")}, ${count(row.paths.length, "path")}`),
    make("h3", {}, "Best passages"), make("ol", {}, ...passages),
    make("p", { class: "actions" }, make("a", { class: "quiet-button", href: link("ask", { q: row.question, method: row.method, where }) }, "Open")),
  ];
}

async function ask({ q, where }, methods, known) {
  running?.abort();
  const { signal } = (running = new AbortController());
  const columns = methods.map(column);
  fill(at("columns"), ...columns.map(({ card }) => card));
  const rows = await Promise.all(methods.map(async (method, i) => {
    const began = performance.now();
    try {
      const answers = known.methods.find((one) => one.method === method)?.answers;
      const body = { question: q, method, support: true, where };
      const row = await fetched(answers ? "/v1/answer" : "/v1/retrieve", { body, signal });
      const seconds = (performance.now() - began) / 1000;
      fill(columns[i].body, ...shown(row, seconds, new Map(), methods.length, where));
      return { row, seconds };
    } catch (error) {
      if (!signal.aborted) fill(columns[i].body, make("p", { class: "remarks" }, error.message));
      return null;
    } finally {
      columns[i].body.setAttribute("aria-busy", "false");
    }
  }));
  if (signal.aborted) return;
  const seen = new Map();
  for (const { row } of rows.filter(Boolean)) for (const { passage_id } of row.evidence.slice(0, SHOWN)) seen.set(passage_id, (seen.get(passage_id) ?? 0) + 1);
  rows.forEach((one, i) => one && fill(columns[i].body, ...shown(one.row, one.seconds, seen, methods.length, where)));
}

export async function open({ q, methods, where }, known) {
  const able = known.methods.filter((one) => one.retrieves || one.answers).map((one) => one.method);
  const wanted = methods?.split(",") ?? USUAL;
  fill(at("compare-methods"), ...able.map((method) => make("label", {}, make("input", { type: "checkbox", value: method, checked: wanted.includes(method) }), " " + method)));
  if (!q) return at("compare-question").focus();
  at("compare-question").value = q;
  if (methods) await ask({ q, where }, chosen(), known);
}

at("compare-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const target = link("compare", { q: at("compare-question").value.trim(), methods: chosen().join(",") });
  if (location.hash === target) dispatchEvent(new Event("hashchange"));
  else location.hash = target;
});
