// Bars between the parts of the page, to make one larger: dragged, or moved with the arrow keys.

import { h } from "./dom.js";

/**
 * Makes a bar that sets how large a part is, in percent of the whole.
 * @param {{name: string, property: string, start: number, upright: boolean, whole: () => HTMLElement}} part
 *   `upright` for a bar between left and right; the part is the left one, or the lower one.
 * @returns {HTMLElement}
 */
export function makeSplitter({ name, property, start, upright, whole }) {
  let size = start;
  const bar = h("div", { class: `splitter ${upright ? "upright" : "level"}`, role: "separator", tabindex: 0, "aria-label": name, "aria-orientation": upright ? "vertical" : "horizontal", title: `${name}: drag, or arrow keys` });
  /** @param {number} wanted */
  const set = (wanted) => {
    size = Math.min(85, Math.max(5, wanted));
    whole().style.setProperty(property, `${size}%`);
    bar.setAttribute("aria-valuenow", String(Math.round(size)));
  };
  bar.addEventListener("pointerdown", (event) => bar.setPointerCapture(event.pointerId));
  bar.addEventListener("pointermove", (event) => {
    if (!bar.hasPointerCapture(event.pointerId)) return;
    const box = whole().getBoundingClientRect();
    set(upright ? (100 * (event.clientX - box.left)) / box.width : (100 * (box.bottom - event.clientY)) / box.height);
  });
  bar.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -2, ArrowRight: 2, ArrowUp: 2, ArrowDown: -2 }[event.key];
    if (step === undefined || upright !== (event.key === "ArrowLeft" || event.key === "ArrowRight")) return;
    set(size + step);
    event.preventDefault();
  });
  return bar;
}
