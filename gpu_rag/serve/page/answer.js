// The result of one question: the answer with its citations, the sentences, the picture and the passages.

import { at, button, count, fill, make, marked, strengthened, visible, wordsOf } from "./dom.js";
import { draw, graphOf } from "./picture.js";
import { fetched, got, link } from "./server.js";

const SHOWN = 3; // sentences in sight
const N_PASSAGES = 5, N_NODES = 5; // in sight
const MOST_NAMES = innerWidth < 600 ? 10 : 16; // in the picture
export const GROUNDING = {
  supported: "Supported: the documents say so",
  mentioned: "Mentioned in the documents: check what they say",
  unsupported: "Not supported: the documents do not say this",
  none: "Not checked against the documents",
  retrieved: "Evidence only: no language model was asked",
  failed: "The question failed",
};
let row = null; // on the page
let picture = null;

const keyOf = (sentence) => sentence.passage_id + " " + sentence.start;
const numberOf = (id) => row.evidence.findIndex((item) => item.passage_id === id) + 1;
const matched = () => wordsOf(row.question + " " + (row.answer ?? ""));
// The sentences behind the answer, then those that bear on the question, each once.
const sentencesOf = () => [...row.grounding?.sentences ?? [], ...row.mentions ?? [], ...row.support ?? []].filter((s, i, all) => all.findIndex((other) => keyOf(other) === keyOf(s)) === i);
const sentencesIn = (id) => sentencesOf().filter((s) => s.passage_id === id);

// --- citations --------------------------------------------------------------------------------------

function cite(n) {
  const item = row.evidence[n - 1];
  return button(`[${n}]`, () => goTo(n), {
    class: "cite", "aria-label": `Source ${n}: ${item.title || item.passage_id}`, title: item.title || item.passage_id,
    onmouseenter: () => at("passage-" + n)?.classList.add("near"), onmouseleave: () => at("passage-" + n)?.classList.remove("near"),
  });
}

function goTo(n) {
  const item = at("passage-" + n);
  if (item.hidden) showAllPassages();
  unfold(item, true);
  item.classList.remove("flash");
  item.scrollIntoView({ behavior: "smooth", block: "center" });
  requestAnimationFrame(() => item.classList.add("flash"));
  item.querySelector("h3").focus({ preventScroll: true });
}

const split = (text) =>
  Intl.Segmenter ? Array.from(new Intl.Segmenter("en", { granularity: "sentence" }).segment(text), (part) => part.segment) : [text];

const inCommon = (words, own) => words.filter((word) => own.has(word)).length;

// Places of the sentences of a text, in characters, not in UTF-16.
function placesIn(text) {
  let end = 0;
  return split(text).map((part) => ({ start: end, end: (end += Array.from(part).length) - (part.length - part.trimEnd().length), text: part.trimEnd() }));
}

// For an answer that the documents mention but no sentence supports: for each of its sentences the passages with most of
// the words that the question lacks, and in each the sentence with most of them: [{passage_id, start, end, text, of}].
function mentionsOf() {
  if (row.grounding?.status !== "mentioned" || row.grounding.sentences.length) return [];
  const asked = wordsOf(row.question);
  const texts = row.evidence.map((item) => wordsOf(item.title + " " + item.text));
  return split(row.answer).flatMap((sentence, of) => {
    const fresh = [...wordsOf(sentence)].filter((word) => !asked.has(word));
    const shared = texts.map((own) => inCommon(fresh, own));
    const most = Math.max(0, ...shared);
    return row.evidence.filter((_, i) => most && shared[i] === most).slice(0, 4).map(({ passage_id, text }) => {
      const best = placesIn(text).map((place) => [inCommon(fresh, wordsOf(place.text)), place]).reduce((a, b) => (b[0] > a[0] ? b : a));
      return { passage_id, ...best[1], of };
    });
  });
}

// Numbers of the passages behind each sentence of the answer. One that supports it goes to the one with most of its words.
function sourcesOf(sentences) {
  const words = sentences.map((sentence) => [...wordsOf(sentence)]);
  const sources = sentences.map(() => new Set());
  for (const { passage_id, start, end } of row.grounding?.sentences ?? []) {
    const item = row.evidence.find((one) => one.passage_id === passage_id);
    if (!item) continue;
    const own = wordsOf(Array.from(item.text).slice(start, end).join(""));
    const shared = words.map((some) => inCommon(some, own));
    sources[shared.indexOf(Math.max(...shared))].add(numberOf(passage_id));
  }
  for (const { passage_id, of } of row.mentions) sources[of].add(numberOf(passage_id));
  return sources;
}

function answerWithCitations(text) {
  const sentences = split(text);
  const sources = sourcesOf(sentences);
  return sentences.flatMap((sentence, i) => {
    const cites = [...sources[i]].sort((a, b) => a - b).slice(0, 4).map(cite);
    const body = sentence.trimEnd();
    return cites.length ? [body, ...cites, sentence.slice(body.length)] : [sentence];
  });
}

// --- parts ------------------------------------------------------------------------------------------

export function showWaiting(text, failed = false) {
  at("answer").className = failed ? "failed" : "waiting";
  fill(at("answer"), text);
}

export function showPiece(text) {
  at("answer").className = "streaming";
  fill(at("answer"), text);
}

export function clear() {
  row = null;
  at("answer").setAttribute("aria-busy", "true");
  for (const id of ["grounding", "remarks", "nodes-part", "sentences-part", "more-sentences"]) at(id).hidden = true;
  for (const id of ["cost", "sentences", "evidence", "trace", "legend", "facts", "chosen", "graph-tools"]) fill(at(id));
  at("graph").picture?.destroy();
  fill(at("graph"));
}

const sentenceItem = (sentence) => {
  const n = numberOf(sentence.passage_id);
  const item = row.evidence[n - 1];
  const text = sentence.text ?? Array.from(item.text).slice(sentence.start, sentence.end).join("");
  return make("li", {}, make("mark", {}, strengthened(text, matched())), " ", n ? cite(n) : "");
};

// What a knowledge base gives as the answer.
function showNodes() {
  const all = row.nodes ?? [];
  at("nodes-part").hidden = !all.length;
  at("nodes-title").textContent = all.length > N_NODES ? `The best ${N_NODES} of ${count(all.length, "thing")} that fit` : "Things that fit";
  fill(at("nodes"), ...all.slice(0, N_NODES).map(({ name, type, source }) => make("li", {},
    make("a", { href: link("explore", { name }) }, name), make("span", { class: "small dim" }, " " + [type, source].filter(Boolean).join(" · ")))));
}

function showSentences() {
  const each = sentencesOf().filter((s) => numberOf(s.passage_id));
  at("sentences-part").hidden = !each.length;
  at("sentences-title").textContent = row.grounding?.sentences?.length ? "Sentences it rests on" : "Sentences that bear on it";
  fill(at("sentences"), ...each.slice(0, SHOWN).map(sentenceItem));
  const more = at("more-sentences");
  more.hidden = each.length <= SHOWN;
  more.firstElementChild.textContent = count(each.length - SHOWN, "more sentence");
  fill(more.lastElementChild, ...each.slice(SHOWN).map(sentenceItem));
}

const placeOf = (item) => [item.file, item.place].filter(Boolean).join(", ") || item.passage_id;
const metadataOf = (item) => Object.entries(item.metadata ?? {}).map(([name, value]) => `${name}: ${value}`).join(" · ");

function unfold(item, open) {
  item.querySelector(".text").classList.toggle("folded", !open);
  const toggle = item.querySelector("[aria-expanded]");
  toggle.setAttribute("aria-expanded", String(open));
  toggle.textContent = open ? "Show less" : "Show all";
}

function passageItem(item, place) {
  const toggle = button("Show all", () => unfold(made, made.querySelector(".text").classList.contains("folded")), { class: "plain small", "aria-expanded": "false" });
  const made = make("li", { class: "passage", id: "passage-" + (place + 1), hidden: place >= N_PASSAGES },
    make("div", { class: "title" },
      make("h3", { tabindex: "-1" }, make("span", { class: "number-tag" }, `[${place + 1}] `), item.title || item.passage_id),
      make("span", { class: "small dim score", title: item.why }, "score " + item.score.toFixed(2))),
    make("p", { class: "text folded" }, marked(item.text, sentencesIn(item.passage_id), matched())),
    make("div", { class: "foot small dim" }, toggle,
      button("Open", () => openPassage(item.passage_id), { class: "plain small", "aria-label": "Open the passage " + (item.title || item.passage_id) }),
      make("span", {}, placeOf(item)), metadataOf(item) ? make("span", {}, metadataOf(item)) : null));
  return made;
}

function showAllPassages() {
  at("more-passages")?.remove();
  for (const item of at("evidence").children) item.hidden = false;
}

function stepItem(step, words) {
  const chosen = step.chosen.slice(0, 8).map((text) => make("li", { class: "small dim" }, text));
  const among = step.n_candidates && words === step.verb ? " among " + step.n_candidates.toLocaleString("en") : "";
  return make("li", {}, `${words}${among} (${(1000 * step.s).toFixed(0)} ms)`, chosen.length ? make("ul", {}, ...chosen) : null);
}

function showCost(seconds) {
  const used = row.usage;
  const tokens = used.llm_calls ? `${count(used.prompt_tokens, "token")} read, ${used.generated_tokens.toLocaleString("en")} written` : "no language model asked";
  fill(at("cost"), [row.method, seconds === undefined ? null : seconds.toFixed(1) + " s", tokens].filter(Boolean).join(" · "));
}

function showRemarks() {
  const lines = [
    row.condensed && `Asked as: ${row.condensed}`,
    row.source === "model" && "Nothing was found; the model answered from its own knowledge.",
    ...(row.unread ?? []).map((word) => `A word of the question was not understood: ${word}`),
    ...(row.sought ?? []).map((thing) => `Not known to the index: ${thing}`),
    ...(row.barred ?? []).map((thing) => `Ruled out by the question: ${thing}`),
    ...(row.missing ?? []).map((source) => `A source failed: ${source}`),
  ].filter(Boolean);
  at("remarks").hidden = !lines.length;
  fill(at("remarks"), ...lines.map((line) => make("li", {}, line)));
}

// Show a row. final: false for what retrieval has found while the answer is still written.
export async function show(shown, { final, seconds } = {}) {
  row = shown;
  const failed = row.status === "failed";
  row.mentions = mentionsOf();
  if (final) {
    at("answer").setAttribute("aria-busy", "false");
    const status = failed ? "failed" : row.status === "retrieved" ? "retrieved" : row.grounding?.status ?? "none";
    at("grounding").hidden = false;
    at("grounding").className = "pill " + status;
    at("grounding").textContent = typeof row.answer === "string" || status === "retrieved" || failed ? GROUNDING[status] : "No answer: the evidence has no support for one";
    at("answer").className = failed ? "failed" : "";
    if (failed) fill(at("answer"), row.error.message);
    else if (typeof row.answer === "string") fill(at("answer"), ...answerWithCitations(row.answer));
    else showWaiting(row.status === "retrieved" ? `${count(row.evidence.length, "passage")} found; the best sentences are below.` : "The documents do not tell.");
    showCost(seconds);
  }
  showRemarks();
  showNodes();
  showSentences();
  const more = row.evidence.length - N_PASSAGES;
  if (row.evidence.length) fill(at("evidence"), ...row.evidence.map(passageItem), more > 0 ? make("li", { id: "more-passages" }, button(count(more, "more passage"), showAllPassages, { class: "quiet-button" })) : null);
  else fill(at("evidence"), make("li", { class: "empty" }, failed ? "" : "No passage fits this question" + (row.where ? " and its filter." : ".")));
  fill(at("trace"), ...row.trace.map((step, i) => stepItem(step, row.words?.[i] ?? step.verb)));
  await showPicture(row);
}

// --- the picture ------------------------------------------------------------------------------------

const within = (name, text) => {
  const plain = (value) => ` ${String(value ?? "").toLowerCase().replace(/[^\p{L}\p{N}]+/gu, " ")} `;
  return name.length > 2 && plain(text).includes(plain(name));
};

// The facts worth showing: paths of the method, then facts of the passages between names of the question, of the answer
// and of several passages. A passage that would stand alone brings the fact whose names occur most.
function chosenFacts(shown, stated) {
  const paths = shown.paths.flatMap((path) => path.edges.map(([subject, label, object, source]) => ({ subject, label, object, source, path: true })));
  const passages = new Map();
  for (const fact of [...paths, ...stated]) {
    for (const name of [fact.subject, fact.object]) {
      const key = name.toLowerCase();
      if (!passages.has(key)) passages.set(key, new Set());
      passages.get(key).add(fact.source);
    }
  }
  const titles = new Set(shown.evidence.map((item) => item.title.toLowerCase()));
  const worth = (name) => (within(name, shown.question) ? 4 : 0) + (within(name, shown.answer) ? 4 : 0)
    + 2 * (passages.get(name.toLowerCase()).size - 1) + (titles.has(name.toLowerCase()) ? 2 : 0);
  const valued = stated.map((fact) => ({ fact, value: worth(fact.subject) + worth(fact.object) })).sort((a, b) => b.value - a.value);
  const names = new Set(), facts = [], taken = new Set();
  const take = (fact) => {
    const id = [fact.subject, fact.label, fact.object].join("\n");
    const fresh = [fact.subject, fact.object].map((name) => name.toLowerCase()).filter((name) => !names.has(name));
    if (taken.has(id) || names.size + fresh.length > MOST_NAMES) return;
    taken.add(id);
    fresh.forEach((name) => names.add(name));
    facts.push(fact);
  };
  const first = (id) => valued.find(({ fact }) => fact.source === id)?.fact;
  shown.evidence.map((item) => first(item.passage_id)).filter(Boolean).forEach(take);
  paths.slice(0, 12).forEach(take);
  valued.filter(({ value }) => value >= 4 || shown.nodes).forEach(({ fact }) => take(fact));
  return facts;
}

const factItem = (fact) => make("li", {},
  make("a", { href: link("explore", { name: fact.subject }) }, fact.subject), make("span", { class: "label" }, ` ${fact.label} `),
  make("a", { href: link("explore", { name: fact.object }) }, fact.object), " ", sourceOf(fact));

// Where a fact is stated: a passage to open, or the file and line of a knowledge base.
export function sourceOf(fact) {
  if (!fact.source) return null;
  const n = row ? numberOf(fact.source) : 0;
  if (n && !at("ask").hidden) return cite(n);
  if (/:\d+$/.test(fact.source) && !fact.title) return make("span", { class: "small dim" }, fact.source);
  const open = button(fact.title || "a passage", () => openPassage(fact.source), { class: "plain small", "aria-label": "Stated in " + (fact.title || fact.source) });
  return make("span", { class: "small dim" }, "– ", open);
}

async function showPicture(shown) {
  const ids = shown.evidence.slice(0, 12).map((item) => item.passage_id);
  let stated = [];
  try {
    if (ids.length) stated = (await got("/v1/graph", { passage: ids })).facts;
    const around = async ({ name }) => (await got("/v1/entities/" + encodeURIComponent(name), { limit: 5 })).facts;
    if (!stated.length) stated = (await Promise.all((shown.nodes ?? []).slice(0, 3).map(around))).flat();
  } catch (error) {
    if (![400, 403, 409].includes(error.status)) throw error; // no such name, no graph, or a key that may only ask
  }
  if (row !== shown) return;
  const facts = chosenFacts(shown, stated);
  const names = [...new Set(facts.flatMap((fact) => [fact.subject, fact.object]))];
  const namedIn = (text) => {
    const all = names.filter((name) => within(name, text));
    return all.filter((name) => !all.some((other) => other.length > name.length && within(name, other))); // the longest
  };
  const asked = new Set(namedIn(shown.question)), said = new Set(namedIn(shown.answer));
  const kindOf = (name) => (asked.has(name) ? "seed" : said.has(name) ? "answer" : "name");
  const { nodes, edges } = graphOf(facts, kindOf, (fact) => (fact.path ? "path" : "fact"));
  at("graph").classList.toggle("empty", !edges.length);
  if (!edges.length) {
    at("graph").picture?.destroy();
    fill(at("graph"), "No facts of these passages are in the graph.");
    fill(at("facts"));
    return;
  }
  const extracted = new Map();
  for (const fact of facts) {
    const n = numberOf(fact.source);
    if (!n) continue;
    extracted.set(n, { id: "passage " + n, label: String(n), kind: "passage", n });
    const end = "name " + fact.subject.toLowerCase();
    edges.push({ id: `in ${n} ${end}`, source: "passage " + n, target: end, kind: "in" });
  }
  const all = [...nodes, ...extracted.values()];
  const kinds = new Set(all.map((node) => node.kind));
  const legend = { seed: "in the question", answer: "in the answer", name: "other names", passage: "passages, by number" };
  fill(at("legend"), ...Object.entries(legend).filter(([kind]) => kinds.has(kind)).map(([kind, text]) => make("span", { class: "l-" + kind }, text)));
  at("graph").setAttribute("aria-label", visible(`Picture of ${count(nodes.length, "name")}, ${count(facts.length, "fact")} and ${count(extracted.size, "passage")}; the same in words is below it`));
  fill(at("facts"), ...facts.map(factItem));
  fill(at("chosen"));
  fill(at("graph"));
  picture = await draw(at("graph"), all, edges, (data) => chosenInPicture(data, at("chosen"), () => picture));
  tools(at("graph-tools"), () => picture);
}

export function tools(holder, current) {
  fill(holder, button("−", () => current().zoom(1 / 1.3), { class: "quiet-button", "aria-label": "Make the picture smaller" }),
    button("+", () => current().zoom(1.3), { class: "quiet-button", "aria-label": "Make the picture larger" }));
}

// What is known of a node or an arrow that was clicked in a picture.
export async function chosenInPicture(data, holder, current) {
  if (data.kind === "passage") return goTo(data.n);
  if (data.kind === "in") return;
  if (data.fact) return fill(holder, make("h3", {}, "A fact"), make("ul", { class: "facts" }, factItem(data.fact)));
  fill(holder, make("h3", {}, data.name), make("p", { class: "small dim" }, "looking it up …"));
  try {
    const entity = await got("/v1/entities/" + encodeURIComponent(data.name), { limit: 8 });
    const expand = () => {
      const more = graphOf(entity.facts);
      current().add(more.nodes, more.edges);
      current().choose(data.id);
    };
    fill(holder, make("h3", {}, entity.name), merged(entity),
      make("p", { class: "small dim" }, `${count(entity.n_facts, "fact")} in ${count(entity.n_documents, "document")}`),
      make("ul", { class: "facts" }, ...entity.facts.slice(0, 4).map(factItem)),
      make("p", { class: "actions" }, button("Show neighbours", expand, { class: "quiet-button" }),
        make("a", { class: "quiet-button", href: link("explore", { name: entity.name }) }, "Explore")));
  } catch (error) {
    fill(holder, make("h3", {}, data.name), make("p", { class: "small dim" }, error.message));
  }
}

export const merged = (entity) => entity.aliases.length ? make("p", { class: "small" }, "Also written: " + entity.aliases.slice(0, 12).join(", ")) : null;

// --- one passage ------------------------------------------------------------------------------------

export async function openPassage(id) {
  const found = await fetched("/v1/passages/" + encodeURIComponent(id));
  at("passage-title").textContent = visible(found.title || found.passage_id);
  fill(at("passage-place"), make("a", { href: link("documents", { id: found.doc_id }), onclick: () => at("passage").close() }, "Document " + found.doc_id),
    ` · ${placeOf(found)} · characters ${found.start}–${found.end}`, metadataOf(found) ? " · " + metadataOf(found) : "");
  fill(at("passage-text"), marked(found.text, row ? sentencesIn(id) : [], row ? matched() : new Set()));
  fill(at("passage-facts"));
  at("passage").showModal();
  const { facts } = await got("/v1/graph", { passage: id }).catch(() => ({ facts: [] }));
  const bare = ({ source, ...fact }) => fact;
  fill(at("passage-facts"), ...(facts.length ? facts.map((fact) => factItem(bare(fact))) : [make("li", { class: "dim" }, "none in the graph")]));
}
at("passage").addEventListener("click", ({ target }) => {
  if (target.tagName === "A" || target === at("passage")) at("passage").close();
});
