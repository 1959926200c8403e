// Names of the graph: search, the facts around one, the documents that state them, and paths between two.

import { at, count, fill, make } from "./dom.js";
import { chosenInPicture, merged, sourceOf, tools } from "./answer.js";
import { draw, graphOf } from "./picture.js";
import { got, link } from "./server.js";

let picture = null, waiting = null, chosen = "";

const factItem = (fact) => make("li", {},
  fact.subject === chosen ? make("strong", {}, fact.subject) : make("a", { href: link("explore", { name: fact.subject }) }, fact.subject),
  make("span", { class: "label" }, ` ${fact.label} `),
  fact.object === chosen ? make("strong", {}, fact.object) : make("a", { href: link("explore", { name: fact.object }) }, fact.object),
  " ", sourceOf(fact));

async function search() {
  const q = at("find").value.trim();
  const { total, entities } = await got("/v1/entities", { q, limit: 50 });
  if (q !== at("find").value.trim()) return;
  at("find-count").textContent = q ? count(total, "name") + (total > entities.length ? `, the first ${entities.length}` : "") : `${count(total, "name")}; those with the most facts`;
  if (q && !total) at("find-count").textContent = "No name contains these letters.";
  fill(at("names"), ...entities.map(({ name, n_facts }) => make("li", {},
    make("a", { href: link("explore", { name }), "aria-current": name === chosen ? "true" : null }, name), make("span", { class: "small dim" }, String(n_facts)))));
}

async function showFacts(title, facts, kindOf, edgeKind) {
  at("explore-picture").hidden = !facts.length;
  if (!facts.length) return;
  at("explore-title").textContent = title;
  const { nodes, edges } = graphOf(facts, kindOf, edgeKind);
  at("explore-graph").setAttribute("aria-label", `Picture of ${count(nodes.length, "name")} and ${count(edges.length, "fact")}; the facts are listed on this page`);
  fill(at("explore-chosen"));
  picture = await draw(at("explore-graph"), nodes, edges, (data) => chosenInPicture(data, at("explore-chosen"), () => picture));
  tools(at("explore-tools"), () => picture);
}

async function showName(name) {
  const entity = await got("/v1/entities/" + encodeURIComponent(name), { limit: 30 });
  chosen = entity.name;
  at("entity").hidden = false;
  fill(at("entity"), make("h2", {}, entity.name), merged(entity),
    make("h3", {}, count(entity.n_facts, "fact") + (entity.facts.length < entity.n_facts ? `, the first ${entity.facts.length}` : "")),
    make("ul", { class: "facts" }, ...entity.facts.map(factItem)),
    make("h3", {}, "Stated in " + count(entity.n_documents, "document")),
    make("ul", { class: "links" }, ...entity.documents.map(({ id, title }) => make("li", {}, make("a", { href: link("documents", { id }) }, title || id)))));
  at("path-from").value = entity.name;
  await showFacts("Neighbours", entity.facts, (one) => (one === entity.name ? "seed" : "name"));
}

async function showPaths(from, to) {
  const { paths } = await got("/v1/paths", { from, to, limit: 5 });
  chosen = "";
  at("entity").hidden = false;
  at("path-from").value = from;
  at("path-to").value = to;
  const steps = (path) => make("li", {}, make("ul", { class: "facts" }, ...path.map(factItem)));
  fill(at("entity"), make("h2", {}, `${from} and ${to}`),
    make("p", { class: "dim" }, paths.length ? count(paths.length, "path") + " of facts, the shortest first" : "No path of up to four facts leads from one to the other."),
    make("ol", {}, ...paths.map(steps)));
  const ends = new Set([from, to].map((name) => name.toLowerCase()));
  await showFacts("Paths", paths.flat(), (name) => (ends.has(name.toLowerCase()) ? "seed" : "name"), () => "path");
}

export async function open({ name, from, to }) {
  const searched = search();
  if (from && to) await showPaths(from, to);
  else if (name) await showName(name);
  else at("entity").hidden = at("explore-picture").hidden = true;
  await searched;
  for (const one of at("names").querySelectorAll("a")) one.toggleAttribute("aria-current", one.textContent === chosen);
}

async function suggest({ target }) {
  if (target.value.length < 2) return;
  const { entities } = await got("/v1/entities", { q: target.value, limit: 8 });
  fill(at("suggested"), ...entities.map(({ name }) => make("option", { value: name })));
}

const later = (work) => (event) => {
  clearTimeout(waiting);
  waiting = setTimeout(work, 200, event);
};
at("find").addEventListener("input", later(search));
at("find-form").addEventListener("submit", (event) => {
  event.preventDefault();
  at("names").querySelector("a")?.click();
});
for (const id of ["path-from", "path-to"]) at(id).addEventListener("input", later(suggest));
at("path-form").addEventListener("submit", (event) => {
  event.preventDefault();
  location.hash = link("explore", { from: at("path-from").value.trim(), to: at("path-to").value.trim() });
});
