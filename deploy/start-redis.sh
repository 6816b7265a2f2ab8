#!/bin/sh
# Starts a server that asks for the password in /run/secrets/redis_password. Arguments: options of the server.
#
# The password goes by standard input, because a command line can be read by everybody who lists processes.
set -eu
password=$(cat "${REDIS_PASSWORD_FILE:-/run/secrets/redis_password}")
test -n "$password"
exec valkey-server - "$@" <<END
requirepass $password
masterauth $password
END
