#!/usr/bin/env bash
# Give this job what its backend lacks on a host that was not set up for it, such
# as a GitHub-hosted runner: packages, access to /dev/kvm, user namespaces for
# bubblewrap. bsm-redteam doctor decides what is missing, and whether it helped;
# no label of a runner is looked at. Where nothing is missing nothing is done, and
# where there is neither root nor `sudo -n` nothing but saying so. Nothing here
# survives a reboot, packages excepted.
#
#   BSM_BIN           the installed bsm-redteam (default: built from this checkout)
#   BSM_BACKEND       the backend that will be attacked
#   BSM_PREPARE_HOST  auto (default) or never
#   BSM_HOST_ROOT     for tests: the directory that stands for /
#
# The exit code is 0 also when something could not be had: whether that fails the
# job is decided by the run, by on-unavailable.
here=${BASH_SOURCE[0]%/*}
[ "$here" != "${BASH_SOURCE[0]}" ] || here=.
# shellcheck source=scripts/runner.sh
. "$here/runner.sh"

# Root's half: prepare-host.sh --as-root HOST_ROOT STEP...

# put FILE TEXT makes FILE hold TEXT, whole or not at all.
put() {
	mkdir -p -- "${1%/*}"
	printf '%s\n' "$2" >"$1.new.$$"
	mv -f -- "$1.new.$$" "$1"
}

# packages NAME... installs them. A job beside this one may hold dpkg's lock.
packages() {
	export DEBIAN_FRONTEND=noninteractive
	apt-get -q -o DPkg::Lock::Timeout=120 update >&2 &&
		apt-get -q -o DPkg::Lock::Timeout=120 install -y --no-install-recommends "$@" >&2
}

# kvm opens the device to every user, as systemd does by default. The rule alone
# takes effect at some later moment, the mode alone until udev looks again.
kvm() {
	if command -v udevadm >/dev/null; then
		put "$root/run/udev/rules.d/99-bsm-redteam-kvm.rules" 'KERNEL=="kvm", MODE="0666"'
		if udevadm control --reload-rules && udevadm trigger --name-match=kvm; then
			say "a udev rule opens /dev/kvm until the next reboot"
		else
			say "udevadm failed; the mode of /dev/kvm may not last"
		fi
	fi
	chmod 0666 "$root/dev/kvm"
}

# userns lets bubblewrap, and no other program, make user namespaces. A profile
# that the distribution or its owner gave it is theirs, and may confine it on purpose.
userns() {
	local profile=$root/run/bsm-redteam/bwrap.apparmor line
	if line=$(grep -m 1 -E '^(/usr/bin/)?bwrap \(' "$root/sys/kernel/security/apparmor/profiles" 2>/dev/null); then
		say "AppArmor has a profile for bubblewrap already, which is left alone: $line"
		return 1
	fi
	put "$profile" 'abi <abi/4.0>,
include <tunables/global>
profile bsm-redteam-bwrap /usr/bin/bwrap flags=(unconfined) {
  userns,
}'
	apparmor_parser --replace --skip-cache "$profile"
}

# cgroup PID:UID moves that process into a new cgroup that the user may divide, as
# near to where it was as one can be: below the nearest ancestor that gives its
# children both controllers. The limits of that ancestor still hold for it, those of
# the cgroups that it left do not.
cgroup() {
	local pid=${1%%:*} user=${1#*:} mount=$root/sys/fs/cgroup path='' line dir
	while IFS= read -r line; do
		case $line in 0::*) path=${line#0::} ;; esac
	done <"$root/proc/$pid/cgroup"
	[ -n "$path" ] && [ -f "$mount/cgroup.controllers" ] || return 1
	while :; do
		read -r line <"$mount$path/cgroup.subtree_control" || line=''
		case " $line " in *' memory '*) case " $line " in *' pids '*) break ;; esac ;; esac
		[ "${path%/}" != '' ] || return 1
		path=${path%/*}
	done
	# What earlier jobs left. One that was just made has its process before the lock is given back.
	set +f
	for dir in "$mount${path%/}"/bsm-redteam-*; do
		if grep -qx 'populated 0' "$dir/cgroup.events" 2>/dev/null; then
			find "$dir" -depth -type d -exec rmdir {} + 2>/dev/null || true
		fi
	done
	set -f
	dir=$mount${path%/}/bsm-redteam-$pid-$RANDOM
	mkdir "$dir" && chown "$user" "$dir" "$dir/cgroup.procs" "$dir/cgroup.subtree_control" &&
		printf '%s\n' "$pid" >"$dir/cgroup.procs"
}

as_root() {
	root=$1
	shift
	need flock mkdir mv chmod chown find rmdir grep
	mkdir -p -- "$root/run"
	# Below /run, where only root can hold it against us.
	exec 9>"$root/run/bsm-redteam.lock"
	flock -w 300 9 || die "another job has been preparing this host for 5 minutes; fix: run the job again"
	local step status=0
	for step in "$@"; do
		case $step in
		package:*) packages "${step#package:}" || status=1 ;;
		cgroup:*) cgroup "${step#cgroup:}" || status=1 ;;
		kvm | userns) "$step" || status=1 ;;
		*) die "unknown step $step" ;;
		esac
	done
	exit "$status"
}

if [ "${1:-}" = --as-root ]; then
	shift
	as_root "$@"
fi

# The half of the job's user.

# package BINARY PACKAGE installs what the backend starts.
package() {
	command -v "$1" >/dev/null && return 0
	say "$1 is missing"
	if ! command -v apt-get >/dev/null; then
		say "cannot install it: no apt-get here; fix: install $2 (Debian's name) on this runner"
		return 0
	fi
	if become_root "package:$2" && command -v "$1" >/dev/null; then say "installed $2"; fi
}

prepare_qemu() {
	case $(uname -m) in
	aarch64 | arm64) package qemu-system-aarch64 qemu-system-arm ;;
	*) package qemu-system-x86_64 qemu-system-x86 ;;
	esac
	if has kvm; then
		say "KVM answers this user"
		return 0
	fi
	if [ ! -e "$root/dev/kvm" ]; then
		say "there is no /dev/kvm: QEMU will emulate the processor, and latencies will not be representative"
		return 0
	fi
	say "/dev/kvm is there, but KVM does not answer this user"
	become_root kvm || return 0
	local try
	for try in 1 2 3 4 5 6 7 8 9 10; do
		if has kvm; then
			say "KVM answers this user now"
			return 0
		fi
		sleep "0.$try"
	done
	say "KVM does not answer this user, although /dev/kvm was opened"
}

prepare_bwrap() {
	package bwrap bubblewrap
	local bwrap restricted=''
	bwrap=$(command -v bwrap) || return 0
	if has bwrap; then
		say "bubblewrap builds a sandbox as this user"
		return 0
	fi
	say "bubblewrap builds no sandbox as this user"
	IFS= read -r restricted 2>/dev/null <"$root/proc/sys/kernel/apparmor_restrict_unprivileged_userns" || true
	if [ "$restricted" != 1 ]; then
		say "AppArmor is not what keeps it from that; nothing to prepare"
		return 0
	fi
	if [ "$bwrap" != /usr/bin/bwrap ]; then
		say "cannot help: a profile would be for /usr/bin/bwrap, but it is $bwrap"
		return 0
	fi
	become_root userns || return 0
	if has bwrap; then
		say "bubblewrap builds a sandbox now, by an AppArmor profile for /usr/bin/bwrap until the next reboot"
	else
		say "bubblewrap builds no sandbox, although a profile allows it user namespaces"
	fi
}

case ${BSM_PREPARE_HOST:-auto} in
auto) ;;
never)
	say "the host is left alone, as asked for"
	exit 0
	;;
*) die "prepare-host is '$BSM_PREPARE_HOST'; fix: use auto or never" ;;
esac
BSM_BIN=${BSM_BIN:-}
if [ -z "$BSM_BIN" ]; then
	built=$(BSM_INSTALL=source BSM_ATTESTATION=off GITHUB_OUTPUT='' "$BASH" "$here/install.sh")
	built=${built#bin=}
	BSM_BIN=${built%%$'\n'*}
fi
if [ ! -f "$BSM_BIN" ] || [ ! -x "$BSM_BIN" ]; then
	die "BSM_BIN is no executable: '$BSM_BIN'; fix: run install.sh first"
fi
backend=${BSM_BACKEND:-}
if [ "$(uname -s)" != Linux ]; then
	say "only Linux hosts are prepared"
	exit 0
fi
case $backend in
qemu | bwrap) "prepare_$backend" ;;
*)
	say "backend '$backend' needs no preparation that is known here"
	exit 0
	;;
esac
has "$backend" || say "the $backend backend cannot run here; this says why: bsm-redteam doctor --require $backend"
