"""Checks of the mesh: mDNS, what discovery found, ports, versions and clocks of other peers."""

from __future__ import annotations

import secrets
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from meshmsg._links.outbound_peer import Link
from meshmsg._links.resolver import interfaces_of, others_text
from meshmsg._model.errors import MeshError, WaitTimeout
from meshmsg._peer.peer import Peer, node_of
from meshmsg._peer.presence import PeerInfo
from meshmsg._wire import control as c
from meshmsg.doctor.findings import FAIL, OK, SKIP, WARN, Finding
from meshmsg.transports.discovery.addresses import is_loopback, split_target, why_unreachable
from meshmsg.transports.discovery.mdns import Beacon, Service
from meshmsg.transports.probes import path_mtu, why_no_data

MDNS_S = 3.0
PORT_S = 2.0
CLOCK_ROUNDS = 5
CLOCK_WARN_S = 0.1
CLOCK_FAIL_S = 5.0
SEEN_MAX = 10
#: A stream may wait for a moment: that is what backpressure does.
BLOCKED_FAIL_S = 1.0
CONTACT_FIX = "let its ports through the firewall, or have it listen on a network we share"
NAME_FIX = "give each peer a name of its own, or stop the other one"


def mdns(interface: str) -> Iterator[Finding]:
    """Whether our own announcement comes back, and whose else is heard."""
    fix = (
        "let udp port 5353 and the group 224.0.0.251 through; where multicast is blocked (many "
        "containers and clouds), name one peer with connect= or seeds=: gossip finds the rest"
    )
    token = secrets.token_hex(8)
    seen: list[Service] = []
    hosts = interfaces_of(interface)
    try:
        beacon = Beacon(hosts, lambda there, service: seen.append(service) if there else None)
    except (OSError, RuntimeError, ImportError) as error:
        yield Finding("mdns", FAIL, f"zeroconf cannot be started on {interface}: {error}", fix)
        return
    try:
        # Port 9 is "discard", and the mesh nobody's: no peer will try to connect.
        name = f"doctor-{token}"
        beacon.announce(name, hosts, 9, {"mesh": name, "peer": name, "id": "0"})
        deadline = time.monotonic() + MDNS_S
        while time.monotonic() < deadline:
            if any(service.records.get("mesh") == f"doctor-{token}" for service in list(seen)):
                break
            time.sleep(0.02)
        else:
            text = f"our own announcement on {', '.join(hosts)} was not heard in {MDNS_S:g} s"
            yield Finding("mdns", FAIL, text, fix)
            return
    finally:
        beacon.close()
    others = {s.name: s for s in seen if not s.records.get("mesh", "").startswith("doctor-")}
    names = [f"{s.records.get('peer')} of mesh {s.records.get('mesh')}" for s in others.values()]
    text = "; ".join(names[:SEEN_MAX]) + ("; ..." if len(names) > SEEN_MAX else "")
    yield Finding("mdns", OK, f"announcements are heard; other peers: {text or 'none'}")


def names_twice(found: Sequence[PeerInfo]) -> dict[str, int]:
    """Return names that several peers with streams have."""
    counts = Counter(info.name for info in found if info.streams)
    return {name: count for name, count in counts.items() if count > 1}


def discovery(peer: Peer, named: Sequence[str]) -> Iterator[Finding]:
    """Whom we found, and what was tried in vain."""
    tried = peer.stats()["discovery"]
    found = ", ".join(info.name for info in peer.peers())
    zeroconf = tried["zeroconf"]
    way = f"zeroconf {zeroconf['state']}" + (f" ({zeroconf['reason']})" * bool(zeroconf["reason"]))
    way += f", gossip {'on' if tried['gossip'] else 'off'}"
    if found:
        yield Finding("discovery", OK, f"{way}; found {found}")
    elif named:
        fix = "see below what is wrong with the addresses"
        yield Finding("discovery", FAIL, f"{way}; found nobody of mesh {peer.config.mesh!r}", fix)
    else:
        text = f"{way}; nobody else of mesh {peer.config.mesh!r} is there"
        fix = "if somebody should be: is its mesh the same, its interface the same network?"
        yield Finding("discovery", SKIP, text, fix)
    for name, count in names_twice(peer.peers()).items():
        text = f"{count} peers have the name {name!r}: nobody takes events of the later ones"
        yield Finding("name", FAIL, text, NAME_FIX)
    if others := tried["elsewhere"]:
        names = ", ".join(f"{x['peer']} at {' '.join(x['addresses'])}" for x in others[:SEEN_MAX])
        yield Finding("discovery", SKIP, f"{others_text(len(others), '--mesh')}: {names}")
    for name in tried["names"]:
        if name["reason"]:
            text = f"{name['host']} cannot be looked up: {name['reason']}"
            yield Finding("name", FAIL, text, "check the name and the resolver (/etc/resolv.conf)")
        else:
            yield Finding("name", OK, f"{name['host']} is {', '.join(name['addresses'])}")
    for contact in tried["contacts"]:
        if contact["reason"] and contact["state"] != "up":
            who = contact["peer"] or "a peer"
            where = ", ".join(f"{a}: {why}" for a, why in contact["reasons"].items())
            text = f"{who}, told by {' and '.join(contact['sources']) or 'nobody'}: {where}"
            fix = _refusal_fix(where)
            status = FAIL if fix == NAME_FIX else WARN  # which nobody sees where it publishes
            fix = (
                fix or "let its ports through the firewall, or have it listen on a network we share"
            )
            yield Finding("contact", status, text, fix)


def peers(peer: Peer, named: Sequence[str]) -> Iterator[Finding]:
    """Ports, protocol, path and clock of each peer that is named or found."""
    node = node_of(peer)
    for link in node.links.table.all():
        if link.given or link.state == "up":
            yield from _peer(peer, link)
    if not named and not node.links.table.all():
        text = "none to look at: name some with --connect tcp://HOST:PORT"
        yield Finding("ports", SKIP, text)


def _peer(peer: Peer, link: Link) -> Iterator[Finding]:
    where = f"{link.peer} at {link.address}" if link.peer else link.address
    # A link that is up proves the port; a connection that says nothing would count as a stranger's.
    why = "" if link.state == "up" else why_unreachable(link.address, PORT_S)
    if why:
        fix = "start the peer there; check the address, its bind= (not loopback?) and the firewall"
        yield Finding("ports", FAIL, f"{where}: {why}", fix)
        return
    if link.state == "refused":
        yield Finding("protocol", FAIL, f"{where}: {link.reason}", _refusal_fix(link.reason))
        return
    if link.state not in ("up", "duplicate"):
        fix = "something else listens at that port, or the peer hangs"
        yield Finding("protocol", FAIL, f"{where}: connected, but no peer answers", fix)
        return
    if link.state == "duplicate":
        yield Finding("ports", OK, f"{where}: another address of a peer that is here")
        return
    context = node_of(peer).context
    data = ""
    if link.data_address:
        data = why_no_data(context, link.data_address, link.data_key, PORT_S)
    if data:
        fix = "every address has a second port for the data: let both through the firewall"
        yield Finding("ports", FAIL, f"{where}: data at {link.data_address}: {data}", fix)
    else:
        yield Finding("ports", OK, f"{where}: control and data port can be reached")
    yield from _figures(peer, link, where)
    yield from _path(link, where)
    yield _clock(peer, link, where)


def _refusal_fix(reason: str) -> str:
    if "public key" in reason:
        return "list it: meshmsg keys allow DIR $(meshmsg keys show OTHER --key) --name X"
    if " key" in reason:
        return "give both the same keys: meshmsg --keys DIR doctor, or --mesh-key-file FILE"
    if "the name" in reason:
        return NAME_FIX
    if "mesh" in reason:
        return "give both the same --mesh"
    return "install the same meshmsg release on both sides" if "version" in reason else ""


def _figures(peer: Peer, link: Link, where: str) -> Iterator[Finding]:
    try:
        answer: Any = node_of(peer).questions.ask(link, link.address, "stats", PORT_S)
        software, protocol = answer["software"], answer["protocol"]
    except (MeshError, KeyError, TypeError) as error:
        text = f"{where}: does not tell its figures: {error}"
        yield Finding("protocol", WARN, text, "is it a meshmsg of this release?")
        return
    text = f"{where}: meshmsg {software}, protocol {protocol}"
    if protocol != c.PROTOCOL_VERSION:
        fix = "install the same meshmsg release on both sides"
        yield Finding("protocol", FAIL, text, fix)
    else:
        yield Finding("protocol", OK, text)
    for taken in answer.get("name_in_use") or []:
        text = f"{where}: nobody takes {taken['stream']}, another peer of its name is at "
        yield Finding("name", FAIL, text + taken["address"], NAME_FIX)
    try:
        yield from _streams(answer, where)
    except (AttributeError, KeyError, TypeError) as error:
        yield Finding("streams", WARN, f"{where}: its figures cannot be read: {error!r}")


def _streams(answer: dict[str, Any], where: str) -> Iterator[Finding]:
    """What the peer's own figures say: who blocks it, who lost events, what it lost itself."""
    found = [*_blocked(answer, where), *_unreached(answer, where), *_lost(answer, where)]
    yield from found or [Finding("streams", OK, f"{where}: nobody is blocked, nothing is lost")]


def _blocked(answer: dict[str, Any], where: str) -> Iterator[Finding]:
    fix = "see `meshmsg peers -c ADDRESS`: help or end the slow one, or choose another overflow="
    for label, stream in answer["streams"].items():
        if stream["blocked"]:
            since_s = max((s["blocked_s"] for s in stream["subscribers"]), default=0.0)
            status = FAIL if since_s >= BLOCKED_FAIL_S else WARN
            who = ", ".join(stream["blocked_by"]) or "somebody"
            text = f"{where}: {label} is blocked for {since_s:.1f} s by {who}"
            yield Finding("blocked", status, text, fix)


def _unreached(answer: dict[str, Any], where: str) -> Iterator[Finding]:
    fix = "look at the firewall, the switch port and the IGMP membership of its host"
    for label, stream in answer["streams"].items():
        for name in stream.get("multicast", {}).get("unreached", ()):
            text = f"{where}: packets of {label} do not reach {name}, though it reports"
            yield Finding("unreached", FAIL, text, fix)


def _lost(answer: dict[str, Any], where: str) -> Iterator[Finding]:
    fix = "docs/guarantees.md says what each reason means, and what to do"
    for label, stream in answer["streams"].items():
        for one in stream["subscribers"]:
            if one["lost"]:
                text = f"{where}: {one['name']} lost events of {label}: {_reasons(one['lost'])}"
                yield Finding("lost", WARN, text, fix)
    for subscription in answer["subscriptions"]:
        for source in subscription["sources"]:
            if source["lost"]:
                lost = _reasons(source["lost"])
                text = f"{where}: its {subscription['name']} lost events of {source['stream']}"
                yield Finding("lost", WARN, f"{text}: {lost}", fix)


def _reasons(lost: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {reason}" for reason, count in lost.items())


def _path(link: Link, where: str) -> Iterator[Finding]:
    target = split_target(link.address)
    if target is None or is_loopback(target.host):
        return
    found = path_mtu(target.host, target.port)
    if found is not None:
        status = OK if found >= 1500 else WARN
        fix = "" if found >= 1500 else f"multicast streams: Multicast(..., mtu={found})"
        yield Finding("path mtu", status, f"{where}: {found} bytes", fix)


def _clock(peer: Peer, link: Link, where: str) -> Finding:
    """The offset by the quickest of some questions, as NTP does it."""
    node = node_of(peer)
    trials = []
    try:
        for _ in range(CLOCK_ROUNDS):
            began = time.time_ns()
            answer = node.questions.ask(link, link.address, "clock", PORT_S)
            ended = time.time_ns()
            trials.append((ended - began, answer["time_ns"] - (began + ended) // 2))
    except (WaitTimeout, KeyError, TypeError) as error:
        return Finding("clock", WARN, f"{where}: does not tell its time: {error}")
    quickest_ns, offset_ns = min(trials)
    off_s = offset_ns / 1e9
    uncertain_s = quickest_ns / 2e9
    typical_ms = statistics.median(trial[0] for trial in trials) / 1e6
    text = f"{where}: {off_s * 1e3:+.2f} ms (within {uncertain_s * 1e3:.2f} ms), "
    text += f"round trip {typical_ms:.2f} ms"
    fix = "run an NTP client (chrony, systemd-timesyncd) on both machines"
    if abs(off_s) - uncertain_s > CLOCK_FAIL_S:
        return Finding("clock", FAIL, f"{text}: start= with times will be wrong by that", fix)
    if abs(off_s) - uncertain_s > CLOCK_WARN_S:
        return Finding("clock", WARN, text, fix)
    return Finding("clock", OK, text)
