// Making elements. Text is only ever set as text, so that no name of a model becomes markup.

const SVG = "http://www.w3.org/2000/svg";
// Characters that change the direction of text, or that nothing shows.
// eslint-disable-next-line no-control-regex
const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]/gu;

/**
 * Returns a text that is safe to look at: what cannot be seen is written out, what is too long is cut.
 * @param {unknown} text
 * @param {number} [longest]
 */
export function clean(text, longest = 300) {
  const whole = String(text);
  const cut = whole.length > longest ? `${whole.slice(0, longest - 1)}…` : whole;
  return cut.replace(UNSEEN, (c) => `\\u${(c.codePointAt(0) ?? 0).toString(16).padStart(4, "0")}`);
}

/**
 * @param {Element} element
 * @param {Record<string, any>} attributes
 * @param {(Node | string | number | null | undefined | false)[]} children
 */
function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== null && value !== false) element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
}

/**
 * Makes an HTML element.
 * @param {string} tag
 * @param {Record<string, any>} [attributes]
 * @param {...(Node | string | number | null | undefined | false)} children
 * @returns {HTMLElement}
 */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  fill(element, attributes, children);
  return element;
}

/**
 * Makes an SVG element.
 * @param {string} tag
 * @param {Record<string, any>} [attributes]
 * @param {...(Node | string | number | null | undefined | false)} children
 * @returns {SVGElement}
 */
export function s(tag, attributes = {}, ...children) {
  const element = /** @type {SVGElement} */ (document.createElementNS(SVG, tag));
  fill(element, attributes, children);
  return element;
}

const UNITS = ["", "k", "M", "G", "T", "P"];

/** @param {number | null | undefined} number */
export function short(number) {
  if (number === null || number === undefined) return "";
  let value = number;
  let unit = 0;
  while (Math.abs(value) >= 1000 && unit < UNITS.length - 1) [value, unit] = [value / 1000, unit + 1];
  return unit === 0 ? String(Math.round(value * 100) / 100) : `${value.toPrecision(3)}${UNITS[unit]}`;
}

/** @param {number} bytes */
export function size(bytes) {
  return bytes < 1000 ? `${bytes} B` : `${short(bytes)}B`;
}

/** @param {number | null} value */
export function figure(value) {
  return value === null ? "—" : String(Number(value.toPrecision(4)));
}

/** @param {number} us */
export function time(us) {
  if (us === 0) return "0";
  return us >= 1000 ? `${(us / 1000).toPrecision(3)} ms` : `${us.toPrecision(3)} µs`;
}
