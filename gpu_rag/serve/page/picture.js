// A picture of facts: names as discs, passages as squares, facts as arrows. The page also lists in words what it shows.

import { make, visible } from "./dom.js";

const dim = (text, most = 26) => (text.length > most ? text.slice(0, most - 1) + "…" : text);
// Places of nodes in a box: springs along edges, repulsion between all (Fruchterman and Reingold 1991), and at last no two
// labels on one another. The same nodes get the same places. Returns {id: {x, y}}.
function placed(nodes, edges, width, height) {
  const n = nodes.length, row = new Map(nodes.map((node, i) => [node.id, i]));
  const x = nodes.map((_, i) => width * (0.5 + 0.35 * Math.cos((2 * Math.PI * i) / n)));
  const y = nodes.map((_, i) => height * (0.5 + 0.35 * Math.sin((2 * Math.PI * i) / n)));
  const half = nodes.map(({ label, kind }) => (kind === "passage" ? 15 : Math.min(56, Math.max(14, dim(label).length * 3.4))));
  const tall = nodes.map(({ label, kind }) => (kind === "passage" ? 14 : label.length > 17 ? 27 : 21));
  const pairs = edges.map(({ source, target }) => [row.get(source), row.get(target)]).filter(([a, b]) => a !== b);
  const k = 0.62 * Math.sqrt((width * height) / n), stretch = width / height;
  const clamp = (i) => {
    x[i] = Math.min(width - half[i] - 6, Math.max(half[i] + 6, x[i]));
    y[i] = Math.min(height - tall[i] - 12, Math.max(16, y[i]));
  };
  for (let step = 0, heat = width / 8; step < 320; step++, heat *= 0.984) {
    const dx = new Float64Array(n), dy = new Float64Array(n);
    const push = (a, b, force, ux, uy) => ((dx[a] += force * ux), (dy[a] += force * uy), (dx[b] -= force * ux), (dy[b] -= force * uy));
    for (let a = 0; a < n; a++) {
      dx[a] += (width / 2 - x[a]) * 0.12;
      dy[a] += (height / 2 - y[a]) * 0.12 * stretch;
      for (let b = 0; b < a; b++) {
        const ux = x[a] - x[b], uy = (y[a] - y[b]) * stretch, d = Math.hypot(ux, uy) || 0.1;
        push(a, b, (k * k) / d, ux / d, uy / d / stretch);
      }
    }
    for (const [a, b] of pairs) {
      const ux = x[a] - x[b], uy = y[a] - y[b], d = Math.hypot(ux, uy) || 0.1;
      push(a, b, -(d * d) / k, ux / d, uy / d);
    }
    for (let a = 0; a < n; a++) {
      const d = Math.hypot(dx[a], dy[a]) || 1, move = Math.min(d, heat) / d;
      x[a] += dx[a] * move;
      y[a] += dy[a] * move;
      clamp(a);
    }
  }
  for (let round = 0; round < 200; round++) {
    for (let a = 0; a < n; a++) {
      for (let b = 0; b < a; b++) {
        const overX = half[a] + half[b] + 4 - Math.abs(x[a] - x[b]), overY = (tall[a] + tall[b]) / 2 + 16 - Math.abs(y[a] - y[b]);
        if (overX <= 0 || overY <= 0) continue;
        const along = overX < overY ? x : y, move = Math.min(overX, overY) / 4 * (along[a] < along[b] ? -1 : 1);
        along[a] += move;
        along[b] -= move;
        clamp(a), clamp(b);
      }
    }
  }
  return Object.fromEntries(nodes.map(({ id }, i) => [id, { x: x[i], y: y[i] }]));
}

// Colours of the page as the library reads them: variables are resolved by an element of the page.
function colours(holder) {
  const probe = holder.appendChild(make("i", { hidden: true }));
  const names = ["text", "dim", "card", "line", "accent", "seed", "good", "soft"];
  const values = Object.fromEntries(names.map((name) => {
    probe.className = "colour-" + name;
    return [name, getComputedStyle(probe).color];
  }));
  probe.remove();
  return values;
}

function style(c) {
  const label = { color: c.text, "font-size": 11, "font-family": "system-ui, sans-serif", "text-wrap": "wrap", "text-max-width": 110 };
  return [
    { selector: "node", style: { ...label, label: "data(label)", "background-color": c.accent, width: 16, height: 16, "text-valign": "bottom", "text-margin-y": 4, "text-background-color": c.card, "text-background-opacity": 0.8, "text-background-padding": 1 } },
    { selector: "node[kind = 'seed']", style: { "background-color": c.seed, width: 22, height: 22, "font-weight": 600 } },
    { selector: "node[kind = 'answer']", style: { "background-color": c.good, width: 24, height: 24, "font-weight": 600 } },
    { selector: "node[kind = 'passage']", style: { shape: "round-rectangle", "background-color": c.soft, "border-color": c.dim, "border-width": 1.5, width: 26, height: 20, label: "data(label)", "text-valign": "center", "text-margin-y": 0, "text-background-opacity": 0 } },
    { selector: "edge", style: { width: 1.5, "line-color": c.accent, "curve-style": "bezier", "target-arrow-shape": "triangle", "target-arrow-color": c.accent, "arrow-scale": 0.8, opacity: 0.75 } },
    { selector: "edge[kind = 'path']", style: { width: 3, "line-color": c.seed, "target-arrow-color": c.seed } },
    { selector: "edge[kind = 'in']", style: { width: 1, "line-style": "dashed", "line-color": c.line, "target-arrow-shape": "none" } },
    { selector: "edge.near[label]", style: { ...label, label: "data(label)", "font-size": 10, "text-background-color": c.card, "text-background-opacity": 1, "text-background-padding": 2, "z-index": 9 } },
    { selector: ".far", style: { opacity: 0.18 } },
    { selector: ".chosen", style: { "border-width": 3, "border-color": c.text, "border-opacity": 1 } },
  ];
}

// Shows nodes [{id, label, kind}] and edges [{id, source, target, label, kind}]. onChoice(data) is called for a click.
// Returns {choose(id), add(nodes, edges)}.
export async function draw(holder, nodes, edges, onChoice) {
  const { default: cytoscape } = await import("./cytoscape.js");
  holder.picture?.destroy();
  const touch = matchMedia("(hover: none)").matches;
  const cy = (holder.picture = cytoscape({
    container: holder, style: style(colours(holder)), userZoomingEnabled: false, userPanningEnabled: !touch,
    boxSelectionEnabled: false, minZoom: 0.3, maxZoom: 2, autoungrabify: touch,
  }));
  const near = (target) => {
    const kept = target.isNode() ? target.closedNeighborhood() : target.union(target.connectedNodes());
    cy.elements().addClass("far");
    kept.removeClass("far").filter("edge").addClass("near");
  };
  const all = () => cy.elements().removeClass("far near");
  const choose = (element) => {
    cy.elements().removeClass("chosen");
    all();
    element.addClass("chosen");
    near(element);
  };
  cy.on("mouseover", "node, edge", ({ target }) => near(target));
  cy.on("mouseout", () => {
    all();
    if (cy.$(".chosen").nonempty()) near(cy.$(".chosen"));
  });
  cy.on("tap", ({ target }) => {
    if (target === cy) return all(), cy.elements().removeClass("chosen");
    choose(target);
    onChoice(target.data());
  });
  const arrange = () => {
    cy.resize();
    const room = Math.max(1, Math.sqrt(cy.nodes().length / 24)); // many names get a larger sheet, shown smaller
    const [width, height] = [holder.clientWidth * room, holder.clientHeight * room];
    if (!width || !height) return; // not shown now
    const items = cy.nodes().map((one) => ({ id: one.id(), label: one.data("label"), kind: one.data("kind") }));
    const joined = cy.edges().map((one) => ({ source: one.data("source"), target: one.data("target") }));
    const places = placed(items, joined, width, height);
    cy.nodes().positions((one) => places[one.id()]);
    cy.viewport({ zoom: 1 / room, pan: { x: 0, y: 0 } });
  };
  const add = (moreNodes, moreEdges) => {
    const known = (id) => cy.getElementById(id).nonempty();
    const fresh = moreNodes.filter(({ id }) => !known(id));
    cy.add(fresh.map(({ label, ...data }) => ({ data: { ...data, name: label, label: visible(dim(label)) } })));
    cy.add(moreEdges.filter(({ id }) => !known(id)).map(({ label, ...data }) => ({ data: label ? { ...data, label: visible(dim(label, 40)) } : data })));
    arrange();
  };
  add(nodes, edges);
  const themed = () => cy.destroyed() || cy.style(style(colours(holder)));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", themed);
  addEventListener("themed", themed);
  let size = holder.clientWidth;
  new ResizeObserver(() => cy.destroyed() || holder.clientWidth === size || ((size = holder.clientWidth), arrange())).observe(holder);
  return { add, choose: (id) => choose(cy.getElementById(id)), zoom: (by) => cy.zoom({ level: cy.zoom() * by, renderedPosition: { x: holder.clientWidth / 2, y: holder.clientHeight / 2 } }) };
}

// Nodes and edges of facts [{subject, label, object, source}], by names; kindOf(name) gives the kind of a node.
export function graphOf(facts, kindOf = () => "name", edgeKind = () => "fact") {
  const nodes = new Map(), edges = new Map();
  const id = (name) => "name " + name.toLowerCase();
  for (const fact of facts) {
    for (const name of [fact.subject, fact.object]) {
      if (!nodes.has(id(name))) nodes.set(id(name), { id: id(name), label: name, kind: kindOf(name) });
    }
    const edge = { id: `fact ${fact.subject} ${fact.label} ${fact.object}`, source: id(fact.subject), target: id(fact.object), label: fact.label, kind: edgeKind(fact), fact };
    edges.set(edge.id, edge);
  }
  return { nodes: [...nodes.values()], edges: [...edges.values()] };
}
