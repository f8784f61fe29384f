// Text of figures and names.  Everything that comes from a peer is shown as text, never as markup.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });

export const count = (n) => (n == null ? "–" : n < 100000 ? whole.format(n) : short.format(n));
export const rate = (n) => (n == null ? "–" : n > 0 && n < 10 ? n.toFixed(1) : short.format(n));
export const share = (n) => (n > 0 && n < 0.0001 ? "<0.01%" : `${(100 * n).toFixed(n < 0.1 ? 2 : 1)}%`);

export function bytes(n) {
  if (n == null) return "–";
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (n < 1024) return `${n < 10 && unit !== "B" ? n.toFixed(1) : Math.round(n)} ${unit}`;
    n /= 1024;
  }
  return `${n.toFixed(1)} TiB`;
}

export function time(s) {
  if (s == null) return "–";
  if (s < 0.001) return `${Math.round(s * 1e6)} µs`;
  if (s < 1) return `${Math.round(s * 1e3)} ms`;
  if (s < 120) return `${s < 10 ? s.toFixed(1) : Math.round(s)} s`;
  if (s < 7200) return `${Math.round(s / 60)} min`;
  return s < 172800 ? `${Math.round(s / 3600)} h` : `${Math.round(s / 86400)} d`;
}

// Control characters and those that turn the direction of writing are spelled out.
export const name = (text) =>
  String(text).replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}]/gu, (c) => `\\u${c.codePointAt(0).toString(16).padStart(4, "0")}`);

// One collator: to make one for each comparison takes longer than all the rest of drawing.
export const byName = new Intl.Collator("en", { numeric: true }).compare;

export function setText(node, text) {
  if (node.firstChild === null) node.append("");
  if (node.firstChild.data !== text) node.firstChild.data = text;
}

export function make(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

export function makeSvg(tag, attributes = {}) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  return node;
}
