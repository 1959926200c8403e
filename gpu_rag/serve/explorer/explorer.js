"use strict";
// Whatever comes from the server is put into the page as text, never as markup, its control characters as escapes.

const at = (id) => document.getElementById(id);
const OBEYED = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/g;
const visible = (text) => text.replace(OBEYED, (found) => "\\u" + found.charCodeAt(0).toString(16).padStart(4, "0"));
let running = null;
let shown = null; // the row on the page

function element(name, text, kind) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = visible(text);
  if (kind) made.className = kind;
  return made;
}

function tell(text, failed = false) {
  at("state").textContent = visible(text);
  at("state").className = failed ? "failed" : "";
}

async function fetched(path, options = {}) {
  const headers = { ...options.headers };
  if (at("key").value) headers.Authorization = "Bearer " + at("key").value;
  const response = await fetch("." + path, { ...options, headers });
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

// Words of two letters or more, as they are compared: without case and plural.
const WORD = /[\p{L}\p{N}]{2,}/gu;
const plain = (word) => word.toLowerCase().replace(/(?<=.{3})s$/, "");
const wordsOf = (text) => new Set((text.match(WORD) ?? []).map(plain));
const SILENT = wordsOf("the an of in on at by to is was were are be did do does and or which who what where when how that it his her");

// A text with the words that stand in `words` made strong.
function strengthened(text, words) {
  const made = document.createDocumentFragment();
  let end = 0;
  for (const found of text.matchAll(WORD)) {
    if (!words.has(plain(found[0])) || SILENT.has(plain(found[0]))) continue;
    made.append(visible(text.slice(end, found.index)), element("strong", found[0]));
    end = found.index + found[0].length;
  }
  made.append(visible(text.slice(end)));
  return made;
}

// The text of a passage with the sentences of the row that are in it marked. Their places count characters, not UTF-16.
function passageText(id, text) {
  const made = document.createDocumentFragment();
  const characters = Array.from(text);
  const inside = (shown?.support ?? []).filter((sentence) => sentence.passage_id === id);
  let end = 0;
  for (const sentence of inside.sort((one, other) => one.start - other.start)) {
    const own = characters.slice(sentence.start, sentence.end).join("");
    if (sentence.start < end || own !== sentence.text) continue;
    made.append(visible(characters.slice(end, sentence.start).join("")));
    const mark = element("mark");
    mark.append(strengthened(own, matched()));
    made.append(mark);
    end = sentence.end;
  }
  made.append(visible(characters.slice(end).join("")));
  return made;
}

// The words of the question and of the answer of the row.
function matched() {
  return wordsOf([shown.question, shown.answer ?? ""].join(" "));
}

function passageButton(id, said = id) {
  const open = element("button", said, "small");
  open.type = "button";
  open.addEventListener("click", () => showPassage(id));
  return open;
}

function sentenceItem(sentence) {
  const made = element("li");
  const mark = element("mark");
  mark.append(strengthened(sentence.text, matched()));
  const item = shown.evidence.find((one) => one.passage_id === sentence.passage_id);
  made.append(mark, " ", passageButton(sentence.passage_id, item?.title || sentence.passage_id));
  return made;
}

function evidenceItem(item) {
  const made = element("li");
  made.append(element("strong", item.title || item.passage_id), " ");
  const text = element("p", "", "text");
  text.append(passageText(item.passage_id, item.text));
  made.append(passageButton(item.passage_id, "passage"), text);
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
    made.append(passageButton(id), " ");
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

const GROUNDING = {
  supported: "supported by the evidence",
  mentioned: "its words stand in the evidence, which may say them of something else",
  unsupported: "unsupported: the evidence does not state it",
  none: "whether the evidence states it was not decided",
};

function showAnswer(row) {
  const failed = row.status === "failed";
  const none = row.usage.llm_calls ? "none: the reader found no support in the evidence" : "none: no model was asked";
  const said = failed ? row.error.type + ": " + row.error.message : row.answer ?? none;
  at("answer").textContent = visible(row.status === "retrieved" ? "not asked for: evidence only" : said);
  at("answer").className = failed ? "failed" : row.grounding?.status ?? "";
  const judged = !failed && typeof row.answer === "string";
  at("grounding").hidden = !judged;
  at("grounding").textContent = judged ? GROUNDING[row.grounding.status] : "";
  at("grounding").className = judged ? row.grounding.status : "";
}

function show(row) {
  shown = row;
  showAnswer(row);
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
  const support = row.support ?? [];
  at("sentences-part").hidden = !support.length;
  fill(at("sentences"), support, sentenceItem);
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
    at("passage-title").textContent = visible(found.title || found.passage_id);
    const whole = found.doc_id === found.passage_id ? "" : "document " + found.doc_id + "; ";
    at("passage-place").textContent = visible(whole + place(found));
    at("passage-text").replaceChildren(passageText(found.passage_id, found.text));
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
    const body = { question: at("question").value, method: at("method").value || "auto", words: true, support: true };
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
  const held = ["passages", "entities", "relations"].filter((name) => name in index.counts).map((name) => count(name) + " " + name).join(", ");
  const kb = index.counts.kb_nodes ? "; knowledge base: " + count("kb_nodes") + " nodes, " + count("kb_edges") + " edges" : "";
  at("about").textContent = visible(index.index + ": " + held + kb + "; language model: " + llm);
  const able = methods.filter((method) => method.retrieves);
  fill(at("method"), [{ method: "auto" }, ...able], (method) => element("option", method.method));
  at("evidence-choice").hidden = !index.models.llm; // without a model there is nothing else
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
at("key").addEventListener("keydown", (event) => {
  if (event.key !== "Enter") return;
  event.preventDefault(); // it takes the key, it does not ask
  begin();
});
at("question").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey) {
    event.preventDefault();
    at("form").requestSubmit();
  }
});
begin();
