// Search by path, class, tag, operator, node and tensor name.

import { clean, h } from "./dom.js";

/** @typedef {import("./model.js").Model} Model */
/** @typedef {import("./picture.js").Chosen} Chosen */
/** @typedef {{chosen: Chosen, call: number, what: string, name: string, where: string}} Hit */

const MOST = 100;

/**
 * Finds what a text is part of; calls first, then nodes, then tensors.
 * @param {Model} model @param {string} text
 * @returns {{hits: Hit[], total: number}}
 */
export function search(model, text) {
  const wanted = text.toLowerCase();
  /** @type {Hit[]} */
  const hits = [];
  let total = 0;
  /** @param {boolean} found @param {() => Hit} make */
  const add = (found, make) => {
    if (found && ++total <= MOST) hits.push(make());
  };
  /** @param {string | undefined} name */
  const has = (name) => name !== undefined && name.toLowerCase().includes(wanted);
  model.calls.forEach((call, ref) => add(has(call.path) || has(call.class) || (call.tagged && has(call.tag)), () => ({ chosen: { kind: "call", ref }, call: ref, what: call.class, name: call.path || "(root)", where: "call" })));
  model.nodes.forEach((node, ref) => add(has(model.text(node.o)) || has(node.n), () => ({ chosen: { kind: "node", ref }, call: node.c, what: model.text(node.o), name: node.n, where: model.calls[node.c].path || "(root)" })));
  model.data.tensors.forEach((tensor, ref) => add(has(tensor[0]), () => {
    const { producer } = model.tensor(ref);
    const user = producer >= 0 ? producer : model.readersOf(ref)[0];
    const call = user === undefined ? 0 : model.nodes[user].c;
    return { chosen: { kind: "tensor", ref }, call, what: "tensor", name: tensor[0], where: model.calls[call].path || "(root)" };
  }));
  return { hits, total };
}

export class Search {
  /** @param {Model} model @param {(hit: Hit) => void} open */
  constructor(model, open) {
    this.model = model;
    this.open = open;
    /** @type {Hit[]} */
    this.hits = [];
    this.input = /** @type {HTMLInputElement} */ (h("input", { type: "search", placeholder: "Search path, class, operator, tensor   /", "aria-label": "Search", "aria-controls": "hits", oninput: () => this.update(), onkeydown: (/** @type {KeyboardEvent} */ e) => this.key(e) }));
    this.list = h("div", { id: "hits", class: "hits", hidden: true, onkeydown: (/** @type {KeyboardEvent} */ e) => this.key(e) });
    this.element = h("div", { class: "search", role: "search" }, this.input, this.list);
    addEventListener("pointerdown", (e) => { if (!this.element.contains(/** @type {Node} */ (e.target))) this.list.hidden = true; });
  }

  update() {
    const text = this.input.value.trim();
    this.list.hidden = !text;
    if (!text) return;
    const { hits, total } = search(this.model, text);
    this.hits = hits;
    this.list.replaceChildren(
      h("p", { class: "dim count" }, total > hits.length ? `${total} found, the first ${hits.length} listed` : `${total} found`),
      ...hits.map((hit) => h("button", { type: "button", class: "hit", onclick: () => this.take(hit) }, h("b", {}, clean(hit.what, 60)), " ", h("span", {}, clean(hit.name, 120)), " ", h("span", { class: "dim" }, clean(hit.where, 80)))));
  }

  /** @param {Hit} hit */
  take(hit) {
    this.list.hidden = true;
    this.open(hit);
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const buttons = /** @type {HTMLElement[]} */ ([...this.list.querySelectorAll(".hit")]);
    const at = buttons.indexOf(/** @type {HTMLElement} */ (document.activeElement));
    if (event.key === "Escape") {
      this.list.hidden = true;
      this.input.focus();
    } else if (event.key === "ArrowDown") buttons[Math.min(at + 1, buttons.length - 1)]?.focus();
    else if (event.key === "ArrowUp") (at > 0 ? buttons[at - 1] : this.input).focus();
    else if (event.key === "Enter" && at < 0 && this.hits.length) this.take(this.hits[0]);
    else return;
    event.preventDefault();
  }
}
