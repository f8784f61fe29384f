"""The control channel: peers that this one dialled, peers that dialled it, and finding them."""
