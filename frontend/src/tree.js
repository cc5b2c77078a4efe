// The tree of calls on the left: rows that are made when they are first shown, and the keyboard.

import { clean, h, short, time } from "./dom.js";
import { errorStep } from "./colours.js";

/** @typedef {import("./model.js").Model} Model */

export class Tree {
  /**
   * @param {Model} model
   * @param {(call: number) => void} open
   */
  constructor(model, open) {
    this.model = model;
    this.open = open;
    /** @type {Map<number, HTMLElement>} */
    this.rows = new Map();
    /** @type {Map<number, HTMLElement>} */
    this.groups = new Map();
    this.current = 0;
    const { times, errors } = model.data.measured;
    const columns = ["nodes", "params", "MACs", ...(times ? ["own", "time"] : []), ...(errors ? ["introduced", "accum."] : []), ...(model.others.length ? ["differs"] : [])];
    /** How much of the page's width the tree should have, in percent. */
    this.share = Math.min(50, 36 + 5 * (columns.length - 3) + (model.others.length ? 3 : 0));
    this.body = h("div", { role: "tree", class: "tree", "aria-label": "Calls of modules", onkeydown: (/** @type {KeyboardEvent} */ e) => this.key(e) });
    this.element = h("div", { class: "tree-box" },
      h("div", { class: "row head", "aria-hidden": "true" }, h("span", { class: "what" }, "module"), ...columns.map((c) => h("span", { class: c === "differs" ? "num wide" : "num", title: TITLES[c] }, c))),
      this.body);
    this.element.style.setProperty("--columns", String(columns.length + (model.others.length ? 0.75 : 0)));
    this.body.append(this.makeRow(0, 1), this.makeGroup(0));
    this.expand(0, true);
    for (const child of model.children[0]) if (model.children[0].length < 60) this.expand(child, true);
  }

  /** @param {number} call @param {number} level */
  makeRow(call, level) {
    const { model } = this;
    const item = model.calls[call];
    const { times, errors } = model.data.measured;
    const leaf = model.children[call].length === 0;
    const work = item.work;
    const marks = [];
    if (item.elsewhere?.some((w) => w[0] === "fused")) marks.push(h("i", { class: "mark", title: "Some of its work is fused into nodes of other calls" }, "fused"));
    else if (item.nodes === 0) marks.push(h("i", { class: "mark", title: item.elsewhere ? "Its work is done elsewhere" : "No node of the file does its work" }, item.elsewhere?.[0][0] ?? "no nodes"));
    const shared = model.own[call].filter((node) => model.nodes[node].s).length;
    if (shared) marks.push(h("i", { class: "mark", title: "Nodes that also work for other calls" }, `${shared} shared`));
    const row = h("div", { class: `row${item.nodes ? "" : " empty"}`, role: "treeitem", tabindex: call === 0 ? 0 : -1, "aria-level": level, "aria-expanded": leaf ? null : "false", "data-call": call, title: `${clean(item.path ?? "(root)")}\n${clean(item.tag)}`, onclick: (/** @type {MouseEvent} */ e) => this.click(e, call) },
      h("span", { class: "what" }, h("span", { class: "twist", "aria-hidden": "true" }, leaf ? "" : "▸"), h("span", { class: "name" }, h("b", {}, clean(item.class, 80)), " ", h("span", { class: "dim" }, clean(item.name ?? "", 80))), ...marks),
      this.number(item.nodes, model.calls[0].nodes, String(item.nodes)),
      this.number(item.parameters ?? 0, model.calls[0].parameters ?? 0, short(item.parameters)),
      this.number(work[0], model.calls[0].work[0], `${work[2] ? "≥ " : ""}${short(work[0])}${work[1] === null ? "" : "×…"}`, work[1] ?? undefined));
    row.style.setProperty("--level", String(level - 1));
    if (times) row.append(this.number(times[call]?.[0] ?? 0, times[0]?.[1] ?? 0, times[call] ? time(times[call][0]) : ""), this.number(times[call]?.[1] ?? 0, times[0]?.[1] ?? 0, times[call] ? time(times[call][1]) : ""));
    if (errors) for (const which of [0, 1]) row.append(this.number(errors[call] ? errorStep(/** @type {number | null} */ (errors[call][which])) : 0, 5, errors[call] ? (/** @type {number | null} */ (errors[call][which])?.toExponential(1) ?? "∞") : ""));
    if (model.others.length) {
      const { total, text } = model.differences(call);
      const cell = this.number(total, model.differences(0).total, text);
      cell.classList.add("wide");
      row.append(cell);
    }
    this.rows.set(call, row);
    return row;
  }

  /** @param {number} value @param {number} whole @param {string} text @param {string} [title] */
  number(value, whole, text, title) {
    const cell = h("span", { class: "num", title }, text);
    cell.style.setProperty("--part", `${whole ? Math.min(100, (100 * value) / whole) : 0}%`);
    return cell;
  }

  /** @param {number} call */
  makeGroup(call) {
    const group = h("div", { role: "group", hidden: true });
    this.groups.set(call, group);
    return group;
  }

  /** @param {number} call @param {boolean} open */
  expand(call, open) {
    const row = this.rows.get(call);
    const group = this.groups.get(call);
    if (!row || !group || !this.model.children[call].length) return;
    if (open && !group.childElementCount) {
      const level = Number(row.getAttribute("aria-level")) + 1;
      group.append(...this.model.children[call].flatMap((child) => [this.makeRow(child, level), this.makeGroup(child)]));
    }
    group.hidden = !open;
    row.setAttribute("aria-expanded", String(open));
  }

  /** @param {MouseEvent} event @param {number} call */
  click(event, call) {
    if (/** @type {Element} */ (event.target).classList.contains("twist")) this.toggle(call);
    else this.open(call);
  }

  /** @param {number} call */
  toggle(call) {
    this.expand(call, this.rows.get(call)?.getAttribute("aria-expanded") === "false");
  }

  /** Shows which call is open. @param {number} call */
  select(call) {
    for (const above of this.model.way(call).slice(0, -1)) this.expand(above, true);
    this.rows.get(this.current)?.removeAttribute("aria-selected");
    this.current = call;
    const row = this.rows.get(call);
    row?.setAttribute("aria-selected", "true");
    this.focusable(call);
    row?.scrollIntoView({ block: "nearest" });
  }

  /** @param {number} call */
  focusable(call) {
    this.body.querySelector('[tabindex="0"]')?.setAttribute("tabindex", "-1");
    this.rows.get(call)?.setAttribute("tabindex", "0");
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const row = /** @type {HTMLElement | null} */ (/** @type {Element} */ (event.target).closest(".row"));
    if (!row || event.ctrlKey || event.metaKey || event.altKey) return;
    const call = Number(row.dataset.call);
    const shown = () => /** @type {HTMLElement[]} */ ([...this.body.querySelectorAll(".row")].filter((r) => /** @type {HTMLElement} */ (r).offsetParent !== null));
    /** @param {HTMLElement | undefined} to */
    const move = (to) => {
      if (!to) return;
      this.focusable(Number(to.dataset.call));
      to.focus();
    };
    const expanded = row.getAttribute("aria-expanded");
    const parent = this.model.calls[call].parent;
    if (event.key === "ArrowDown") move(shown()[shown().indexOf(row) + 1]);
    else if (event.key === "ArrowUp") move(shown()[shown().indexOf(row) - 1]);
    else if (event.key === "Home") move(shown()[0]);
    else if (event.key === "End") move(shown().at(-1));
    else if (event.key === "ArrowRight" && expanded === "false") this.expand(call, true);
    else if (event.key === "ArrowRight" && expanded === "true") move(this.rows.get(this.model.children[call][0]));
    else if (event.key === "ArrowLeft" && expanded === "true") this.expand(call, false);
    else if (event.key === "ArrowLeft" && parent !== undefined) move(this.rows.get(parent));
    else if (event.key === "Enter" || event.key === " ") this.open(call);
    else return;
    event.preventDefault();
  }
}

const TITLES = /** @type {Record<string, string>} */ ({
  nodes: "ONNX nodes of the call and all below it",
  params: "Parameters of the module and all below it",
  MACs: "Multiply-adds; ×… : times dynamic axes, the formula shows when pointed at",
  own: "Time of its own kernels",
  time: "Time with all calls below it",
  introduced: "Relative error that the call itself makes",
  differs: "Nodes removed (−), added (+) and changed (~) from each form of the model to the next",
  "accum.": "Relative error of what it gives in the running model",
});
