#!/bin/sh
# Build the compiled core with address and undefined-behaviour sanitizers, in a place of its own, and
# run the tests of what reads bytes from the network against it.
#
#     sh tests/asan.sh PYTHON [what pytest takes]
#
# A report ends the process that it is about, and fails this.

set -eu
cd "$(dirname "$0")/.."
python=$1
shift

tests="tests/compiled
tests/long/test_fuzz_frames.py
tests/unit/recovery/multicast/test_held_packets.py
tests/unit/recovery/log/test_join.py
tests/unit/recovery/log/test_tail.py
tests/unit/recovery/multicast/test_packet_receiver.py
tests/unit/recovery/multicast/test_seal.py
tests/unit/recovery/multicast/test_packet_short_ways.py
tests/unit/recovery/multicast/test_parity.py
tests/unit/meshmsg/_model/test_batch.py
tests/unit/meshmsg/_wire/test_frame.py
tests/unit/meshmsg/_wire/test_msgpack.py
tests/unit/meshmsg/_wire/test_packet.py
tests/unit/meshmsg/_wire/test_subframe.py"

compiler=${CC:-gcc}
place=$PWD/build/asan
if ! command -v "$compiler" >/dev/null 2>&1; then
    echo "asan: there is no compiler '$compiler' here: name one with CC=" >&2
    exit 1
fi
library() {
    "$compiler" -print-file-name="$1"
}
for name in libasan.so libubsan.so; do
    if [ ! -e "$(library $name)" ]; then
        echo "asan: '$compiler' has no $name: install it (on Debian and Ubuntu it comes with gcc," \
            "on Fedora with libasan and libubsan), or name another compiler with CC=" >&2
        exit 1
    fi
done
# libstdc++: the sanitizer looks for how C++ throws when it starts, and other modules do throw.
preload="$(library libasan.so) $(library libstdc++.so.6)"

# The package by links, so that nothing of it but the compiled core is another.
rm -rf "$place"
mkdir -p "$place/meshmsg"
for item in "$PWD"/meshmsg/*; do
    case $item in *.so) ;; *) ln -s "$item" "$place/meshmsg/" ;; esac
done
include=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
suffix=$("$python" -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))')
"$compiler" -shared -fPIC -g -O1 -Wall -fno-omit-frame-pointer -fvisibility=hidden \
    -fsanitize=address,undefined -fno-sanitize-recover=all \
    -I"$include" meshmsg/c/*.c -o "$place/meshmsg/_speed$suffix"

run() {
    # Python's own leaks and allocator are not what is looked at.
    LD_PRELOAD="$preload" PYTHONMALLOC=malloc PYTHONPATH="$place:$PWD" \
        ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:log_path="$place/report" \
        UBSAN_OPTIONS=print_stacktrace=1 \
        "$python" -P "$@"
}

# Else the tests would run in Python alone, and pass.
run -c 'from meshmsg import _native, _speed
assert _native.COMPILED and "/asan/" in _speed.__file__, "the core with sanitizers is not in use"'

# Captured by descriptor, reports of undefined behaviour would be lost with the process.
failed=0
run -m pytest --capture=sys --hypothesis-profile=ci --timeout 600 $tests "$@" || failed=$?
for report in "$place"/report*; do
    if [ -e "$report" ]; then
        cat "$report" >&2
        failed=1
    fi
done
exit "$failed"
