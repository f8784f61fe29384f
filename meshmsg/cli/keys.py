"""`meshmsg keys`: make the keys of a mesh, look at them, and say who may do what."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from meshmsg import ConfigError
from meshmsg.cli._guard import BAD, GOOD, complain, guarded, note
from meshmsg.cli._help import help_text
from meshmsg.cli._options import Json, Quiet
from meshmsg.cli._tables import console, table
from meshmsg.cli._values import safe, to_json
from meshmsg.keys import Grant, allow, describe, grant_of, new_folder, revoke

HELP = help_text(
    "Keys without which nobody takes part in a mesh.",
    "A folder has the mesh key (mesh.key, the same for all), the peer's own key (peer.key) and the "
    "allow-list (allow.toml), which running peers read again when it changes. No secret is ever "
    "printed.",
    examples=(
        "meshmsg keys new ./keys --name pricing",
        "meshmsg keys new ./desk --name desk --mesh-key-file ./keys/mesh.key",
        "meshmsg keys allow ./keys $(meshmsg keys show ./desk --key) --name desk --publish none",
        "meshmsg --keys ./keys sub 'orders.**'",
        "meshmsg keys revoke ./keys desk",
    ),
)

Dir = Annotated[Path, typer.Argument(metavar="DIR", help="The folder with the keys.")]
Name = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        show_default=False,
        help="What the peer calls itself; 'desk-*' for several. To be given.",
    ),
]
Patterns = list[str] | None


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    keys = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")
    keys.command("new", help="Make a folder of keys for one peer.")(guarded(new))
    keys.command("show", help="Show the public key and who is allowed; no secret.")(guarded(show))
    keys.command("allow", help="Let a public key in, or change what it may do.")(guarded(add))
    keys.command("revoke", help="Take a peer off the list: it is cut off.")(guarded(remove))
    app.add_typer(keys, name="keys", help=HELP, short_help="Make keys, and say who may do what.")


def new(
    directory: Dir,
    name: Name = None,
    mesh_key_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", show_default=False, help="Take this mesh key instead of a new one."
        ),
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Make keys."""
    grant = new_folder(directory, _name(name), mesh_key_file=mesh_key_file)
    if json:
        print(to_json({"folder": str(directory), **_object(grant)}))
    else:
        print(grant.key.hex())
    made = "mesh.key, peer.key and allow.toml"
    note(f"made {made} in {directory}; its public key is above", quiet=quiet)
    return GOOD


def show(
    directory: Dir,
    key: Annotated[bool, typer.Option("--key", help="Only the public key.")] = False,
    json: Json = False,
) -> int:
    """Show what is not secret."""
    found = describe(directory)
    if json:
        print(to_json(found))
    elif key:
        print(found["key"])
    else:
        print(f"public key   {found['key']}")
        for at, fingerprint in enumerate(found["mesh_keys"]):
            print(f"mesh key     {fingerprint} (fingerprint{', not in use' if at else ''})")
        rows = table("", "name", "public key", "publish", "subscribe", "stats", "operate")
        for row in found["allow"]:
            rows.add_row(
                safe(row["name"]),
                row["key"],
                " ".join(row["publish"]) or "none",
                " ".join(row["subscribe"]) or "none",
                "yes" if row["stats"] else "no",
                "yes" if row["operate"] else "no",
            )
        console().print(rows)
    return GOOD


def add(
    directory: Dir,
    public_key: Annotated[str, typer.Argument(metavar="KEY", help="As `keys show` prints it.")],
    name: Name = None,
    publish: Annotated[
        Patterns,
        typer.Option(
            metavar="PATTERN",
            show_default=False,
            help="Topics that it may publish; may be given several times. 'none' for none, all if "
            "not given.",
        ),
    ] = None,
    subscribe: Annotated[
        Patterns,
        typer.Option(metavar="PATTERN", show_default=False, help="The same for subscribing."),
    ] = None,
    stats: Annotated[
        bool, typer.Option("--stats/--no-stats", help="It may ask for statistics and ledgers.")
    ] = True,
    operate: Annotated[
        bool,
        typer.Option(
            "--operate/--no-operate",
            help="It may pause and reset groups, move cursors, evict and drain.",
        ),
    ] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Let somebody in."""
    grant = grant_of(
        _name(name),
        public_key,
        publish=_patterns(publish),
        subscribe=_patterns(subscribe),
        stats=stats,
        operate=operate,
    )
    fresh = allow(directory, grant)
    if json:
        print(to_json({"new": fresh, **_object(grant)}))
    note(f"{grant.name} is {'now' if fresh else 'still'} on the list", quiet=quiet or json)
    return GOOD


def remove(
    directory: Dir,
    who: Annotated[str, typer.Argument(metavar="NAME|KEY", help="As it stands in the list.")],
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Take somebody off the list."""
    gone = revoke(directory, who)
    for grant in gone:
        if json:
            print(to_json(_object(grant)))
        note(f"{grant.name} is off the list: running peers cut it off", quiet=quiet or json)
    if not gone:
        complain(f"{who!r} is not on the list: `meshmsg keys show {directory}`")
    return GOOD if gone else BAD


def _name(given: str | None) -> str:
    if given is None:
        problem = "say what the peer calls itself: --name desk, or --name 'desk-*' for several"
        raise ConfigError("name", f"{problem}; --name '*' lets the key use any name left")
    return given


def _patterns(given: Patterns) -> list[str]:
    if not given:
        return ["**"]
    return [] if given == ["none"] else given


def _object(grant: Grant) -> dict[str, Any]:
    return {
        "name": grant.name,
        "key": grant.key.hex(),
        "publish": list(grant.publish),
        "subscribe": list(grant.subscribe),
        "stats": grant.stats,
        "operate": grant.operate,
    }
