"use strict";
// Whatever comes from the server is put into the page as text, never as markup.

const at = (id) => document.getElementById(id);
let running = null;

function element(name, text, kind) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

function tell(text, failed = false) {
  at("state").textContent = text;
  at("state").className = failed ? "failed" : "";
}

async function fetched(path, options = {}) {
  const headers = { ...options.headers };
  if (at("key").value) headers.Authorization = "Bearer " + at("key").value;
  const response = await fetch(path, { ...options, headers });
  const body = await response.json().catch(() => ({}));
  if (response.status === 401) at("access").open = true;
  if (!response.ok) throw new Error(body.error?.message ?? response.status + " " + response.statusText);
  return body;
}

function fill(list, items, make) {
  list.replaceChildren(...items.map(make));
}

function place(item) {
  const where = [item.file, item.place].filter(Boolean).join(", ");
  return [item.passage_id, where, "characters " + item.start + "-" + item.end].filter(Boolean).join("; ");
}

function evidenceItem(item) {
  const made = element("li");
  made.append(element("strong", item.title || item.passage_id), " ");
  const open = element("button", "passage", "small");
  open.type = "button";
  open.addEventListener("click", () => showPassage(item.passage_id));
  made.append(open, element("p", item.text, "text"));
  const said = Object.entries(item.metadata || {}).map(([name, value]) => name + " " + JSON.stringify(value));
  if (said.length) made.append(element("p", said.join("; "), "dim"));
  made.append(element("p", place(item) + "; score " + item.score.toFixed(3) + ": " + item.why, "dim"));
  return made;
}

// What an edge was read from is a passage, or of a knowledge base a file and line ("facts.tsv:2"), which has no passage to open.
function pathItem(path, passages) {
  const made = element("li", path.text + " ");
  const named = [...new Set(path.edges.map((edge) => edge[3]).filter(Boolean))];
  for (const id of named) {
    if (/:\d+$/.test(id) && !passages.has(id)) {
      made.append(element("span", id, "from"), " ");
      continue;
    }
    const open = element("button", id, "small");
    open.type = "button";
    open.addEventListener("click", () => showPassage(id));
    made.append(open, " ");
  }
  return made;
}

function stepItem(step, words) {
  const among = step.n_candidates && words === step.verb ? " among " + step.n_candidates.toLocaleString("en") : "";
  const made = element("li", words + among + ", " + (1000 * step.s).toFixed(1) + " ms");
  const chosen = element("ul");
  fill(chosen, step.chosen.slice(0, 16), (text) => element("li", text));
  if (step.chosen.length) made.append(chosen);
  return made;
}

function show(row) {
  const failed = row.status === "failed";
  const none = row.usage.llm_calls ? "none: the reader found no support in the evidence" : "none: no model was asked";
  const mark = row.grounding === "unstated" ? " (unsupported: the evidence does not state it)" : "";
  const said = failed ? row.error.type + ": " + row.error.message : row.answer === null ? none : row.answer + mark;
  at("answer").textContent = row.status === "retrieved" ? "not asked for: evidence only" : said;
  at("answer").className = failed ? "failed" : "";
  const used = row.usage;
  at("cost").textContent = [
    row.method,
    "LLM calls " + used.llm_calls,
    used.prompt_tokens + " prompt and " + used.generated_tokens + " generated tokens",
    "seconds: LLM " + used.llm_s.toFixed(2) + ", embedding " + used.embed_s.toFixed(3) + ", graph " + used.graph_s.toFixed(3),
    "settings " + row.config_hash,
  ].join("; ");
  const nodes = row.nodes ?? [];
  at("paths-part").hidden = !row.paths.length;
  at("nodes-part").hidden = !nodes.length;
  const passages = new Set(row.evidence.map((item) => item.passage_id));
  fill(at("paths"), row.paths, (path) => pathItem(path, passages));
  fill(at("nodes"), nodes, (node) => element("li", node.name + " [" + node.id + ", " + node.type + "] score " + node.score.toFixed(3)));
  fill(at("evidence"), row.evidence, evidenceItem);
  at("trace").replaceChildren(...row.trace.map((step, i) => stepItem(step, row.words[i])));
  at("result").hidden = false;
}

async function showPassage(id) {
  try {
    const found = await fetched("/v1/passages/" + encodeURIComponent(id));
    at("passage-title").textContent = found.title || found.passage_id;
    const whole = found.doc_id === found.passage_id ? "" : "document " + found.doc_id + "; ";
    at("passage-place").textContent = whole + place(found);
    at("passage-text").textContent = found.text;
    at("passage").showModal();
  } catch (error) {
    tell(error.message, true);
  }
}

async function ask(event) {
  event.preventDefault();
  running?.abort();
  const mine = (running = new AbortController());
  const began = performance.now();
  busy(true);
  tell("asking ...");
  try {
    const body = { question: at("question").value, method: at("method").value, words: true };
    const path = at("evidence-only").checked ? "/v1/retrieve" : "/v1/answer";
    const headers = { "Content-Type": "application/json" };
    const row = await fetched(path, { method: "POST", headers, body: JSON.stringify(body), signal: mine.signal });
    show(row);
    tell(row.status + " after " + ((performance.now() - began) / 1000).toFixed(2) + " s", row.status === "failed");
  } catch (error) {
    if (running === mine) {
      at("result").hidden = true; // it would be that of an earlier question
      tell(mine.signal.aborted ? "stopped" : error.message, !mine.signal.aborted);
    }
  } finally {
    if (running === mine) busy(false);
  }
}

function busy(yes) {
  at("stop").hidden = !yes;
  at("result").setAttribute("aria-busy", String(yes));
}

function describe(index, methods) {
  const count = (name) => (index.counts[name] ?? 0).toLocaleString("en");
  const llm = index.models.llm?.name ?? "none";
  const held = ["passages", "entities", "relations"].map((name) => count(name) + " " + name).join(", ");
  const kb = index.counts.kb_nodes ? "; knowledge base: " + count("kb_nodes") + " nodes, " + count("kb_edges") + " edges" : "";
  at("about").textContent = index.index + ": " + held + kb + "; language model: " + llm;
  const able = methods.filter((method) => method.retrieves);
  fill(at("method"), able, (method) => element("option", method.method));
  if (able.some((method) => method.method === "ppr")) at("method").value = "ppr";
  if (!index.models.llm) {
    at("evidence-only").checked = true;
    at("evidence-only").disabled = true;
  }
  const lacking = methods.filter((method) => !method.retrieves);
  at("lacking").hidden = !lacking.length;
  at("lacking-list").replaceChildren(...lacking.flatMap((method) => {
    const said = element("dd", method.missing + " ");
    if (method.run) said.append(element("code", method.run));
    return [element("dt", method.method), said];
  }));
}

async function begin() {
  try {
    const [index, { methods }] = await Promise.all([fetched("/v1/index"), fetched("/v1/methods")]);
    describe(index, methods);
    tell("");
  } catch (error) {
    at("about").textContent = "the index cannot be read";
    tell(error.message, true);
  }
}

at("form").addEventListener("submit", ask);
at("stop").addEventListener("click", () => running?.abort());
at("key").addEventListener("change", begin);
at("question").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey) {
    event.preventDefault();
    at("form").requestSubmit();
  }
});
begin();
