// Builds elements. Text is always a text node: no data ever becomes HTML.
//
//     h("a.button", { href: "#/topics", onclick: open }, "Topics")
//
// The first argument is a tag with classes. Properties: `on…` is a listener, `class` adds classes, `hidden`, `disabled`,
// `checked` and so on are set as properties, everything else is an attribute. Children are nodes, text, numbers, arrays
// of these, or null, which is left out.

const SVG = "http://www.w3.org/2000/svg";
// Links lead into the console or to the same server. A `javascript:` address in data cannot become a link.
const LINK = /^(#|\/)/;

export function h(tag, ...rest) {
  return build(document.createElement(tagName(tag)), tag, rest);
}

export function svg(tag, ...rest) {
  return build(document.createElementNS(SVG, tagName(tag)), tag, rest);
}

export function clear(element, ...children) {
  element.replaceChildren();
  append(element, children);
  return element;
}

export function append(element, children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (Array.isArray(child)) append(element, child);
    else element.append(child instanceof Node ? child : String(child));
  }
  return element;
}

function tagName(tag) {
  return tag.split(".")[0];
}

function build(element, tag, rest) {
  const classes = tag.split(".").slice(1);
  if (classes.length) element.classList.add(...classes);
  if (isProperties(rest[0])) setAll(element, rest.shift());
  return append(element, rest);
}

function isProperties(value) {
  return value !== null && typeof value === "object" && !(value instanceof Node) && !Array.isArray(value);
}

function setAll(element, properties) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.classList.add(...value.split(" ").filter(Boolean));
    else if (name === "href" && !LINK.test(value)) throw new Error("a link leads into the console");
    else if (name === "value" || name === "checked" || name === "disabled" || name === "hidden") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
}
