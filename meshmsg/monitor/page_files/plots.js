// Small plots of the last minutes.  Those that nobody can see are not drawn.

import { makeSvg } from "./format.js";

const POINTS = 180;
const seen = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    const plot = entry.target.plot;
    plot.visible = entry.isIntersecting;
    if (plot.visible) plot.draw();
  }
}, { rootMargin: "200px" });

export class Plot {
  constructor(className = "") {
    this.node = makeSvg("svg", { class: `plot ${className}`, viewBox: `0 0 ${POINTS} 24`, preserveAspectRatio: "none", "aria-hidden": "true" });
    this.area = makeSvg("path", { class: "area" });
    this.line = makeSvg("path", { class: "line" });
    this.node.append(this.area, this.line);
    this.node.plot = this;
    this.visible = false;
    this.points = [];
    seen.observe(this.node);
  }

  show(points) {
    this.points = points;
    if (this.visible) this.draw();
  }

  draw() {
    const points = this.points;
    const most = Math.max(1, ...points.filter((p) => p !== null));
    const first = POINTS - points.length;
    let line = "", area = "", start = null, last = 0;
    points.forEach((point, n) => {
      if (point === null) {
        if (start !== null) area += `L${last} 24Z`;
        start = null;
        return;
      }
      const x = first + n, y = (22.5 - (21 * point) / most).toFixed(1);
      line += `${start === null ? "M" : "L"}${x} ${y}`;
      area += start === null ? `M${x} 24L${x} ${y}` : `L${x} ${y}`;
      start ??= x;
      last = x;
    });
    if (start !== null) area += `L${last} 24Z`;
    this.line.setAttribute("d", line);
    this.area.setAttribute("d", area);
  }

  drop() {
    seen.unobserve(this.node);
  }
}

// The points of many series by key: what came at the start, and one more with each event.
export class Series {
  constructor() {
    this.all = new Map();
  }

  set(key, points) {
    this.all.set(key, points.slice(-POINTS));
  }

  add(found) {
    for (const [key, points] of this.all) {
      points.push(found.has(key) ? found.get(key) : null);
      if (points.length > POINTS) points.shift();
      if (!found.has(key) && points.every((p) => p === null)) this.all.delete(key);
    }
    for (const [key, point] of found) if (!this.all.has(key)) this.all.set(key, [point]);
  }

  get(key) {
    return this.all.get(key) ?? [];
  }
}
