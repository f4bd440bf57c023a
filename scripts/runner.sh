# shellcheck shell=bash
# Shared by the scripts that action.yml calls; sourced, not run. They work with
# bash 3.2, which is what macOS has. here is the directory of the script.

set -euo pipefail
set -f # nothing here is a glob
export LC_ALL=C
IFS=$' \t\n'
unset CDPATH GREP_OPTIONS TAR_OPTIONS GZIP
umask 022

# printable returns text in which a runner finds no command: it obeys lines that
# start with "::", which ours never do, and "##[" anywhere.
printable() {
	local text=$1 legacy='##[' harmless='#?['
	text=${text//[^ -~]/?}
	printf '%s' "${text//"$legacy"/$harmless}"
}

say() { printf '%s: %s\n' "${0##*/}" "$(printable "$*")" >&2; }

# die shows one line with what happened and the fix; on a runner it is also an
# annotation of the job.
die() {
	local text
	text=$(printable "$*")
	if [ "${GITHUB_ACTIONS:-}" = true ]; then
		printf '::error title=sandbox-redteam::%s\n' "${text//%/%25}" >&2
	else
		printf 'error: %s\n' "$text" >&2
	fi
	exit 1
}

# need TOOL... dies unless they are in PATH.
need() {
	local tool
	for tool in "$@"; do
		command -v "$tool" >/dev/null || die "$tool is not in PATH; fix: install it on this runner"
	done
}

# plain VALUE reports whether it is one line without control characters.
plain() {
	case $1 in
	*[[:cntrl:]]*) return 1 ;;
	esac
}

# The root of the file system that is prepared; tests set it.
root=${BSM_HOST_ROOT:-}

# has NAME: doctor finds that this host has the backend or facility.
has() { "$BSM_BIN" doctor --require "$1" </dev/null >/dev/null 2>&1; }

# become_root STEP... carries steps of prepare-host.sh out as root, or says why not.
become_root() {
	local sudo=()
	if [ "$(id -u)" -ne 0 ]; then
		if ! command -v sudo >/dev/null || ! sudo -n true 2>/dev/null; then
			say "cannot do it: no root and no sudo without a password; the host is left alone"
			return 1
		fi
		sudo=(sudo -n)
	fi
	# shellcheck disable=SC2154 # here is set by who sources this
	${sudo[@]+"${sudo[@]}"} "$BASH" "$here/prepare-host.sh" --as-root "$root" "$@" || {
		say "that did not work: $*"
		return 1
	}
}
