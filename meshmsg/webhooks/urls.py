"""Where webhooks may go: which URLs are taken, and which addresses a name may lead to.

A callback URL comes from somebody else, and the process that posts to it stands inside a network
that its owner may not reach (server-side request forgery).  So addresses that are not public are
refused unless they are allowed by name, and the decision is made on the address that is connected
to: what a name led to when it was added says nothing about later (DNS rebinding).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass

from yarl import URL

from meshmsg._model.errors import ConfigError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
URL_BYTES_MAX = 2_048


@dataclass(frozen=True, slots=True)
class Allowed:
    """What `allow=` names: hosts whose addresses are all taken, and networks."""

    hosts: frozenset[str]
    networks: tuple[Network, ...]

    @classmethod
    def parse(cls, words: Iterable[str]) -> Allowed:
        """From `localhost`, `10.1.2.3`, `10.0.0.0/8`; raises `ConfigError`."""
        hosts, networks = set(), []
        for word in words:
            try:
                networks.append(ipaddress.ip_network(word.strip("[]")))
            except ValueError:
                if not word or "/" in word or "*" in word or ":" in word:
                    problem = f"{word!r} is not a host, an address or a network such as 10.0.0.0/8"
                    raise ConfigError("allow", problem) from None
                hosts.add(word.lower().rstrip("."))
        return cls(frozenset(hosts), tuple(sorted(networks, key=str)))

    def has_host(self, host: str) -> bool:
        """Whether a host is allowed by its name: then its addresses do not matter."""
        return host.lower().rstrip(".") in self.hosts

    def has_address(self, text: str) -> bool:
        """Whether an address that was resolved may be connected to."""
        try:
            address = ipaddress.ip_address(text.partition("%")[0])
        except ValueError:
            return False
        if any(address in network for network in self.networks):
            return True
        return all(_is_public(one) for one in (address, *_embedded(address)))


def _is_public(address: Address) -> bool:
    local = isinstance(address, ipaddress.IPv6Address) and address.is_site_local
    return address.is_global and not (address.is_multicast or address.is_reserved or local)


def _embedded(address: Address) -> list[Address]:
    """IPv4 addresses that an IPv6 one leads to."""
    if address.version == 4:
        return []
    found: list[Address | None] = [address.ipv4_mapped, address.sixtofour]
    found += address.teredo or ()
    if address in ipaddress.ip_network("64:ff9b::/96"):  # NAT64
        found.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    return [one for one in found if one is not None]


def check_url(url: object, allowed: Allowed) -> URL:
    """A URL that may be posted to, as far as its text says; raises `ConfigError`."""
    if not isinstance(url, str) or len(url.encode(errors="replace")) > URL_BYTES_MAX:
        raise ConfigError("url", f"is not a text of up to {URL_BYTES_MAX:,} bytes")
    try:
        parsed = URL(url)
        host, port = parsed.host, parsed.port
    except (ValueError, LookupError) as error:  # yarl indexes into what is not there
        raise ConfigError("url", f"{url!r}: {error}") from None
    if parsed.scheme not in ("http", "https") or not host or not port:
        raise ConfigError("url", f"{url!r} is not a URL: write https://example.com/hook")
    if parsed.user or parsed.password:
        raise ConfigError("url", "may not carry a user and a password")
    literal = _literal(host)
    named = allowed.has_host(host) or any(literal in one for one in allowed.networks if literal)
    where = _meant(host) if literal is None else (literal,)
    if not named and where and not any(allowed.has_address(str(one)) for one in where):
        raise ConfigError("url", refusal(host, host))
    if parsed.scheme == "http" and not named:
        problem = f"{url!r} is not encrypted: use https://, or allow the host by name"
        raise ConfigError("url", problem)
    return parsed


def refusal(host: str, address: str) -> str:
    """Why an address is not connected to."""
    what = host if host == address else f"{host} leads to {address}, which"
    return f"{what} is not a public address: allow it by name if it is meant"


def _literal(host: str) -> Address | None:
    """The address that a host is, in any form that a resolver takes for one: 127.1, 0x7f000001."""
    try:
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        pass
    parts = [_part(text) for text in host.rstrip(".").split(".")]
    if len(parts) > 4 or None in parts:
        return None
    *bytes_, last = [part for part in parts if part is not None]
    if any(part > 255 for part in bytes_) or last >= 256 ** (4 - len(bytes_)):
        return None
    high = sum(part << (24 - 8 * place) for place, part in enumerate(bytes_))
    return ipaddress.IPv4Address(high + last)


def _part(text: str) -> int | None:
    """A number as C writes it: 127, 0177, 0x7f."""
    base = 16 if text[:2].lower() == "0x" else 8 if text[:1] == "0" else 10
    digits = text[2:] or "0" if base == 16 else text
    try:
        return int(digits, base) if digits.isascii() and digits.isalnum() else None
    except ValueError:
        return None


def _meant(host: str) -> tuple[Address, ...]:
    """What a name means by convention (RFC 6761); of others only the resolver knows."""
    name = host.lower().rstrip(".")
    here = name == "localhost" or name.endswith(".localhost")
    return (ipaddress.IPv4Address("127.0.0.1"), ipaddress.IPv6Address("::1")) if here else ()
