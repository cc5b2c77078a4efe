// The picture of one call: boxes, nodes, borders and edges, with pan and zoom. Only what is in sight is in the page.

import { clean, h, s } from "./dom.js";
import { colourCalls, colourNode } from "./colours.js";

/** @typedef {import("./model.js").Model} Model */
/** @typedef {import("./model.js").Scene} Scene */
/** @typedef {{kind: "call" | "node" | "tensor", ref: number}} Chosen */

const KINDS = ["call", "node", "in", "out", "fold"];
const READABLE = 0.8;
const FEW = 400; // so many elements are drawn at once, in sight or not

export class Picture {
  /**
   * @param {Model} model
   * @param {{open: (call: number) => void, choose: (chosen: Chosen) => void}} actions
   * @param {string} [title]
   */
  constructor(model, actions, title) {
    this.model = model;
    this.actions = actions;
    this.mode = "category";
    this.call = 0;
    /** @type {Set<number>} the calls whose repeats are shown one by one */
    this.unfolded = new Set();
    this.view = { x: 0, y: 0, scale: 1 };
    /** @type {Chosen | null} */
    this.chosen = null;
    this.layer = s("g", {});
    this.svg = s("svg", { class: "picture", tabindex: 0, role: "group", "aria-label": "Picture of the call" },
      s("defs", {}, s("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" }, s("path", { d: "M0 0 8 4 0 8z", class: "head" }))),
      this.layer);
    this.legend = h("div", { class: "legend" });
    this.note = h("p", { class: "note", hidden: true });
    this.element = h("div", { class: "picture-box" }, title && h("p", { class: "form" }, clean(title, 80)), this.svg, this.note, this.legend,
      h("div", { class: "zoom" }, this.button("+", "Closer", () => this.zoom(1.25)), this.button("−", "Farther", () => this.zoom(0.8)), this.button("fit", "All in sight", () => this.fit(0.02))));
    this.listen();
  }

  /** @param {string} text @param {string} title @param {() => void} action */
  button(text, title, action) {
    return h("button", { type: "button", title, "aria-label": title, onclick: action }, text);
  }

  /** @returns {Scene} */
  get scene() {
    const scenes = this.model.data.scenes[this.call];
    return scenes[this.unfolded.has(this.call) ? scenes.length - 1 : 0];
  }

  /** Shows a call. @param {number} call */
  show(call) {
    this.call = call;
    this.chosen = null;
    this.fit(READABLE);
  }

  /** Shows the call of this path, if there is one, or says that there is none. @param {string} path */
  follow(path) {
    const call = this.model.byPath.get(path);
    this.note.hidden = call !== undefined;
    this.svg.classList.toggle("away", call === undefined);
    this.note.textContent = `no call ${clean(path, 80)} in this form`;
    if (call !== undefined) this.show(call);
  }

  /** @param {string} mode */
  colourBy(mode) {
    this.mode = mode;
    this.draw();
  }

  /** Marks what is chosen. @param {Chosen | null} chosen */
  choose(chosen) {
    this.chosen = chosen;
    const position = chosen === null ? -1 : this.scene.e.findIndex((e) => e[1] === chosen.ref && (chosen.kind === "node" ? e[0] === 1 : chosen.kind === "call" ? e[0] === 0 || e[0] === 4 : e[0] === 2 || e[0] === 3));
    if (position >= 0) this.reveal(this.scene.e[position]);
    this.draw();
  }

  /** Moves so that an element is in sight. @param {any[]} element */
  reveal([, , x, y, w, height]) {
    const box = this.svg.getBoundingClientRect();
    const { view } = this;
    const left = view.x + x * view.scale;
    const top = view.y + y * view.scale;
    if (left < 0 || left + w * view.scale > box.width) view.x = box.width / 2 - (x + w / 2) * view.scale;
    if (top < 0 || top + height * view.scale > box.height) view.y = box.height / 2 - (y + height / 2) * view.scale;
  }

  /** Fits the picture into its place, not smaller than a scale that can be read. @param {number} least */
  fit(least) {
    const box = this.svg.getBoundingClientRect();
    const { w, h: height } = this.scene;
    const scale = Math.max(least, Math.min(1.15, box.width / w, box.height / height));
    const x = (box.width - w * scale) / 2;
    this.view = { scale, x: w * scale > box.width ? this.centre(scale, box.width) : x, y: height * scale > box.height ? 0 : (box.height - height * scale) / 2 };
    this.draw();
  }

  /** Where a picture that is too wide begins: with its first row in the middle. @param {number} scale @param {number} width */
  centre(scale, width) {
    const top = this.scene.e.reduce((least, e) => Math.min(least, e[3]), Infinity);
    const row = this.scene.e.filter((e) => e[3] <= top + 30);
    const middle = row.reduce((sum, e) => sum + e[2] + e[4] / 2, 0) / row.length;
    return width / 2 - middle * scale;
  }

  /** @param {number} factor @param {number} [x] @param {number} [y] */
  zoom(factor, x, y) {
    const box = this.svg.getBoundingClientRect();
    const { view } = this;
    const scale = Math.min(3, Math.max(0.02, view.scale * factor));
    const [cx, cy] = [x ?? box.width / 2, y ?? box.height / 2];
    this.view = { scale, x: cx - ((cx - view.x) * scale) / view.scale, y: cy - ((cy - view.y) * scale) / view.scale };
    this.draw();
  }

  listen() {
    this.svg.addEventListener("wheel", (event) => {
      event.preventDefault();
      const box = this.svg.getBoundingClientRect();
      if (event.ctrlKey || event.metaKey) this.zoom(Math.exp(-event.deltaY / 200), event.clientX - box.left, event.clientY - box.top);
      else this.pan(-event.deltaX, -event.deltaY);
    }, { passive: false });
    /** @type {{x: number, y: number} | null} */
    let from = null;
    this.svg.addEventListener("pointerdown", (event) => {
      from = { x: event.clientX, y: event.clientY };
    });
    addEventListener("pointermove", (event) => {
      if (!from || !event.buttons) return;
      this.pan(event.clientX - from.x, event.clientY - from.y);
      from = { x: event.clientX, y: event.clientY };
    });
    addEventListener("pointerup", () => {
      from = null;
    });
    this.svg.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.draw()).observe(this.svg);
  }

  /** @param {number} dx @param {number} dy */
  pan(dx, dy) {
    this.view.x += dx;
    this.view.y += dy;
    this.draw();
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const step = 60;
    /** @type {Record<string, () => void>} */
    const keys = {
      "+": () => this.zoom(1.25),
      "-": () => this.zoom(0.8),
      0: () => this.fit(0.02),
      ArrowUp: () => this.pan(0, step),
      ArrowDown: () => this.pan(0, -step),
      ArrowLeft: () => this.pan(step, 0),
      ArrowRight: () => this.pan(-step, 0),
      Backspace: () => this.actions.open(this.model.calls[this.call].parent ?? 0),
    };
    const action = keys[event.key];
    if (!action) return;
    action();
    event.preventDefault();
  }

  /** Whether a rectangle is in sight, or near. @param {number} x @param {number} y @param {number} w @param {number} height @param {DOMRect} box */
  near(x, y, w, height, box) {
    const { view } = this;
    const [left, top] = [view.x + x * view.scale, view.y + y * view.scale];
    return left < box.width + 100 && top < box.height + 100 && left + w * view.scale > -100 && top + height * view.scale > -100;
  }

  draw() {
    const { scene, view } = this;
    const box = this.svg.getBoundingClientRect();
    const all = scene.e.length <= FEW;
    const plain = view.scale < 0.25; // too small to be read
    const words = /** @type {Map<string, string>} */ (new Map());
    const inSight = scene.e.map((e) => all || this.near(e[2], e[3], e[4], e[5], box));
    const routes = scene.r.filter((r) => all || this.nearRoute(r[3], box));
    const edges = routes.filter(([start, end]) => inSight[start] && inSight[end]).map((r) => this.makeEdge(r, plain));
    // Edges that leave the sight are one path: there may be thousands, and none of them is clicked where it leads away.
    const away = routes.filter(([start, end]) => !(inSight[start] && inSight[end])).map((r) => trace(r[3], plain)).join("");
    if (away) edges.unshift(s("g", { class: "edge far" }, s("path", { d: away })));
    const elements = scene.e.flatMap((e, position) => {
      if (!inSight[position]) return [];
      return [this.makeElement(e, position, words, plain)];
    });
    const labels = plain ? [] : this.makeLabels(all ? null : box);
    this.layer.replaceChildren(...edges, ...labels, ...elements);
    this.layer.setAttribute("transform", `translate(${view.x} ${view.y}) scale(${view.scale})`);
    if (this.layer.querySelector(".shared")) words.set("also works for other calls", "dot");
    this.legend.replaceChildren(...[...words].map(([word, fill]) => h("span", {}, h("i", { class: `swatch ${fill}` }), clean(word, 40))));
  }

  /** @param {number[]} points @param {DOMRect} box */
  nearRoute(points, box) {
    let [left, right, top, bottom] = [points[0], points[0], points[1], points[1]];
    for (let i = 2; i < points.length; i += 2) {
      left = Math.min(left, points[i]);
      right = Math.max(right, points[i]);
      top = Math.min(top, points[i + 1]);
      bottom = Math.max(bottom, points[i + 1]);
    }
    return this.near(left, top, right - left, bottom - top, box);
  }

  /** @param {any[]} edge @param {boolean} plain */
  makeEdge([start, end, tensors, points], plain) {
    const d = trace(points, plain);
    const ends = [this.scene.e[start], this.scene.e[end]];
    const lit = this.chosen !== null && ends.some((e) => this.isChosen(e));
    const title = tensors.map((/** @type {number} */ t) => this.describe(t)).join("\n");
    const choose = () => this.actions.choose({ kind: "tensor", ref: tensors[0] });
    return s("g", { class: `edge${lit ? " lit" : ""}${points[1] > points.at(-1) ? " back" : ""}`, onclick: choose }, s("title", {}, title), s("path", { d, class: "wide" }), s("path", { d, "marker-end": plain ? null : "url(#arrow)" }));
  }

  /** @param {number} tensor */
  describe(tensor) {
    const { name, dtype, shape } = this.model.tensor(tensor);
    return clean(`${name}  ${dtype} ${shape}`.trim(), 200);
  }

  /** @param {any[]} element */
  isChosen(element) {
    const { chosen } = this;
    if (!chosen) return false;
    const kind = KINDS[element[0]];
    return element[1] === chosen.ref && (kind === chosen.kind || (kind === "fold" && chosen.kind === "call") || (chosen.kind === "tensor" && (kind === "in" || kind === "out")));
  }

  /** The names and shapes of what elements give, once for each that gives it. @param {DOMRect | null} box */
  makeLabels(box) {
    /** @type {Map<number, Set<number>>} */
    const given = new Map();
    for (const [start, , tensors] of this.scene.r) {
      const known = given.get(start) ?? new Set();
      tensors.forEach((t) => known.add(t));
      given.set(start, known);
    }
    return [...given].flatMap(([start, tensors]) => {
      const [kind, , x, y, w, height] = this.scene.e[start];
      if (box && !this.near(x, y, w, height + 40, box)) return [];
      const fits = Math.floor((w / 2 + 22) / 5.6);
      const list = [...tensors];
      const { name, shape } = this.model.tensor(list[0]);
      const lines = list.length > 1 ? [`${list.length} tensors`] : [kind === 2 ? "" : name, shape].filter(Boolean);
      if (!lines.length) return [];
      return [s("text", { class: "label", x: x + w / 2 + 6, y: y + height + 12 }, s("title", {}, list.map((t) => this.describe(t)).join("\n")), ...lines.map((line, i) => s("tspan", { x: x + w / 2 + 6, dy: i ? 11 : 0 }, clean(line, fits))))];
    });
  }

  /** @param {any[]} element @param {number} position @param {Map<string, string>} words @param {boolean} plain */
  makeElement(element, position, words, plain) {
    const [code, ref, x, y, w, height, label] = element;
    const kind = KINDS[code];
    const { model } = this;
    const run = kind === "fold" ? /** @type {number[]} */ (this.scene.f?.find(([first]) => first === ref)?.[1]) : [ref];
    let colour = { fill: "border", word: "" };
    if (kind === "node") colour = colourNode(model, this.mode, ref);
    else if (kind === "call" || kind === "fold") colour = colourCalls(model, this.mode, run);
    if (colour.word) words.set(colour.word, colour.fill);
    const { lines, title, mark } = this.tell(kind, ref, run, label);
    const activate = () => this.activate(kind, ref, run);
    const chosen = this.isChosen(element);
    const group = s("g", { class: `box ${kind} ${colour.fill}${chosen ? " chosen" : ""}`, transform: `translate(${x} ${y})`, tabindex: 0, role: "button", "aria-label": title, "data-kind": kind, "data-ref": ref, "data-position": position, onclick: activate, onkeydown: (/** @type {KeyboardEvent} */ e) => (e.key === "Enter" || e.key === " ") && (e.preventDefault(), activate()) }, s("title", {}, title));
    if (kind === "fold") group.append(s("rect", { class: "shadow", x: 8, y: -6, width: w - 8, height, rx: 6 }), s("rect", { class: "shadow", x: 4, y: -3, width: w - 4, height, rx: 6 }));
    group.append(s("rect", { width: w, height, rx: kind === "in" || kind === "out" ? height / 2 : kind === "node" ? 5 : 7 }));
    if (!plain) {
      const fits = Math.floor((w - 14) / 6.6);
      lines.forEach((line, i) => group.append(s("text", { x: w / 2, y: lines.length === 1 ? height / 2 + 4 : height / 2 - 3 + i * 15, class: i ? "second" : "first" }, clean(line, fits))));
      if (mark) group.append(s("circle", { class: "shared", cx: w - 2, cy: 2, r: 5 }));
    }
    return group;
  }

  /** @param {string} kind @param {number} ref @param {number[]} run @param {string} label */
  tell(kind, ref, run, label) {
    const { model } = this;
    if (kind === "node") {
      const item = model.nodes[ref];
      const also = item.s?.filter((c) => c !== item.c).map((c) => model.calls[c].path || "(root)");
      return { lines: [model.op(ref).split("::").at(-1) ?? ""], title: clean(`${model.op(ref)} ${item.n}`) + (also?.length ? `\n${clean(`also works for ${also.join(", ")}`)}` : ""), mark: Boolean(also?.length) };
    }
    if (kind === "in" || kind === "out") {
      const shared = kind === "in" && this.isShared(ref);
      return { lines: [label], title: `${kind === "in" ? "comes in" : "goes out"}: ${this.describe(ref)}${shared ? "\ncomputed once, in another call, for this one too" : ""}`, mark: shared };
    }
    const first = model.calls[ref];
    if (kind === "fold") return { lines: [`${run.length} × ${first.class}`, `${first.name} … ${model.calls[run.at(-1) ?? ref].name}`], title: clean(`${run.length} × ${first.class}; click to see them one by one`), mark: false };
    return { lines: [first.class, `${first.name ?? ""} · ${first.nodes} ${first.nodes === 1 ? "node" : "nodes"}`], title: clean(`${first.path}: ${first.nodes} nodes`), mark: false };
  }

  /** Whether what comes in is computed elsewhere for calls in here, too. @param {number} tensor */
  isShared(tensor) {
    const { producer } = this.model.tensor(tensor);
    return producer >= 0 && Boolean(this.model.nodes[producer].s?.some((c) => this.model.way(c).includes(this.call)));
  }

  /** @param {string} kind @param {number} ref @param {number[]} run */
  activate(kind, ref, run) {
    if (kind === "fold") {
      this.unfolded.add(this.call);
      this.fit(READABLE);
    } else if (kind === "call") this.actions.open(ref);
    else this.actions.choose(kind === "node" ? { kind: "node", ref } : { kind: "tensor", ref });
    return run;
  }

  /** Folds the repeats of the call again, or shows them one by one. */
  toggleFolds() {
    if (!this.unfolded.delete(this.call)) this.unfolded.add(this.call);
    this.fit(READABLE);
  }
}

/** The line through points, as a path's data. @param {number[]} points @param {boolean} plain */
function trace(points, plain) {
  let d = `M${points[0]} ${points[1]}`;
  for (let i = 2; i < points.length; i += 2) {
    const middle = (points[i - 1] + points[i + 1]) / 2;
    d += plain ? `L${points[i]} ${points[i + 1]}` : `C${points[i - 2]} ${middle} ${points[i]} ${middle} ${points[i]} ${points[i + 1]}`;
  }
  return d;
}
