// The details below: all that is known of a call, a node or a tensor.

import { clean, figure, h, s, short, size, time } from "./dom.js";

/** @typedef {import("./model.js").Model} Model */
/** @typedef {import("./picture.js").Chosen} Chosen */

export class Details {
  /**
   * @param {Model} model
   * @param {{open: (call: number) => void, choose: (chosen: Chosen, call?: number) => void}} actions
   */
  constructor(model, actions) {
    this.model = model;
    this.actions = actions;
    this.element = h("section", { class: "details", "aria-label": "Details", "aria-live": "polite" });
  }

  /** @param {Chosen} chosen */
  show(chosen) {
    const make = { call: () => this.call(chosen.ref), node: () => this.node(chosen.ref), tensor: () => this.tensor(chosen.ref) }[chosen.kind];
    this.element.replaceChildren(...make());
    this.element.scrollTop = 0;
  }

  /** @param {string} title @param {(Node | string)[]} buttons */
  head(title, ...buttons) {
    return h("h2", {}, h("span", {}, clean(title)), ...buttons);
  }

  /** @param {string} label @param {string} text */
  copy(label, text) {
    const button = h("button", { type: "button", class: "copy", title: clean(text), "data-copy": text }, label);
    button.addEventListener("click", async () => {
      await copyText(text);
      button.textContent = "copied";
      setTimeout(() => { button.textContent = label; }, 1200);
    });
    return button;
  }

  /** @param {number} call */
  link(call) {
    const item = this.model.calls[call];
    return h("a", { href: this.model.link(call) }, clean(item.path || `${item.class} (root)`));
  }

  /** @param {number} node */
  nodeLink(node) {
    const go = () => this.actions.choose({ kind: "node", ref: node }, this.model.nodes[node].c);
    return h("button", { type: "button", class: "link", onclick: go }, clean(`${this.model.op(node)} ${this.model.nodes[node].n}`, 80));
  }

  /** @param {number} tensor @param {string} [name] */
  tensorLink(tensor, name) {
    const item = this.model.tensor(tensor);
    return h("button", { type: "button", class: "link", onclick: () => this.actions.choose({ kind: "tensor", ref: tensor }) }, clean(name || item.name, 120));
  }

  /** @param {string} title @param {[string | Node, ...(string | Node | null)[]][]} rows */
  table(title, rows) {
    if (!rows.length) return h("span", { hidden: true });
    const shown = rows.slice(0, 60);
    return h("div", { class: "block" }, h("h3", {}, title),
      h("table", {}, ...shown.map((cells) => h("tr", {}, ...cells.map((cell, i) => h(i ? "td" : "th", i ? {} : { scope: "row" }, typeof cell === "string" ? clean(cell, 500) : cell))))),
      rows.length > shown.length && h("p", { class: "dim" }, `and ${rows.length - shown.length} more`));
  }

  /** @param {number} tensor @returns {[Node, string]} */
  tensorRow(tensor) {
    const item = this.model.tensor(tensor);
    const held = item.constant ? ` · ${item.parameter ? `parameter ${item.parameter}` : "constant"}, ${size(item.bytes)}` : "";
    return [this.tensorLink(tensor), `${item.dtype} ${item.shape}${held}`];
  }

  /** @param {number} call */
  call(call) {
    const { model } = this;
    const item = model.calls[call];
    const { times, errors } = model.data.measured;
    const target = item.path ? quote(item.path) : quote(item.tag);
    const command = `hieronnx extract ${quote(model.data.file || "model.onnx")} ${target} -o part.onnx`;
    /** @type {[string, ...(string | Node)[]][]} */
    const facts = [["class", item.full], ["module", item.path || "(root)"], ["tag", item.tag + (item.tagged ? "" : "  (of the nearest call above that has one)")]];
    if (item.via && item.via !== item.path) facts.push(["called through", item.via]);
    facts.push(["nodes", `${item.nodes}, of its own ${item.own}`]);
    if (item.parameters !== undefined) facts.push(["parameters", `${item.parameters.toLocaleString("en")}${item.bytes ? ` in ${size(item.bytes)}` : ""}`]);
    facts.push(["multiply-adds", `${item.work[1] ?? short(item.work[0])}${item.work[2] ? `, and ${item.work[2]} nodes unknown` : ""}`]);
    if (times?.[call]) facts.push(["time", `${time(times[call][1])}, of its own ${time(times[call][0])}`]);
    if (errors?.[call]) facts.push(["error", `introduced ${errors[call][0]?.toExponential(2) ?? "∞"}, accumulated ${errors[call][1]?.toExponential(2) ?? "∞"}: ${errors[call][2]}`]);
    const parameters = [...new Set(model.own[call].flatMap((node) => model.nodes[node].i ?? []))].filter((t) => t >= 0 && model.tensor(t).constant);
    return [
      this.head(`${item.class}${item.path ? ` · ${item.path}` : ""}`, this.copy("copy tag", item.tag), this.copy("copy path", item.path ?? ""), this.copy("copy extract command", command)),
      h("div", { class: "blocks" },
        this.table("Call", facts),
        this.table("Arguments", (item.args ?? []).map(([t, names]) => [names.join(", "), ...this.tensorRow(t)])),
        this.table("Returned", (item.results ?? []).map(([t, names]) => [names.filter(Boolean).map((name) => (/^\d+$/.test(name) ? `result ${name}` : name)).join(", ") || "result", ...this.tensorRow(t)])),
        this.table("Parameters and constants of its own nodes", parameters.map((t) => this.tensorRow(t))),
        this.table("Work done elsewhere", (item.elsewhere ?? []).map(([how, op, name, at]) => [how, `${op} ${name}`, at >= 0 ? this.link(at) : "in an initializer"]))),
    ];
  }

  /** @param {number} node */
  node(node) {
    const { model } = this;
    const item = model.nodes[node];
    const [evidence, level] = model.data.evidence[item.e];
    /** @type {[string, ...(string | Node)[]][]} */
    const facts = [["name", item.n], ["call", this.link(item.c)], ["evidence", `${evidence} (${level})${item.r === undefined ? "" : `, ${model.text(item.r)}`}`], ["category", model.data.categories[item.k]]];
    if (item.g !== undefined) facts.push(["graph", model.text(item.g)]);
    if (item.m !== undefined) facts.push(["multiply-adds", typeof item.m === "number" ? short(item.m) : item.m]);
    const source = item.p?.find(([key]) => model.text(key).endsWith("stack_trace"));
    if (source) facts.push(["source", h("code", {}, clean(model.text(source[1]), 400))]);
    return [
      this.head(`${model.op(node)} · ${item.n}`, this.copy("copy name", item.n)),
      h("div", { class: "blocks" },
        this.table("Node", facts),
        this.table("Works for", (item.s ?? []).map((call) => [this.link(call), model.calls[call].class])),
        this.table("Attributes", (item.a ?? []).map(([key, value]) => [model.text(key), model.text(value)])),
        this.table("Inputs", (item.i ?? []).filter((t) => t >= 0).map((t) => this.tensorRow(t))),
        this.table("Outputs", (item.u ?? []).filter((t) => t >= 0).map((t) => this.tensorRow(t))),
        this.table("Metadata", (item.p ?? []).map(([key, value]) => [model.text(key), model.text(value)]))),
    ];
  }

  /**
   * @param {import("./model.js").Statistics} known @param {number} elements
   * @returns {[string, string | Node][]}
   */
  statistics([least, most, mean, deviation, zeros, infinite, bars], elements) {
    /** @type {[string, string | Node][]} */
    const facts = [["range", `${figure(least)} … ${figure(most)}`], ["mean", `${figure(mean)} ± ${figure(deviation)}`]];
    if (zeros) facts.push(["zeros", `${zeros.toLocaleString("en")} (${figure((100 * zeros) / elements)} %)`]);
    if (infinite) facts.push(["not finite", infinite.toLocaleString("en")]);
    if (bars.length) {
      const highest = Math.max(...bars);
      const title = `values from ${figure(least)} to ${figure(most)}; the highest bar: ${highest.toLocaleString("en")}`;
      facts.push(["values", s("svg", { class: "bars", width: bars.length * 8, height: 40, role: "img", "aria-label": title }, s("title", {}, title), ...bars.map((bar, i) => {
        const height = bar ? Math.max(1, (40 * bar) / highest) : 0;
        return s("rect", { x: i * 8, y: 40 - height, width: 7, height });
      }))]);
    }
    return facts;
  }

  /** @param {number} tensor */
  tensor(tensor) {
    const { model } = this;
    const item = model.tensor(tensor);
    /** @type {[string, ...(string | Node)[]][]} */
    const facts = [["name", item.name], ["type", `${item.dtype || "unknown"} ${item.shape}`]];
    if (item.constant) facts.push(["holds", item.parameter ? `parameter ${item.parameter}` : "a constant"], ["size", `${item.elements.toLocaleString("en")} elements, ${size(item.bytes)}`]);
    else if (item.producer >= 0) facts.push(["made by", this.nodeLink(item.producer)], ["in", this.link(model.nodes[item.producer].c)]);
    else facts.push(["made by", "nothing in the graph: it is fed"]);
    const known = model.data.statistics?.[tensor];
    if (known) facts.push(...this.statistics(known, item.elements));
    else if (item.constant && !model.data.statistics) facts.push(["statistics", h("span", { class: "dim" }, "made with 'hieronnx view --statistics'")]);
    return [
      this.head(`tensor · ${item.name}`, this.copy("copy name", item.name)),
      h("div", { class: "blocks" }, this.table("Tensor", facts), this.table("Read by", model.readersOf(tensor).map((node) => [this.nodeLink(node), this.link(model.nodes[node].c)]))),
    ];
  }
}

/** Quotes a word for a shell. @param {string} word */
function quote(word) {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`;
}

/** @param {string} text */
async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // A page from disk may not be let; what is selected can always be copied.
    const area = /** @type {HTMLTextAreaElement} */ (h("textarea", { class: "offscreen" }));
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}
