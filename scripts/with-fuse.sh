#!/usr/bin/env bash
# with-fuse.sh PROGRAM ARGUMENT... becomes PROGRAM, a bsm-redteam, in a cgroup that
# it may divide: probes that allocate and fork run only inside a kernel limit, and
# the job of a GitHub-hosted runner sits in a cgroup of root's. Nothing else needs
# root, so nothing else gets it: PROGRAM runs as the job's user, with its
# environment, RUNNER_TRACKING_ID and HOME included, owns what it writes, and is
# the process that the runner signals. It leaves the cgroup of a service with that,
# and so its limits, unless the service delegates it: docs/ci.md.
#
#   BSM_PREPARE_HOST  auto (default) or never
#   BSM_HOST_ROOT     for tests: the directory that stands for /
#
# Where the limit cannot be had PROGRAM runs all the same, and reports the probes
# that need it as skipped.
here=${BASH_SOURCE[0]%/*}
[ "$here" != "${BASH_SOURCE[0]}" ] || here=.
# shellcheck source=scripts/runner.sh
. "$here/runner.sh"

# The runner interrupts this process alone, and bash forgets an interrupt if the
# command that it waits for ends well: the attack would begin after the cancellation.
trap 'exit 130' INT

[ $# -gt 0 ] || die "with-fuse.sh needs a program; fix: with-fuse.sh bsm-redteam action"
BSM_BIN=$1
if [ "${BSM_PREPARE_HOST:-auto}" != never ] && [ "$(uname -s)" = Linux ] && ! has fuse; then
	if [ ! -f "$root/sys/fs/cgroup/cgroup.controllers" ]; then
		say "no cgroup with memory and pids limits can be made, and there is no cgroup v2 to delegate"
	elif become_root "cgroup:$$:$(id -u)" && has fuse; then
		say "this run sits in a cgroup of its own"
	else
		say "no cgroup with memory and pids limits can be made; this says why: bsm-redteam doctor --require fuse"
	fi
fi
exec "$@"
