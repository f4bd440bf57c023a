#!/usr/bin/env bash
# Put bsm-redteam where the Action's other steps find it, and write its path and
# version to $GITHUB_OUTPUT as bin and version.
#
#   BSM_INSTALL      release (default): the build that scripts/release.lock names
#                    source: built from the checkout that this script lies in,
#                    with bsm-agent beside it; a release carries the agent inside
#                    none: the executable that BSM_BIN names
#   BSM_BIN          absolute, or relative to $GITHUB_WORKSPACE
#   BSM_ATTESTATION  off, auto (default: where gh and a token are there and GitHub
#                    answers; what it refuses is an error), required
#   GH_TOKEN         given to gh alone
#   BSM_RELEASE_URL  where releases are, instead of GitHub; for tests, so nothing
#                    but http://127.0.0.1:PORT[/PATH] is accepted. The digests of
#                    release.lock hold there as well.
#
# The lock is the only source of truth: the ref that the action was used by is
# never looked at. What lies in the tool cache is believed only after its digest
# was computed again.
here=${BASH_SOURCE[0]%/*}
[ "$here" != "${BASH_SOURCE[0]}" ] || here=.
# shellcheck source=scripts/runner.sh
. "$here/runner.sh"

repository=brainst0rm/sandbox-redteam
signer=$repository/.github/workflows/release.yml
attempts=3
token=${GH_TOKEN:-}
unset GH_TOKEN

base='' staging='' child=''
cleanup() {
	[ -z "$child" ] || kill "$child" 2>/dev/null || true
	[ -z "$staging" ] || rm -rf -- "$staging"
}
trap cleanup EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# await COMMAND... runs what may take long so that a signal is obeyed at once: bash
# handles none while it waits for a command in the foreground.
await() {
	local status=0
	"$@" &
	child=$!
	wait "$child" || status=$?
	child=''
	return "$status"
}

# sha256 prints the digest of its input.
sha256() {
	local out
	if command -v sha256sum >/dev/null; then out=$(sha256sum); else out=$(shasum -a 256); fi
	printf '%s\n' "${out%% *}"
}

# guarded DIR reports whether nobody but this user and root can put something else
# where DIR is: in a sticky directory others can only add.
guarded() {
	local dir=$1
	while :; do
		[ -O "$dir/." ] || [ -n "$(find "$dir/." -prune -user 0)" ] || return 1
		[ -z "$(find "$dir/." -prune \( -perm -020 -o -perm -002 \) ! -perm -1000)" ] || return 1
		[ -n "$dir" ] || return 0
		dir=${dir%/*}
	done
}

# own DIR... reports whether each is a directory of this user's in which no other
# can write.
own() {
	local dir
	for dir in "$@"; do
		[ ! -L "$dir" ] && [ -d "$dir" ] && [ -O "$dir" ] || return 1
		[ -z "$(find "$dir/." -prune \( -perm -020 -o -perm -002 \))" ] || return 1
	done
}

# cache_in NAME sets base to the cache in the directory that variable NAME holds; why
# says why it cannot be there. What was hashed in it is executed later, and as root
# perhaps, so no other user may be able to change it in between. Who can write to
# RUNNER_TEMP needs no such way: the runner takes every step's script from there.
cache_in() {
	base=${!1}/bsm-redteam
	why="cannot write to $base"
	mkdir -p -- "${!1}" 2>/dev/null && base=$(cd -P -- "${!1}" && pwd -P) || return 1
	if [ "$1" = RUNNER_TOOL_CACHE ] && ! guarded "${base%/}"; then
		why="$base, or a directory above it, belongs to another user or can be written to by others"
		return 1
	fi
	base=${base%/}/bsm-redteam
	mkdir -p -- "$base" 2>/dev/null || return 1
	why="$base, or what is in it, belongs to another user or can be written to by others"
	own "$base" || return 1
	mkdir -p -- "$base/downloads" "$base/bin" 2>/dev/null && own "$base/downloads" "$base/bin" || return 1
	why="cannot write to $base"
	staging=$(mktemp -d "$base/.tmp.XXXXXXXX" 2>/dev/null)
}

# open_cache makes the cache and, on the same file system, a directory that this
# run alone uses.
open_cache() {
	need mkdir mktemp rm mv cp chmod touch find
	command -v sha256sum >/dev/null || command -v shasum >/dev/null || die "neither sha256sum nor shasum is in PATH; fix: install coreutils on this runner"
	local name why='neither RUNNER_TOOL_CACHE nor RUNNER_TEMP is set'
	for name in RUNNER_TOOL_CACHE RUNNER_TEMP; do
		[ -n "${!name:-}" ] || continue
		case ${!name} in
		/*) plain "${!name}" || die "$name holds control characters; fix: set it to a plain path" ;;
		*) die "$name is no absolute path: ${!name}; fix: set it to one" ;;
		esac
		cache_in "$name" && break
		[ "$name" = RUNNER_TEMP ] || say "the tool cache is not used: $why"
	done
	[ -n "$staging" ] || die "$why; fix: set RUNNER_TEMP or RUNNER_TOOL_CACHE to a directory where the user of this job, and no other, can write"
	# What a killed job left, and what nothing has used for a month.
	find "$base" -maxdepth 1 -name '.tmp.*' -mtime +1 -exec rm -rf -- {} + 2>/dev/null || true
	find "$base/downloads" "$base/bin" -mindepth 1 -maxdepth 1 -mtime +30 -exec rm -rf -- {} + 2>/dev/null || true
}

# read_lock PLATFORM sets version, digest, size and asset.
read_lock() {
	local lock=$here/release.lock line number=0 found=0 any=0
	version='' digest='' size='' asset=bsm-redteam_$1.tar.gz
	[ -r "$lock" ] || die "$lock cannot be read; fix: use an unchanged checkout of the action"
	while IFS= read -r line || [ -n "$line" ]; do
		number=$((number + 1))
		case $line in '' | '#'*) continue ;; esac
		# shellcheck disable=SC2086 # the fields of the line
		set -- $line
		if [ $# -eq 2 ] && [ "$1" = version ] && [ -z "$version" ] && [[ $2 =~ ^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$ ]]; then
			version=$2
			continue
		fi
		if [ $# -ne 3 ] || ! [[ $1 =~ ^[0-9a-f]{64}$ && $2 =~ ^[1-9][0-9]{0,9}$ ]]; then
			die "release.lock, line $number is malformed: $line; fix: use an unchanged checkout of the action"
		fi
		any=1
		[ "$3" = "$asset" ] || continue
		digest=$1 size=$2 found=$((found + 1))
	done <"$lock"
	[ "$any" -eq 1 ] || [ -n "$version" ] || die "no release yet, use install: source"
	[ -n "$version" ] || die "release.lock names no version; fix: use an unchanged checkout of the action"
	[ "$found" -eq 1 ] || die "release.lock has $found rows for $asset, not one; fix: use install: source"
}

# platform prints OS_ARCH of this runner, as release.lock has it.
platform() {
	local os='' arch=''
	case ${RUNNER_OS:-} in
	Linux) os=linux ;;
	macOS) os=darwin ;;
	esac
	case ${RUNNER_ARCH:-} in
	X64) arch=amd64 ;;
	ARM64) arch=arm64 ;;
	esac
	if [ -z "$os" ] || [ -z "$arch" ]; then
		die "there is no build for RUNNER_OS=${RUNNER_OS:-} RUNNER_ARCH=${RUNNER_ARCH:-}; supported: Linux X64, Linux ARM64, macOS ARM64, macOS X64; fix: use such a runner"
	fi
	printf '%s_%s\n' "$os" "$arch"
}

# download URL FILE. A failure that may pass is tried again.
download() {
	need curl sleep
	local url=$1 file=$2 try=1 status code options
	# -q: a .curlrc must not weaken this.
	options=(-q --fail --silent --show-error --connect-timeout 20 --max-time 300 --max-filesize "$size" --output "$file" --write-out '%{http_code}')
	case $url in
	https:*) options+=(--location --max-redirs 5 --proto '=https' --proto-redir '=https') ;;
	*) options+=(--proto '=http' --noproxy '*') ;;
	esac
	while :; do
		status=0
		await curl "${options[@]}" --url "$url" >"$staging/code" 2>"$staging/curl" || status=$?
		[ "$status" -ne 0 ] || return 0
		code=$(first_line "$staging/code")
		case $status/$code in
		22/408 | 22/429) ;;
		22/4*) die "$url answered $code; fix: look whether that release is published, or use install: source" ;;
		63/*) die "$url is larger than the $size bytes of release.lock; fix: do not use this file; report it" ;;
		esac
		[ "$try" -lt "$attempts" ] || break
		say "attempt $try of $attempts to get $url: $(first_line "$staging/curl")"
		sleep "$try"
		try=$((try + 1))
	done
	die "cannot get $url: $(first_line "$staging/curl"); fix: let this runner reach it, or use install: source"
}

first_line() {
	local line=''
	IFS= read -r line <"$1" || true
	printf '%s' "$line"
}

# genuine FILE reports whether it is the file of release.lock; why says why not.
genuine() {
	local bytes got
	bytes=$(($(wc -c <"$1")))
	if [ "$bytes" -ne "$size" ]; then
		why="it has $bytes bytes, not $size"
		return 1
	fi
	got=$(sha256 <"$1")
	if [ "$got" != "$digest" ]; then
		why="its SHA-256 is $got, not $digest"
		return 1
	fi
}

# answered asks GitHub once more for the attestations of $digest, because gh attestation
# verify ends with code 1 whether one was refused or none could be fetched. It reports
# failure, and why, only where GitHub gave no answer, or one that says nothing of them:
# no token that it takes, too many requests, its own error.
answered() {
	local line code=''
	GH_TOKEN=$token GH_HOST=github.com gh api --include "repos/$repository/attestations/sha256:$digest" >"$staging/answer" 2>"$staging/api" && return 0
	line=$(first_line "$staging/answer")
	[[ ! $line =~ ^HTTP/[0-9.]+\ ([0-9]{3}) ]] || code=${BASH_REMATCH[1]}
	why=$(first_line "$staging/api")
	case $code in
	'' | 401 | 403 | 408 | 429 | 5??) return 1 ;;
	esac
}

# attest FILE checks who built it, beside what it is.
attest() {
	local why=''
	[ "$attestation" != off ] || return 0
	if ! command -v gh >/dev/null; then
		why="gh is not in PATH"
	elif [ -z "$token" ]; then
		why="there is no github-token"
	elif [ "${GITHUB_SERVER_URL:-https://github.com}" != https://github.com ]; then
		why="the token is not one of github.com"
	elif ! gh attestation verify --help >/dev/null 2>&1; then
		why="this gh has no attestation command"
	fi
	if [ -n "$why" ]; then
		[ "$attestation" != required ] || die "the attestation of $asset cannot be checked: $why; fix: install gh 2.49 or newer and pass github-token, or set attestation: auto"
		say "attestation not checked: $why; the SHA-256 of release.lock was"
		return 0
	fi
	if ! GH_TOKEN=$token GH_HOST=github.com gh attestation verify "$1" --repo "$repository" --signer-workflow "$signer" --deny-self-hosted-runners >/dev/null 2>"$staging/gh"; then
		if [ "$attestation" = required ] || answered; then
			die "gh attestation verify refused $asset: $(first_line "$staging/gh"); fix: look at the release; attestation: off relies on release.lock alone"
		fi
		say "attestation not checked: GitHub could not be asked for it now: $why; the SHA-256 of release.lock was"
		return 0
	fi
	say "attestation of $asset verified"
}

install_release() {
	need tar gzip wc
	local target url kept archive why=''
	target=$(platform)
	read_lock "$target"
	url=https://github.com/$repository/releases/download
	if [ -n "${BSM_RELEASE_URL:-}" ]; then
		[[ $BSM_RELEASE_URL =~ ^http://127\.0\.0\.1:[0-9]{1,5}(/[A-Za-z0-9._/-]*)?$ ]] || die "BSM_RELEASE_URL is $BSM_RELEASE_URL, but only http://127.0.0.1:PORT[/PATH] is accepted; fix: unset it"
		url=${BSM_RELEASE_URL%/}
	fi
	open_cache
	kept=$base/downloads/$digest
	archive=$staging/$asset
	# A copy: what another job can still change is not what was hashed.
	if [ -f "$kept" ] && cp -- "$kept" "$archive" 2>/dev/null && genuine "$archive"; then
		say "$asset $version is in the tool cache, its SHA-256 is right"
	else
		[ ! -e "$kept" ] || say "the cached $asset is not believed: ${why:-it cannot be read}"
		download "$url/$version/$asset" "$archive"
		genuine "$archive" || die "$asset $version is not the file of release.lock: $why; fix: run the job again; if that stays, do not use this file and report it"
	fi
	attest "$archive"
	mkdir "$staging/new"
	# To stdout: a member cannot choose where it is written, or be a link.
	if ! tar -xzOf "$archive" bsm-redteam >"$staging/new/bsm-redteam" 2>"$staging/tar" || [ ! -s "$staging/new/bsm-redteam" ]; then
		die "$asset $version holds no usable bsm-redteam: $(first_line "$staging/tar"); fix: use install: source, and report it"
	fi
	place "$version"
	mv -f -- "$archive" "$kept" || die "cannot write $kept; fix: let the user of this job write there"
}

# build PROGRAM OS VCS builds it as internal/agentbin does the agent: nothing but
# the sources and the Go version shows in the result, and the commit with VCS.
build() {
	await env CGO_ENABLED=0 "GOOS=$2" "GOARCH=$arch" go -C "$root" build -trimpath "-buildvcs=$3" -ldflags '-s -w -buildid=' -o "$staging/new/$1" "./cmd/$1" ||
		die "go could not build $1, its messages are above; fix: set up the Go version of go.mod, for example with actions/setup-go"
}

install_source() {
	[ "$attestation" != required ] || die "attestation: required needs install: release; a build from source has none"
	local root os arch vcs=false
	root=$(cd -- "$here/.." && pwd -P)
	command -v go >/dev/null || die "go is not in PATH; fix: set up the Go version of go.mod, for example with actions/setup-go, or use install: release"
	open_cache
	# Only the commit of this very checkout: one that surrounds it is another project's.
	if command -v git >/dev/null && [ "$(git -C "$root" rev-parse --show-toplevel 2>/dev/null)" = "$root" ] && git -C "$root" rev-parse HEAD >/dev/null 2>&1; then
		vcs=true
	fi
	export GOFLAGS=-mod=readonly GOWORK=off GOAMD64=v1 GOARM64=v8.0 GOEXPERIMENT='' GOFIPS140=off GODEBUG=''
	if ! os=$(go -C "$root" env GOHOSTOS) || ! arch=$(go -C "$root" env GOHOSTARCH); then
		die "go env failed, its message is above; fix: set up the Go version of go.mod, for example with actions/setup-go"
	fi
	mkdir "$staging/new"
	build bsm-redteam "$os" "$vcs"
	build bsm-agent linux false
	place ''
}

# identity DIR prints the digest of the programs in DIR, nothing if one of them is
# no plain executable. An agent beside a release, which carries its own, counts:
# it would be used.
identity() {
	local program list=''
	[ ! -L "$1" ] && [ -e "$1/bsm-redteam" ] || return 0
	for program in bsm-redteam bsm-agent; do
		[ -e "$1/$program" ] || [ -L "$1/$program" ] || continue
		[ -f "$1/$program" ] && [ -x "$1/$program" ] && [ ! -L "$1/$program" ] || return 0
		list="$list$program $(sha256 <"$1/$program") "
	done
	printf '%s\n' "$list" | sha256
}

# answer FILE sets version to what that bsm-redteam says of itself.
answer() {
	local said=''
	said=$("$1" version </dev/null 2>/dev/null) || true
	[[ $said =~ ^bsm-redteam\ ([A-Za-z0-9][A-Za-z0-9.+_-]{0,127})\ \( ]] || return 1
	version=${BASH_REMATCH[1]}
}

# place WANT installs $staging/new in the cache under the digest of its content,
# in one rename, and sets bin and version. WANT is the version it must have, or ''.
place() {
	local id dest
	chmod -R 755 "$staging/new"
	answer "$staging/new/bsm-redteam" || die "the installed bsm-redteam does not run here: no answer to version; fix: allow execution below $base (is it mounted noexec?), or use install: none"
	[ -z "$1" ] || [ "$version" = "$1" ] || die "the bsm-redteam of release $1 says that it is $version; fix: use install: source, and report it"
	id=$(identity "$staging/new")
	[ -n "$id" ] || die "cannot hash what was built or unpacked in $staging; fix: look at the disk of this runner"
	dest=$base/bin/$id
	bin=$dest/bsm-redteam
	if [ -e "$dest" ] || [ -L "$dest" ]; then
		if [ "$(identity "$dest")" = "$id" ]; then
			touch -- "$dest"
			return 0
		fi
		say "$dest was changed after it was installed; it is replaced"
		mv -- "$dest" "$staging/old" 2>/dev/null || true # another job may be doing the same
	fi
	mv -- "$staging/new" "$staging/$id"
	# Into the directory, because mv would nest it in a dest that another job just made.
	mv -- "$staging/$id" "$base/bin/" 2>/dev/null || [ "$(identity "$dest")" = "$id" ] ||
		die "cannot write $dest; fix: let the user of this job write there"
}

use_bin() {
	[ "$attestation" != required ] || die "attestation: required needs install: release; nothing is known of the executable in bin"
	bin=${BSM_BIN:-}
	[ -n "$bin" ] || die "install: none needs bin; fix: set bin to the path of bsm-redteam"
	case $bin in
	/*) ;;
	*) bin=${GITHUB_WORKSPACE:-$PWD}/$bin ;;
	esac
	plain "$bin" || die "bin holds control characters: $bin; fix: set it to a plain path"
	[ -f "$bin" ] || die "bin is no file: $bin; fix: set it to the path of bsm-redteam, absolute or relative to the workspace"
	[ -x "$bin" ] || die "bin is not executable: $bin; fix: chmod +x it"
	answer "$bin" || die "bin is no bsm-redteam of this platform, it does not answer version: $bin; fix: build it for this runner"
}

attestation=${BSM_ATTESTATION:-auto}
case $attestation in
off | auto | required) ;;
*) die "attestation is '$attestation'; fix: use off, auto or required" ;;
esac
version='' bin=''
mode=${BSM_INSTALL:-release}
case $mode in
release | source)
	[ -z "${BSM_BIN:-}" ] || die "bin is only for install: none, but install is $mode; fix: leave one of them out"
	"install_$mode"
	;;
none) use_bin ;;
*) die "install is '$mode'; fix: use release, source or none" ;;
esac
say "bsm-redteam $version: $bin"
printf 'bin=%s\nversion=%s\n' "$bin" "$version" >>"${GITHUB_OUTPUT:-/dev/stdout}" || die "cannot write GITHUB_OUTPUT; fix: run this as a step of a job"
