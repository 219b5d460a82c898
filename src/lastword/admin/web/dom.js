// Makes elements. Text is only ever set as text: data can't become markup here.

const SVG = "http://www.w3.org/2000/svg";

/** An element: h("p", {class: "x", onclick: f}, "text", child). Attributes that are null or false are left out. */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name.startsWith("--")) element.style.setProperty(name, value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

/** Replace the children of an element. */
export function set(element, ...children) {
  element.replaceChildren();
  append(element, children);
  return element;
}

/** A table: columns are {title, number, cell(row)}, with `label` for narrow screens. */
export function table(caption, columns, rows, attributes = {}) {
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h(
      "table",
      attributes,
      h("thead", {}, h("tr", {}, columns.map((each) => h("th", { class: each.number ? "number" : null, scope: "col" }, each.title)))),
      h("tbody", {}, rows.map((row) => h("tr", {}, columns.map((each) => h("td", { class: each.number ? "number" : null }, each.cell(row)))))),
    ),
  );
}

export const calm = matchMedia("(prefers-reduced-motion: reduce)");
