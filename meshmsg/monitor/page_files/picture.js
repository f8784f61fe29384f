// Who is connected to whom, and who sends to whom: peers on a circle, curves through its middle.

import { byName, makeSvg, name, rate, setText } from "./format.js";

const EDGE = 14;

export class Picture {
  constructor(section, onPick) {
    this.box = section.querySelector(".picture");
    this.detail = section.querySelector(".detail");
    this.onPick = onPick;
    this.shape = "";
    this.peers = new Map();
    this.flows = new Map();
    this.at = null; // the peer that arrow keys have come to
    this.svg = makeSvg("svg", { role: "group", "aria-label": "Peers and who sends to whom; arrow keys go round" });
    this.links = makeSvg("path", { class: "links" });
    this.curves = makeSvg("g");
    this.nodes = makeSvg("g");
    this.svg.append(this.links, this.curves, this.nodes);
    this.box.append(this.svg);
    this.svg.addEventListener("keydown", (event) => this.onKey(event));
  }

  show(view) {
    const peers = [...view.peers].sort((a, b) => byName(a.name, b.name));
    const shape = peers.map((peer) => peer.name).join("\n");
    if (shape !== this.shape) this.lay(peers, shape);
    const busy = new Set(peers.filter((peer) => peer.roles.length).map((peer) => peer.name));
    for (const peer of peers) this.showPeer(peer);
    this.showLinks(view.links.filter(([a, b]) => busy.has(a) && busy.has(b)));
    this.showFlows(view.flows);
    this.tell();
  }

  lay(peers, shape) {
    this.shape = shape;
    const many = peers.length > 16;
    const radius = Math.max(110, Math.min(230, 28 * peers.length / Math.PI));
    const room = many ? 120 : 130;
    const across = radius + room, down = radius + (many ? 110 : 34);
    this.svg.setAttribute("viewBox", `${-across} ${-down} ${2 * across} ${2 * down}`);
    this.svg.classList.toggle("many", many);
    this.radius = radius;
    this.nodes.replaceChildren();
    this.peers.clear();
    peers.forEach((peer, n) => {
      const turn = (2 * Math.PI * n) / peers.length - Math.PI / 2;
      const x = radius * Math.cos(turn), y = radius * Math.sin(turn);
      const node = makeSvg("g", { tabindex: "-1", role: "button" });
      const dot = makeSvg("circle", { cx: x.toFixed(1), cy: y.toFixed(1), r: many ? 6 : 9 });
      const label = makeSvg("text", this.labelPlace(x, y, turn, many));
      const shown = name(peer.name), limit = many ? 16 : 18;
      label.textContent = shown.length > limit ? `${shown.slice(0, limit - 1)}…` : shown;
      node.append(makeSvg("title"), dot, label);
      for (const [event, to] of [["mouseenter", peer.name], ["mouseleave", null], ["focus", peer.name], ["blur", null]])
        node.addEventListener(event, () => this.pick(to));
      node.addEventListener("click", () => this.onPick(peer.name));
      this.nodes.append(node);
      this.peers.set(peer.name, { node, x, y });
    });
    if (!this.peers.has(this.at)) this.at = peers[0]?.name ?? null;
    this.peers.get(this.at)?.node.setAttribute("tabindex", "0");
  }

  labelPlace(x, y, turn, many) {
    const left = x < -0.5, gap = EDGE + (many ? -2 : 2);
    if (many) {
      const degrees = (turn * 180) / Math.PI + (left ? 180 : 0);
      const px = x + gap * Math.cos(turn), py = y + gap * Math.sin(turn);
      return { transform: `translate(${px.toFixed(1)} ${py.toFixed(1)}) rotate(${degrees.toFixed(1)})`, dy: "4", "text-anchor": left ? "end" : "start" };
    }
    if (Math.abs(x) < 1) return { x: 0, y: (y + (y < 0 ? -gap : gap + 8)).toFixed(1), "text-anchor": "middle" };
    return { x: (x + (left ? -gap : gap)).toFixed(1), y: (y + 4).toFixed(1), "text-anchor": left ? "end" : "start" };
  }

  showPeer(peer) {
    const shown = this.peers.get(peer.name);
    const does = peer.roles.includes("publisher") ? (peer.roles.length > 1 ? "both" : "pub") : peer.roles.length ? "sub" : "";
    const gone = peer.state !== "here";
    shown.base = ["peer", gone ? "gone" : does, peer.problem && "sick", peer.is_self && "self"].filter(Boolean).join(" ");
    shown.gone = gone;
    const words = [name(peer.name) + (peer.is_self ? " (this peer)" : ""), gone ? peer.state : peer.roles.join(", ") || "looks on"];
    if (!gone && peer.published_s) words.push(`${rate(peer.published_s)} events/s out`);
    if (!gone && peer.delivered_s) words.push(`${rate(peer.delivered_s)} events/s in`);
    if (peer.problem) words.push(name(peer.problem));
    shown.text = words.join(" · ");
    shown.node.setAttribute("aria-label", shown.text);
    setText(shown.node.firstChild, shown.text);
    shown.node.setAttribute("data-peer", name(peer.name));
    this.mark(peer.name, shown);
  }

  curve(a, b) {
    return `M${a.x.toFixed(1)} ${a.y.toFixed(1)}Q${(0.12 * (a.x + b.x)).toFixed(1)} ${(0.12 * (a.y + b.y)).toFixed(1)} ${b.x.toFixed(1)} ${b.y.toFixed(1)}`;
  }

  showLinks(links) {
    let d = "";
    for (const [from, to] of links) {
      const a = this.peers.get(from), b = this.peers.get(to);
      if (a && b) d += this.curve(a, b);
    }
    if (this.links.getAttribute("d") !== d) this.links.setAttribute("d", d);
  }

  showFlows(flows) {
    const left = new Set(this.flows.keys());
    for (const flow of flows) {
      const a = this.peers.get(flow.publisher), b = this.peers.get(flow.subscriber);
      if (!a || !b || a.gone || b.gone) continue;
      const key = `${flow.publisher}\n${flow.subscriber}`;
      left.delete(key);
      let shown = this.flows.get(key);
      if (!shown) {
        shown = { node: makeSvg("path"), from: flow.publisher, to: flow.subscriber };
        this.flows.set(key, shown);
        this.curves.append(shown.node);
      }
      const d = this.curve(a, b);
      if (shown.d !== d) shown.node.setAttribute("d", (shown.d = d));
      const width = (0.8 + 0.9 * Math.log10(1 + flow.delivered_s)).toFixed(1);
      if (shown.width !== width) shown.node.setAttribute("stroke-width", (shown.width = width));
      const base = flow.blocking ? "flow blocks" : "flow";
      if (flow.blocking && shown.base !== base) this.curves.append(shown.node); // on top
      shown.base = base;
      this.markFlow(shown);
    }
    for (const key of left) {
      this.flows.get(key).node.remove();
      this.flows.delete(key);
    }
  }

  pick(peer) {
    this.picked = peer;
    this.svg.classList.toggle("picked", peer !== null);
    this.near = new Set(peer === null ? [] : [peer]);
    for (const flow of this.flows.values()) {
      if (flow.from === peer) this.near.add(flow.to);
      if (flow.to === peer) this.near.add(flow.from);
      this.markFlow(flow);
    }
    for (const [key, shown] of this.peers) this.mark(key, shown);
    this.tell();
  }

  mark(key, shown) {
    const wanted = this.near?.has(key) ? `${shown.base} near` : shown.base;
    if (shown.node.getAttribute("class") !== wanted) shown.node.setAttribute("class", wanted);
  }

  markFlow(shown) {
    const near = this.picked && (shown.from === this.picked || shown.to === this.picked);
    const wanted = near ? `${shown.base} near` : shown.base;
    if (shown.node.getAttribute("class") !== wanted) shown.node.setAttribute("class", wanted);
  }

  tell() {
    setText(this.detail, this.picked ? this.peers.get(this.picked)?.text ?? "" : "");
  }

  onKey(event) {
    const order = [...this.peers.keys()];
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (step && order.length) {
      event.preventDefault();
      this.peers.get(this.at)?.node.setAttribute("tabindex", "-1");
      this.at = order[(order.indexOf(this.at) + step + order.length) % order.length];
      const { node } = this.peers.get(this.at);
      node.setAttribute("tabindex", "0");
      node.focus();
    } else if ((event.key === "Enter" || event.key === " ") && this.picked) {
      event.preventDefault();
      this.onPick(this.picked);
    }
  }
}
