// The page: tree on the left, picture on the right, details below; the address says which call is open.

import { clean, h, short } from "./dom.js";
import { listModes } from "./colours.js";
import { Details } from "./details.js";
import { unpack } from "./model.js";
import { Picture } from "./picture.js";
import { Search } from "./search.js";
import { makeSplitter } from "./splitter.js";
import { Tree } from "./tree.js";

/** @typedef {import("./model.js").Model} Model */
/** @typedef {import("./picture.js").Chosen} Chosen */

/** @param {Model} model */
function start(model) {
  /** @param {number} call */
  const open = (call) => {
    show(call); // at once; the address follows
    location.hash = model.link(call);
  };
  /** What is to be chosen once its call is open. @type {Chosen | null} */
  let waiting = null;
  let shown = -1;
  /** @param {Chosen} chosen @param {number} [call] */
  const choose = (chosen, call) => {
    if (call !== undefined && call !== picture.call) {
      waiting = chosen;
      open(call);
      return;
    }
    picture.choose(chosen);
    details.show(chosen);
  };
  const tree = new Tree(model, open);
  const picture = new Picture(model, { open, choose }, model.others.length ? model.data.file || "this model" : "");
  const others = model.others.map((other, number) => {
    const own = new Details(other, { open: (call) => openPath(other, call), choose: (chosen, call) => chooseThere(chosen, call) });
    /** @param {Chosen} chosen @param {number} [call] */
    const chooseThere = (chosen, call) => {
      if (call !== undefined && call !== there.call) openPath(other, call);
      there.choose(chosen);
      own.show(chosen);
      details.element.replaceChildren(...own.element.childNodes);
    };
    const there = new Picture(other, { open: (call) => openPath(other, call), choose: chooseThere }, other.data.file || `form ${number + 2}`);
    return there;
  });
  /** Opens, in all forms, the call of a path. @param {Model} form @param {number} call */
  const openPath = (form, call) => open(model.byPath.get(form.calls[call].path ?? "") ?? 0);
  const details = new Details(model, { open, choose });
  const search = new Search(model, (hit) => (hit.chosen.kind === "call" ? open(hit.call) : choose(hit.chosen, hit.call)));
  const crumbs = h("nav", { class: "crumbs", "aria-label": "Way to the call" });
  const folds = h("button", { type: "button", class: "folds", hidden: true, onclick: () => { [picture, ...others].forEach((p) => p.toggleFolds()); tellFolds(); } });
  const colours = /** @type {HTMLSelectElement} */ (h("select", { "aria-label": "Colour by", onchange: () => [picture, ...others].forEach((p) => p.colourBy(colours.value)) }, ...listModes(model).map(([value, text]) => h("option", { value }, text))));

  function tellFolds() {
    folds.hidden = model.data.scenes[picture.call].length < 2;
    folds.textContent = picture.unfolded.has(picture.call) ? "fold repeats" : "unfold repeats";
  }

  /** @param {number} call */
  function show(call) {
    shown = call;
    const chosen = waiting ?? { kind: /** @type {const} */ ("call"), ref: call };
    waiting = null;
    tree.select(call);
    crumbs.replaceChildren(...model.way(call).flatMap((at, i) => [i ? h("span", { "aria-hidden": "true" }, "›") : null, h("a", { href: model.link(at), "aria-current": at === call ? "page" : null, title: clean(model.calls[at].path || "(root)") }, clean(model.calls[at].label, 48))]).filter((item) => item !== null));
    picture.show(call);
    others.forEach((other) => other.follow(model.calls[call].path ?? ""));
    tellFolds();
    hint.hidden = model.children[call].length === 0;
    if (chosen.kind !== "call") picture.choose(chosen);
    details.show(chosen);
    document.title = `${clean(model.calls[call].label, 60)} · ${clean(model.data.file || model.data.title, 60)}`;
  }

  function follow() {
    const call = model.find(location.hash) ?? 0;
    if (call !== shown) show(call);
  }

  const root = model.calls[0];
  const facts = [`${model.nodes.length.toLocaleString("en")} nodes`, `${model.calls.length.toLocaleString("en")} calls`, ...(root.parameters ? [`${short(root.parameters)} parameters`] : []), `${Math.floor(model.data.coverage * 1000) / 10} % attributed`];
  picture.svg.addEventListener("click", tellFolds);
  const hint = h("span", { class: "dim hint" }, "click a box to look inside");
  const right = h("div", { class: "right" }, h("div", { class: "bar" }, crumbs, hint, folds), h("div", { class: "pictures" }, picture.element, ...others.map((other) => other.element)), makeSplitter({ name: "Size of the details", property: "--details", start: 28, upright: false, whole: () => right }), details.element);
  const main = h("main", {}, tree.element, makeSplitter({ name: "Width of the tree", property: "--tree", start: tree.share, upright: true, whole: () => main }), right);
  document.getElementById("app")?.replaceChildren(
    h("header", {}, h("h1", {}, clean(model.data.title, 60)), h("span", { class: "dim file" }, clean(model.data.file, 60)), h("span", { class: "dim facts" }, facts.join(" · ")), search.element, h("label", {}, "Colour ", colours)),
    main);
  main.style.setProperty("--tree", `${tree.share}%`);
  if (others.length) {
    colours.value = "difference";
    [picture, ...others].forEach((p) => { p.mode = "difference"; });
  }
  addEventListener("hashchange", follow);
  addEventListener("keydown", (event) => {
    const typing = document.activeElement === search.input;
    if (event.key === "/" && !typing) {
      event.preventDefault();
      search.input.focus();
    }
  });
  follow();
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
}

unpack().then(start, (error) => {
  document.getElementById("app")?.replaceChildren(h("p", { class: "failed" }, `This page cannot be shown: ${clean(error)}. It needs a browser of 2023 or later.`));
  throw error;
});
