// Documents of the index: a list, one with its passages, rows that were not used, and changes of a living index.

import { at, button, count, fill, make, visible } from "./dom.js";
import { openPassage } from "./answer.js";
import { fetched, got, link } from "./server.js";

const PAGE = 15, MOST_BYTES = 900_000; // of a request; the server takes 1 MiB
let offset = 0, waiting = null, nRejects = 0;

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// How a document stands, in plain words. extraction: passages by status; null if the index has no graph.
function statusOf({ n_passages, extraction }) {
  if (!n_passages) return "no text";
  if (!extraction) return "searchable";
  const failed = (extraction.failed ?? 0) + (extraction.malformed ?? 0) + (extraction.truncated ?? 0);
  if (failed) return `facts are missing for ${count(failed, "passage")}`;
  if (extraction.ok) return "in the graph";
  return extraction.skipped ? "searchable, no facts read" : "searchable, no facts found";
}

function row(document) {
  const name = document.title || document.id;
  const where = [document.file, document.line ? "row " + document.line : ""].filter(Boolean).join(", ");
  return make("tr", {},
    make("td", {}, make("a", { href: link("documents", { id: document.id }) }, name), make("div", { class: "small dim" }, where)),
    make("td", {}, statusOf(document)), make("td", {}, document.language), make("td", { class: "number" }, document.n_passages.toLocaleString("en")),
    make("td", {}, button("✕", () => remove(document), { class: "quiet-button", "aria-label": "Remove " + name })));
}

async function list() {
  const q = at("documents-find").value.trim();
  const { total, documents } = await got("/v1/documents", { q, offset, limit: PAGE });
  if (q !== at("documents-find").value.trim()) return;
  fill(at("documents-table").tBodies[0], ...documents.map(row));
  const last = offset + documents.length;
  at("documents-count").textContent = total ? `${(offset + 1).toLocaleString("en")}–${last.toLocaleString("en")} of ${total.toLocaleString("en")}` : q ? "No document has this in its title, id or file." : "No documents yet. Add some.";
  at("before").disabled = !offset;
  at("after").disabled = last >= total;
}

async function rejects(from) {
  const { total, rejects: rows } = await got("/v1/rejects", { offset: from, limit: 10 });
  at("rejects-part").hidden = !total;
  at("rejects-title").textContent = `${count(total, "row")} not used`;
  const items = rows.map(({ file, line, reason }) => make("li", {}, `${file}${line ? ", line " + line : ""}: ${reason}`));
  if (from) at("rejects").append(...items);
  else fill(at("rejects"), ...items);
  nRejects = from + rows.length;
  at("more-rejects").hidden = nRejects >= total || !rows.length;
}

async function showDocument(id) {
  at("document").hidden = !id;
  if (!id) return;
  const passages = make("ol", { class: "evidence" });
  const more = button("More passages", () => add(), { class: "quiet-button" });
  let shown = 0;
  const add = async () => {
    const document = await got("/v1/documents/" + encodeURIComponent(id), { offset: shown, limit: 10 });
    for (const passage of document.passages) {
      passages.append(make("li", {}, make("p", { class: "text" }, passage.text.length > 400 ? passage.text.slice(0, 400) + " …" : passage.text),
        button("Open the passage", () => openPassage(passage.passage_id), { class: "plain small" })));
    }
    shown += document.passages.length;
    more.hidden = shown >= document.n_passages;
    return document;
  };
  const document = await add();
  const metadata = Object.entries(document.metadata).map(([name, value]) => `${name}: ${value}`);
  fill(at("document"),
    make("div", { class: "head" }, make("h2", { tabindex: "-1" }, document.title || document.id), make("a", { class: "quiet-button", href: link("documents"), "aria-label": "Close the document" }, "✕")),
    make("p", { class: "small dim" }, [document.id, document.file, count(document.n_passages, "passage"), statusOf(document), ...metadata].filter(Boolean).join(" · ")),
    passages, more);
  at("document").querySelector("h2").focus();
}

export async function open({ id }) {
  await Promise.all([list(), rejects(0), showDocument(id)]);
}

// --- changes ----------------------------------------------------------------------------------------

const WORDS = { waiting: "waits for earlier changes", running: "the index takes it in" };

// Follow a change, as the server began it, to its end; a line of the list shows how it stands.
async function follow(what, begin) {
  const bar = make("progress", { "aria-label": what });
  const words = make("span", {}, "sending …");
  const item = make("li", {}, make("strong", {}, what), " ", words, bar);
  at("changes").prepend(item);
  const end = (text, kind) => {
    words.textContent = visible(text);
    item.className = kind;
    bar.remove();
    return kind === "done";
  };
  try {
    const before = (await fetched("/v1/index")).digest;
    let change = await begin();
    while (change.status === "waiting" || change.status === "running") {
      words.textContent = WORDS[change.status] + " …";
      await pause(700);
      change = await fetched("/v1/changes/" + encodeURIComponent(change.change));
    }
    if (change.status === "failed") return end(change.error, "failed");
    words.textContent = "the server takes the new index …";
    for (let i = 0; i < 60 && (await fetched("/v1/index")).digest === before; i++) await pause(500);
    const done = ["added", "changed", "removed", "rejects"].filter((name) => change.result[name]).map((name) => `${change.result[name]} ${name}`);
    await Promise.all([list(), rejects(0)]);
    return end(done.join(", ") || "nothing to change", "done");
  } catch (error) {
    return end(error.message, "failed");
  }
}

function remove({ id, title }) {
  at("confirm-text").textContent = visible(`${title || id} leaves the index, with its passages and the facts that only it states. Its file is not touched.`);
  at("confirm").returnValue = "no";
  at("confirm").showModal();
  at("confirm").addEventListener("close", () => {
    if (at("confirm").returnValue === "yes") follow("Remove " + (title || id), () => fetched("/v1/documents/" + encodeURIComponent(id), { method: "DELETE" }));
  }, { once: true });
}

// Documents of a file: one of a text, one of each line of .jsonl.
async function documentsOf(file) {
  const text = await file.text();
  if (!file.name.toLowerCase().endsWith(".jsonl")) return [{ id: file.name, title: file.name.replace(/\.\w+$/, ""), text }];
  return text.split("\n").flatMap((line, i) => {
    if (!line.trim()) return [];
    const row = JSON.parse(line);
    return [{ id: `${file.name}:${i + 1}`, ...row }];
  });
}

async function add(files) {
  const documents = [];
  for (const file of files) {
    try {
      documents.push(...await documentsOf(file));
    } catch (error) {
      at("changes").prepend(make("li", { class: "failed" }, `${file.name} cannot be read: ${error.message}`));
    }
  }
  const text = at("paste-text").value.trim();
  const title = at("paste-title").value.trim();
  if (text) documents.push({ id: title || text.slice(0, 40), title, text });
  let part = [], size = 0;
  const parts = [part];
  for (const document of documents) {
    const bytes = new TextEncoder().encode(JSON.stringify(document)).length;
    if (part.length && size + bytes > MOST_BYTES) parts.push((part = [])), size = 0;
    part.push(document);
    size += bytes;
  }
  let sent = true;
  for (const each of parts.filter((one) => one.length)) {
    const name = each.length === 1 ? each[0].title || each[0].id : count(each.length, "document");
    sent = (await follow("Add " + name, () => fetched("/v1/documents", { body: { documents: each } }))) && sent;
  }
  if (!documents.length && !files.length) at("changes").prepend(make("li", {}, "Choose a file, or paste a text."));
  if (sent && documents.length) at("upload-form").reset(), chosen();
}

const chosen = () => (at("drop").textContent = at("files").files.length ? visible([...at("files").files].map((file) => file.name).join(", ")) : "Choose files, or drop them here");

at("upload-form").addEventListener("submit", (event) => {
  event.preventDefault();
  add([...at("files").files]);
});
at("files").addEventListener("change", chosen);
for (const name of ["dragover", "dragleave", "drop"]) {
  at("drop").addEventListener(name, (event) => {
    event.preventDefault();
    at("drop").classList.toggle("over", name === "dragover");
    if (name !== "drop") return;
    at("files").files = event.dataTransfer.files;
    chosen();
  });
}
at("documents-find").addEventListener("input", () => {
  clearTimeout(waiting);
  waiting = setTimeout(() => (offset = 0, list()), 200);
});
at("documents-form").addEventListener("submit", (event) => event.preventDefault());
at("before").addEventListener("click", () => (offset = Math.max(0, offset - PAGE), list()));
at("after").addEventListener("click", () => (offset += PAGE, list()));
at("more-rejects").addEventListener("click", () => rejects(nRejects));
