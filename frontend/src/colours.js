// What elements are coloured by, and the legend of it.

/** @typedef {import("./model.js").Model} Model */
/** @typedef {{fill: string, word: string}} Colour */

// Colours that can be told apart by most people, in light and dark.
const WHEEL = ["c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8"];
const GROUPS = /** @type {Record<string, [string, string]>} */ ({
  mathematical: ["c1", "mathematics"],
  neural_network_layers: ["c2", "layers"],
  activation: ["c3", "activation"],
  normalization: ["c4", "normalization"],
  reduction: ["c4", "reduction"],
  lookup_indexing: ["c5", "lookup"],
  tensor_manipulation: ["c6", "shape and layout"],
  shape_metadata: ["c6", "shape and layout"],
  type_conversion: ["c7", "types, quantization"],
  quantization: ["c7", "types, quantization"],
});

/** What the page can be coloured by. @param {Model} model */
export function listModes(model) {
  const modes = [["category", "Category"], ["evidence", "Evidence"], ["dtype", "Data type"]];
  if (model.data.measured.times) modes.push(["time", "Time"]);
  if (model.data.measured.errors) modes.push(["error", "Error"]);
  if (model.others.length) modes.push(["difference", "Difference"]);
  return modes;
}

/** @param {number} part of the whole, from 0 to 1 */
function heat(part) {
  return `h${Math.min(5, Math.max(0, Math.ceil(part * 5)))}`;
}

/** Errors as steps of the scale: each step a hundred times the one before. @param {number | null} error */
export function errorStep(error) {
  if (error === null) return 5;
  return error <= 1e-7 ? 0 : Math.min(5, Math.max(1, Math.ceil((Math.log10(error) + 7) / 1.4)));
}

/**
 * The colour of a node.
 * @param {Model} model @param {string} mode @param {number} node
 * @returns {Colour}
 */
export function colourNode(model, mode, node) {
  const item = model.nodes[node];
  if (mode === "evidence") {
    const [name, level] = model.data.evidence[item.e];
    return { fill: name === "root" ? "bad" : { high: "c3", medium: "c5", low: "c2" }[level] ?? "plain", word: `${name} (${level})` };
  }
  if (mode === "dtype") {
    const dtype = model.dtype(node) || "unknown";
    return { fill: dtype === "unknown" ? "plain" : WHEEL[model.dtypes.indexOf(dtype) % WHEEL.length], word: dtype };
  }
  if (mode === "difference") return [{ fill: "plain", word: "the same" }, { fill: "c3", word: "added" }, { fill: "bad", word: "removed" }, { fill: "c5", word: "changed" }][model.kind(node)];
  if (mode === "time" || mode === "error") return { fill: "plain", word: "" };
  const [fill, word] = GROUPS[model.data.categories[item.k]] ?? ["c8", "other"];
  return { fill, word };
}

/**
 * The colour of a call's box.
 * @param {Model} model @param {string} mode @param {number[]} calls
 * @returns {Colour}
 */
export function colourCalls(model, mode, calls) {
  const { times, errors } = model.data.measured;
  if (mode === "time" && times) {
    const whole = times[0]?.[1] || 1;
    const part = calls.reduce((sum, call) => sum + (times[call]?.[1] ?? 0), 0) / whole;
    return { fill: heat(part), word: `${Math.round(part * 100)} % of the time` };
  }
  if (mode === "error" && errors) {
    const steps = calls.flatMap((call) => (errors[call] ? [errorStep(errors[call][0])] : []));
    return steps.length ? { fill: `h${Math.max(...steps)}`, word: "" } : { fill: "plain", word: "not compared" };
  }
  if (mode === "difference") {
    return calls.some((call) => model.different.has(call)) ? { fill: "h2", word: "differs inside" } : { fill: "call", word: "module, the same" };
  }
  return { fill: "call", word: "module" };
}
