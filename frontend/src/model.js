// The data of the page, unpacked, with what is derived from it.

/**
 * @typedef {{path?: string, name?: string, class: string, full: string, label: string, tag: string, tagged: boolean,
 *   via?: string, parent?: number, nodes: number, own: number, parameters?: number, bytes?: number,
 *   work: [number, string | null, number], args?: [number, string[]][], results?: [number, string[]][],
 *   elsewhere?: [string, string, string, number][]}} Call
 * @typedef {{o: number, n: string, c: number, e: number, k: number, i?: number[], u?: number[], a?: [number, number][],
 *   p?: [number, number][], s?: number[], r?: number, g?: number, l?: number, m?: number | string}} GraphNode
 * @typedef {{w: number, h: number, e: any[][], r: [number, number, number[], number[]][], f?: [number, number[]][]}} Scene
 * @typedef {{calls: Call[], nodes: GraphNode[], tensors: any[][], scenes: Scene[][], texts: string[],
 *   evidence: [string, string][], categories: string[], title: string, file: string, coverage: number,
 *   strategy?: string, exporter?: string, measured: {times?: ([number, number] | null)[],
 *   errors?: ([number | null, number | null, string] | null)[]}, before?: number[], after?: number[], others?: Data[],
 *   statistics?: Record<string, Statistics>}} Data
 * @typedef {[number | null, number | null, number | null, number | null, number, number, number[]]} Statistics
 *   the least, the most, mean, deviation, zeros, how many are not finite, a histogram
 */

/** What becomes of a node from one form to the next: the same, added, removed, changed. */
const [SAME, ADDED] = [0, 1];

/** Reads the compressed data in the page. */
export async function unpack() {
  const packed = atob(document.getElementById("data")?.textContent ?? "");
  const bytes = Uint8Array.from(packed, (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Model(JSON.parse(await new Response(stream).text()));
}

export class Model {
  /** @param {Data} data */
  constructor(data) {
    this.data = data;
    this.calls = data.calls;
    this.nodes = data.nodes;
    /** @type {number[][]} */
    this.children = data.calls.map(() => []);
    /** @type {number[][]} */
    this.own = data.calls.map(() => []);
    data.calls.forEach((call, number) => call.parent !== undefined && this.children[call.parent].push(number));
    data.nodes.forEach((node, number) => this.own[node.c].push(number));
    this.byTag = new Map(data.calls.flatMap((call, number) => (call.tagged ? [[call.tag, number]] : [])));
    this.byPath = new Map(data.calls.map((call, number) => [call.path ?? "", number]));
    /** @type {number[][] | null} */
    this.readers = null;
    /** The other forms of the model. @type {Model[]} */
    this.others = (data.others ?? []).map((other) => new Model(other));
    /** The data types of its tensors, in order. */
    this.dtypes = [...new Set(data.tensors.map((tensor) => this.text(tensor[1])))].filter(Boolean).sort();
    /** For each call how many of its nodes are added since the form before; removed, changed in the form after. @type {number[][]} */
    this.steps = data.calls.map(() => [0, 0, 0, 0]);
    /** The calls that have a node that differs. @type {Set<number>} */
    this.different = new Set();
    data.nodes.forEach((node, number) => {
      const [since, then] = [data.before?.[number] ?? SAME, data.after?.[number] ?? SAME];
      for (const above of since || then ? this.way(node.c) : []) {
        this.different.add(above);
        if (since === ADDED) this.steps[above][since]++;
        if (then) this.steps[above][then]++;
      }
    });
  }

  /** What became of a node, 0 to 3 for the same, added, removed and changed: since the form before, or else in the one after. @param {number} node */
  kind(node) {
    return this.data.before?.[node] || this.data.after?.[node] || SAME;
  }

  /** How the nodes of a call differ from each form to the next, as `−2 +1 ~3`. @param {number} call */
  differences(call) {
    const path = this.calls[call].path ?? "";
    const forms = /** @type {Model[]} */ ([this, ...this.others]);
    const at = forms.flatMap((form) => { const there = form.byPath.get(path); return there === undefined ? [] : [form.steps[there]]; });
    const [, added, removed, changed] = [0, 1, 2, 3].map((kind) => at.reduce((sum, steps) => sum + steps[kind], 0));
    return { total: added + removed + changed, text: [removed && `−${removed}`, added && `+${added}`, changed && `~${changed}`].filter(Boolean).join(" ") };
  }

  /** @param {number} text */
  text(text) {
    return this.data.texts[text];
  }

  /** @param {number} node */
  op(node) {
    return this.text(this.nodes[node].o);
  }

  /**
   * The calls from the root down to one.
   * @param {number} call
   */
  way(call) {
    const way = [];
    for (let at = /** @type {number | undefined} */ (call); at !== undefined; at = this.calls[at].parent) way.unshift(at);
    return way;
  }

  /** @param {number} tensor */
  tensor(tensor) {
    const [name, dtype, shape, producer, parameter, elements, bytes] = this.data.tensors[tensor];
    return { name, dtype: this.text(dtype), shape: this.text(shape), producer, parameter, elements, bytes, constant: parameter !== undefined };
  }

  /** @param {number} tensor */
  readersOf(tensor) {
    if (this.readers === null) {
      const readers = /** @type {number[][]} */ (this.data.tensors.map(() => []));
      this.nodes.forEach((node, number) => node.i?.forEach((t) => t >= 0 && readers[t].push(number)));
      this.readers = readers;
    }
    return this.readers[tensor];
  }

  /** The part of a link that leads to a call. @param {number} call */
  link(call) {
    const item = this.calls[call];
    if (item.tagged) return `#${item.tag.split("/").map(encodeURIComponent).join("/")}`;
    return `#call:${encodeURIComponent(item.path ?? "")}`;
  }

  /** The call that a link leads to; undefined where it leads to none. @param {string} hash */
  find(hash) {
    let text;
    try {
      text = decodeURIComponent(hash.replace(/^#/, ""));
    } catch {
      return undefined;
    }
    return text.startsWith("call:") ? this.byPath.get(text.slice(5)) : this.byTag.get(text);
  }

  /** The nearest data type of a node's first output. @param {number} node */
  dtype(node) {
    const first = this.nodes[node].u?.find((t) => t >= 0);
    return first === undefined ? "" : this.tensor(first).dtype;
  }
}
