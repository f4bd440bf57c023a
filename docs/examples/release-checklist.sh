#!/usr/bin/env bash
# Before a release of your sandbox, on the machine that it will run on:
#   release-checklist.sh BACKEND POLICY OUTPUT-DIRECTORY
# Every step must pass; the reports in the directory are what you can show.
# BSM names the program (default: bsm-redteam in PATH); ITERATIONS is the number
# of samples of each latency probe (default: 1000).
set -euo pipefail

if [ $# -ne 3 ]; then
	echo "usage: $0 BACKEND POLICY OUTPUT-DIRECTORY" >&2
	exit 2
fi
backend=$1 policy=$2 out=$3
bsm=${BSM:-bsm-redteam}
mkdir -p "$out"

echo "1. What this machine can run"
"$bsm" doctor | tee "$out/doctor.txt"

echo "2. The probes can fail here: every known leak of $backend is caught"
"$bsm" calibrate --sandbox "$backend" | tee "$out/calibration.txt"

echo "3. The sandbox as it will be released"
# A finding is the gate's to judge, below.
"$bsm" --sandbox "$backend" --policy "$policy" --iterations "${ITERATIONS:-1000}" --on-unavailable fail --output "$out/report.json" || status=$?
[ -z "${status:-}" ] || [ "$status" -eq 1 ] || exit "$status"

echo "4. The gate"
if [ -e "$out/last-release.json" ]; then
	"$bsm" compare "$out/last-release.json" "$out/report.json" || [ $? -eq 1 ]
	"$bsm" gate "$out/report.json" --baseline "$out/last-release.json"
else
	echo "no last-release.json in $out, so nothing is compared"
	"$bsm" gate "$out/report.json"
fi

echo "5. Nothing was left behind"
"$bsm" reap
