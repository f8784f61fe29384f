#!/bin/sh
# Gets the servers of brokered rivals, where apt may; never fails: what is missing is said in the
# tables.
path="$PATH:/usr/sbin:/usr/lib/rabbitmq/bin"
for name in nats-server rabbitmq-server; do
    PATH="$path" command -v "$name" >/dev/null 2>&1 && continue
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1 || {
        echo "$name is not here, and only root can install it: its rows will say so"
        continue
    }
    apt-get install -y -qq --no-install-recommends "$name" >/dev/null 2>&1 ||
        echo "apt-get could not install $name: its rows will say so"
done
exit 0
