
// --- elements and numbers. Texts are only ever set as texts: nothing that a name holds becomes markup.

const SVG = "http://www.w3.org/2000/svg";

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

function html(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

/** A number for people: thousands apart, and as many digits after the point as it is small. */
function number(value, digits) {
  const most = digits ?? (Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 2);
  return value.toLocaleString("en", { maximumFractionDigits: most, minimumFractionDigits: digits ?? 0 });
}

function percent(part, whole) {
  return `${number((100 * part) / whole, 0)} %`;
}

function counted(count, noun) {
  return `${number(count, 0)} ${noun}${count === 1 ? "" : "s"}`;
}

function bytes(count) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  const power = count < 1 ? 0 : Math.min(units.length - 1, Math.floor(Math.log10(count) / 3));
  return `${number(count / 1000 ** power)} ${units[power]}`;
}

/** The points of a path, as SVG writes them. */
function path(points) {
  return points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
}

/** A picture `width` by `height` pixels that says in words what it shows. */
function picture(width, height, words, ...children) {
  const size = { viewBox: `0 0 ${width} ${height}`, height, preserveAspectRatio: "none" };
  return svg("svg", { ...size, role: "img", "aria-label": words }, ...children);
}

/** A legend's entry: `mark` is drawn in a box of 16 by 10. */
function entry(mark, text) {
  return html("li", {}, svg("svg", { viewBox: "0 0 16 10", "aria-hidden": "true" }, mark), text);
}

/** Tell `pick` which x, in pixels of the picture, is pointed at; null when nothing is. */
function pointing(drawn, width, pick) {
  const at = (event) => {
    const box = drawn.getBoundingClientRect();
    pick(((event.clientX - box.left) / box.width) * width);
  };
  drawn.addEventListener("pointerdown", at);
  drawn.addEventListener("pointermove", at);
  drawn.addEventListener("pointerleave", (event) => {
    if (event.pointerType === "mouse") pick(null);
  });
}
