# shellcheck shell=bash disable=SC2034 # the variables are for those who source it
# Shared by the scripts beside it; sourced, not run.

# The Debian packages that a real boot needs on this machine, and those that
# building with the race detector needs on top.
case $(uname -m) in
aarch64) qemu_binary=qemu-system-aarch64 qemu_package=qemu-system-arm ;;
*) qemu_binary=qemu-system-x86_64 qemu_package=qemu-system-x86 ;;
esac

say() { printf '%s\n' "$*" >&2; }

die() {
	say "error: $*"
	exit 1
}

# need_packages BINARY:PACKAGE... (or /FILE:PACKAGE) installs what is missing when that is possible
# without asking, and otherwise prints the command that does it.
need_packages() {
	local pair missing=() root=()
	for pair in "$@"; do
		case $pair in
		/*) [ -e "${pair%%:*}" ] ;;
		*) command -v "${pair%%:*}" >/dev/null ;;
		esac || missing+=("${pair#*:}")
	done
	[ ${#missing[@]} -eq 0 ] && return 0
	if ! command -v apt-get >/dev/null; then
		say "missing: ${missing[*]} (Debian names); fix: install them with this system's package manager"
		return 1
	fi
	if [ "$(id -u)" -ne 0 ]; then
		if ! sudo -n true 2>/dev/null; then
			say "missing: ${missing[*]}; fix: sudo apt-get install ${missing[*]}"
			return 1
		fi
		root=(sudo -n)
	fi
	say "installing ${missing[*]}"
	"${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q update >&2 &&
		"${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends "${missing[@]}" >&2
}

# need_go also keeps the go command from failing in a checkout that belongs to
# another user, of which git refuses to speak.
need_go() {
	git rev-parse HEAD >/dev/null 2>&1 || export GOFLAGS="${GOFLAGS:-} -buildvcs=false"
	command -v go >/dev/null || die "go is not in PATH; fix: install Go from https://go.dev/dl/ (the version in go.mod)"
}
