// The page: its views, the question form, history, key and colours. The address after # says what is shown.

import { at, button, count, fill, make, visible } from "./dom.js";
import { chat, fetched, got, key, link, server, setKey } from "./server.js";
import { clear, show, showPiece, showWaiting } from "./answer.js";
import * as explore from "./explore.js";
import * as compare from "./compare.js";
import * as documents from "./documents.js";

const HISTORY = "gpu-rag questions", N_HISTORY = 30;
const known = { index: null, methods: [] };
let running = null;

function tell(text, failed = false) {
  at("state").textContent = visible(text);
  at("state").className = failed ? "failed" : "";
}

// --- asking -----------------------------------------------------------------------------------------

const earlier = () => JSON.parse(localStorage.getItem(HISTORY) ?? "[]");

function remember(asked) {
  const same = (one) => one.q === asked.q && one.method === asked.method && one.where === asked.where;
  localStorage.setItem(HISTORY, JSON.stringify([asked, ...earlier().filter((one) => !same(one))].slice(0, N_HISTORY)));
  showHistory();
}

function showHistory() {
  const all = earlier();
  at("history-part").hidden = !all.length;
  const forget = button("Forget them", () => (localStorage.removeItem(HISTORY), showHistory()), { class: "quiet-button" });
  fill(at("history"), ...all.map(({ q, method, where }) => make("li", {},
    make("a", { href: link("ask", { q, method, where }) }, q), make("span", { class: "small dim" }, [method, where].filter(Boolean).join(" · ")))),
    all.length ? make("li", {}, forget) : null);
}

const busy = (yes) => {
  at("stop").hidden = !yes;
  at("submit").hidden = yes;
};

async function ask({ q, method, where, only }) {
  running?.abort();
  const mine = (running = new AbortController());
  const { signal } = mine;
  const began = performance.now();
  const seconds = () => (performance.now() - began) / 1000;
  const able = known.methods.find((one) => one.method === method);
  const answers = able?.answers && !only;
  let streamed = false, done = false;
  tell("");
  clear();
  at("result").hidden = false;
  at("empty").hidden = true;
  at("history-part").open = false;
  at("compare-link").href = link("compare", { q });
  showWaiting("Looking in the index …");
  busy(true);
  const body = { question: q, method, words: true, support: true, where };
  const retrieved = able?.retrieves || !able ? fetched("/v1/retrieve", { body, signal }) : Promise.resolve(null);
  const early = retrieved.then(async (row) => {
    if (!answers || !row || done || row.status === "failed") return;
    if (!streamed) showWaiting(`Reading ${count(row.evidence.length, "passage")} …`);
    await show(row, { final: false });
  });
  try {
    const onText = (text) => {
      streamed = true;
      if (!signal.aborted) showPiece(text);
    };
    early.catch(() => {}); // the answer may still come: a key may have the right to ask alone
    const row = answers ? await chat(q, { method, where, signal, onText }) : await retrieved;
    done = true;
    remember({ q, method, where });
    await show(row, { final: true, seconds: seconds() });
  } catch (error) {
    done = true;
    if (running !== mine) return;
    if (signal.aborted) tell("Stopped.");
    else tell(error.message, true);
    at("result").hidden = true; // it would be that of an earlier question
  } finally {
    if (running === mine) busy(false);
  }
}

const asked = () => ({ q: at("question").value.trim(), method: at("method").value, where: at("where").value.trim(), only: at("evidence-only").checked && "1" });

at("ask-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const target = link("ask", asked());
  if (location.hash === target) route();
  else location.hash = target;
});
at("stop").addEventListener("click", () => running?.abort());
for (const id of ["question", "compare-question"]) {
  at(id).addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    event.target.form.requestSubmit();
  });
}
at("copy").addEventListener("click", async () => {
  try {
    await navigator.clipboard.writeText(location.href);
    at("copy").textContent = "Link copied";
  } catch {
    at("copy").textContent = "The address bar has the link";
  }
  setTimeout(() => (at("copy").textContent = "Copy link"), 2500);
});

at("where").addEventListener("focus", async () => {
  const { metadata } = await got("/v1/documents", { limit: 0 });
  at("where-help").hidden = false;
  at("where-help").textContent = visible(metadata.length
    ? `Documents have: ${metadata.slice(0, 20).join(", ")}. Such as: ${metadata[0]} = "…" or ${metadata[0]} in ("…", "…"), joined by and, or, not.`
    : "The documents of this index have no metadata to choose by.");
});

// --- views ------------------------------------------------------------------------------------------

const VIEWS = {
  ask(values) {
    at("evidence-only").checked = Boolean(values.only);
    if (!values.q) {
      at("result").hidden = true;
      at("empty").hidden = false;
      return at("question").focus();
    }
    at("question").value = values.q;
    at("where").value = values.where ?? "";
    if (values.method) at("method").value = values.method;
    return ask(asked());
  },
  compare: (values) => compare.open(values, known),
  explore: (values) => explore.open(values),
  documents: (values) => documents.open(values),
};

const shownValues = () => Object.fromEntries(new URLSearchParams(location.hash.slice(1)));

async function route() {
  const values = shownValues();
  if (baseOf(values) !== server.base) return begin();
  const view = Object.hasOwn(VIEWS, values.view) ? values.view : "ask";
  for (const name of Object.keys(VIEWS)) at(name).hidden = name !== view;
  document.querySelector("h1 a").href = link("ask");
  for (const one of document.querySelectorAll("[data-view]")) {
    one.href = link(one.dataset.view);
    if (one.dataset.view === view) one.setAttribute("aria-current", "page");
    else one.removeAttribute("aria-current");
  }
  document.title = visible((values.q || values.name || view) + " – gpu-rag");
  tell("");
  try {
    await VIEWS[view](values);
  } catch (error) {
    tell(error.message, true);
  }
}

function describe() {
  const { index, methods } = known;
  const n = (name) => index.counts[name] ?? 0;
  const parts = [index.index, count(n("documents"), "document"), count(n("passages"), "passage"),
    n("entities") && count(n("entities"), "name"), n("relations") && count(n("relations"), "fact"),
    n("kb_nodes") && `knowledge base of ${count(n("kb_nodes"), "node")}`, "language model: " + (index.models.llm?.name ?? "none")];
  at("about").textContent = visible(parts.filter(Boolean).join(" · "));
  const able = methods.filter((one) => one.retrieves || one.answers).sort((a, b) => (b.method === "auto") - (a.method === "auto"));
  const chosen = at("method").value;
  fill(at("method"), ...able.map((one) => make("option", {}, one.method)));
  if (able.some((one) => one.method === chosen)) at("method").value = chosen;
  at("evidence-choice").hidden = !index.models.llm;
  const empty = !n("passages") && !n("kb_nodes");
  fill(at("empty"), make("h2", {}, empty ? "This index is empty" : "Ask the documents"),
    make("p", {}, empty ? "Add documents, and ask about them then." : "The answer comes with the sentences it rests on, and a picture of how they are connected."),
    empty ? make("a", { href: link("documents") }, "Add documents") : null);
  const lacking = methods.filter((one) => !one.retrieves);
  at("lacking").hidden = !lacking.length;
  fill(at("lacking-list"), ...lacking.flatMap((one) => [make("dt", {}, one.method), make("dd", {}, one.missing + " ", one.run ? make("code", {}, one.run) : null)]));
}

// --- begin ------------------------------------------------------------------------------------------

async function showRooms() {
  const { indexes } = await fetched("/v1/indexes").catch(() => ({ indexes: [] }));
  if (indexes.length < 2) return;
  fill(at("room"), ...indexes.map(({ name, base }) => make("option", { value: base.replace(/\/$/, "") }, name)));
  at("room").hidden = false;
}

// The index that an address names; the one at the root, or of the path, if it names none.
const HOME = /^\/w\/[^/]+/.exec(location.pathname)?.[0] ?? "";
const baseOf = ({ index }) => (index ? "/w/" + encodeURIComponent(index) : HOME);

async function begin() {
  try {
    server.base = "";
    if (at("room").hidden) await showRooms();
    server.base = baseOf(shownValues());
    at("room").value = server.base;
    const [index, { methods }] = await Promise.all([fetched("/v1/index"), fetched("/v1/methods")]);
    Object.assign(known, { index, methods });
    describe();
    await route();
  } catch (error) {
    at("about").textContent = error.status === 401 ? "" : "the index cannot be read";
    at("ask").hidden = false;
    tell(error.message, true);
  }
}

at("room").addEventListener("change", () => {
  server.base = at("room").value;
  location.hash = link("ask");
  begin();
});
server.onKeyWanted = () => at("key-dialog").open || (at("key").value = key(), at("key-dialog").showModal());
at("key-button").addEventListener("click", server.onKeyWanted);
at("key-dialog").addEventListener("close", () => {
  if (at("key-dialog").returnValue === "use") setKey(at("key").value.trim());
  else if (at("key-dialog").returnValue === "forget") setKey("");
  else return;
  at("key").value = "";
  begin();
});
at("skip").addEventListener("click", (event) => {
  event.preventDefault();
  at("main").focus();
});

const THEMES = { "": "as the system", light: "light", dark: "dark" };
function setTheme(theme) {
  document.documentElement.style.colorScheme = theme;
  at("theme").setAttribute("aria-label", "Colours: " + THEMES[theme]);
  at("theme").title = "Colours: " + THEMES[theme];
  localStorage.setItem("gpu-rag colours", theme);
  dispatchEvent(new Event("themed"));
}
at("theme").addEventListener("click", () => {
  const names = Object.keys(THEMES);
  setTheme(names[(names.indexOf(localStorage.getItem("gpu-rag colours") ?? "") + 1) % names.length]);
});
setTheme(localStorage.getItem("gpu-rag colours") ?? "");

addEventListener("hashchange", route);
addEventListener("unhandledrejection", ({ reason }) => tell(reason?.message ?? String(reason), true));
showHistory();
begin();
