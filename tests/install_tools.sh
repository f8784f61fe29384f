#!/bin/sh
# Install the programs of the system that some tests run, where this is root on a machine with apt.
#
#     sh tests/install_tools.sh NOTE
#
# It never fails.  What is still missing afterwards, and why, is said on standard error and in the
# file NOTE, from where the tests that need it take their reason (see tests/support/tools.py).

note=$1
tools=${note%/*}/tools # where is unpacked what would start a service if it were installed
needed="tshark:tshark dumpcap:tshark nft:nftables ip:iproute2 prometheus:prometheus promtool:prometheus chromium:chromium chromedriver:chromium-driver"
commands=${TOOLS:-$needed} # command:package

missing_packages() {
    for pair in $commands; do
        command -v "${pair%:*}" >/dev/null 2>&1 || echo "${pair#*:}"
    done | sort -u | tr '\n' ' '
}

# A lock that another installation holds is waited for, a network that does not answer is not.
apt() {
    DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 \
        -o Acquire::Retries=1 -o Acquire::http::Timeout=20 -o Acquire::https::Timeout=20 "$@" 2>&1
}

unpack() {
    mkdir -p "$tools" &&
        (cd "$tools" && apt download "$1" && dpkg-deb -x "$1"_*.deb . && rm -f "$1"_*.deb)
}

install() {
    wanted=
    for package in $packages; do
        case $package in
        prometheus) unpack "$package" || return ;;
        *) wanted="$wanted $package" ;;
        esac
    done
    [ -z "$wanted" ] || apt install -y --no-install-recommends $wanted </dev/null
}

PATH=$PATH:/usr/sbin:/sbin:$tools/usr/bin
packages=$(missing_packages)
if [ -z "$packages" ]; then
    rm -f "$note"
    exit 0
fi
if ! command -v apt-get >/dev/null 2>&1; then
    why="there is no apt-get here"
elif [ "$(id -u)" != 0 ]; then
    why="only root may install them: apt-get install $packages"
else
    echo "Installing what the tests run: $packages..."
    # First with the lists that are there: they are missing on a new machine, and old on others.
    said=$(install) || said=$(apt update && install)
    packages=$(missing_packages)
    why="apt-get failed: $(echo "$said" | grep '^[EW]:' | tail -n 1)"
fi
if [ -z "$packages" ]; then
    rm -f "$note"
else
    echo "Not installed: $packages($why)" | tee "$note" >&2
    echo "The tests that need them are skipped." >&2
fi
